"""The scheduler interface: calls of one function in other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from squish_core.errors import SquishError

RETRIES = 3
"""Number of retries of an item after its process was lost."""


class Scheduler:
    """Runs calls in other processes, on this machine or several, declared by a `SchedulerInfo`.

    Worker processes are spawned, never forked, and import what they need. A lost process costs its call, which is
    repeated up to `retries` times; an error that the function raises ends the map.

    Examples
    --------
    >>> from squish_core.api import Scheduler
    >>> class Here(Scheduler):
    ...     def map(self, address, function, items, memory=0):
    ...         yield from enumerate(map(function, items))
    >>> list(Here().map("", abs, [-1, 2]))
    [(0, 1), (1, 2)]
    """

    id = ""
    retries = RETRIES

    def map(
        self, address: str, function: Callable[[Any], Any], items: Sequence[Any], memory: int = 0
    ) -> Iterator[tuple[int, Any]]:
        """Call a function for each item.

        Parameters
        ----------
        address
            What follows the colon in `scheduler="ID:ADDRESS"`, or "".
        function
            A function of a module; it and the items are pickled.
        items
            Small: data that workers read by themselves.
        memory
            Bytes that one call takes, at most, for schedulers that account for memory.

        Returns
        -------
        iterator of (int, answer)
            The number of an item and its answer, as calls end. Closing it cancels calls that have not started.

        Raises
        ------
        SquishError
            What the function raised, or code `worker`: processes were lost again and again.

        Examples
        --------
        >>> next(Scheduler().map("", abs, [-1]))
        Traceback (most recent call last):
            ...
        NotImplementedError
        """
        raise NotImplementedError


def lost_worker(number: int, detail: str = "") -> SquishError:
    """Make the error for an item without retries left.

    Parameters
    ----------
    number
        Number of the task.
    detail
        What the scheduler knows about the loss.

    Returns
    -------
    SquishError
        With code `worker`.

    Examples
    --------
    >>> lost_worker(3).found
    'task 3'
    """
    return SquishError(
        f"worker processes were lost {RETRIES + 1} times during one task",
        code="worker",
        found=f"task {number}{f', {detail}' if detail else ''}",
        hint="Look for a lack of memory; smaller tasks take less ({option:task_bytes}). In a script, put the call "
        "under `if __name__ == '__main__':`.",
    )
