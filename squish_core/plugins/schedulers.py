"""The scheduler that `scheduler=` names."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from attrs import frozen

from squish_core.codes import ErrorCode
from squish_core.errors import MissingPluginError, SquishError, UsageError
from squish_core.guard import boundary
from squish_core.plugins.catalog import install_command, packages
from squish_core.plugins.registry import Registry
from squish_core.schedulers.base import Scheduler


@frozen
class Workers:
    """A scheduler with the address to run at."""

    name: str
    scheduler: Scheduler
    address: str

    def map(
        self, function: Callable[[Any], Any], items: Sequence[Any], memory: int = 0
    ) -> Generator[tuple[int, Any], None, None]:
        """As in `Scheduler`; a failure of the plugin is a typed error."""
        with boundary(SquishError, f"running tasks by the scheduler {self.name!r}"):
            yield from self.scheduler.map(self.address, function, items, memory)


def scheduler_named(text: str, registry: Registry) -> Workers:
    """Return the scheduler of a text `ID[:ADDRESS]`.

    Parameters
    ----------
    text
        What a caller passes as `scheduler=`.
    registry
        The plugins.

    Returns
    -------
    Workers
        The scheduler and its address.

    Raises
    ------
    MissingPluginError
        The package of the scheduler is not installed; the hint names it.
    UsageError
        There is no such scheduler.

    Examples
    --------
    >>> scheduler_named("local:2", squish.registry()).address
    '2'
    """
    name, _, address = text.partition(":")
    entry = registry.schedulers.get(name)
    if entry is not None:
        return Workers(name, registry.instance("scheduler", entry), address)
    package = packages("scheduler").get(name)
    if package:
        hint = f"Run `{install_command(package)}`."
        raise MissingPluginError(f"the scheduler {name!r} is not installed", code=ErrorCode.NOT_INSTALLED, hint=hint)
    expected = ", ".join(sorted({*registry.schedulers, *packages("scheduler")}))
    raise UsageError("no such scheduler", expected=expected, found=text, code=ErrorCode.USAGE)
