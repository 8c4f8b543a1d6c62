"""A pool of processes on this machine.

Apart from the interface, because a declaration names it: it is imported when a job or a check asks for processes.
"""

from __future__ import annotations

import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from squish_core.codes import ErrorCode
from squish_core.concurrency import MOST, VARIABLE, start_daemon, workers
from squish_core.errors import UsageError
from squish_core.schedulers.base import RETRIES, Scheduler, lost_worker

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor


class LocalScheduler(Scheduler):
    """`local` or `local:N`: N spawned processes (one per core by default) that share the cores."""

    id = "local"

    def map(
        self, address: str, function: Callable[[Any], Any], items: Sequence[Any], memory: int = 0
    ) -> Iterator[tuple[int, Any]]:
        """As in `Scheduler`; each process works on one item at a time."""
        from concurrent.futures import FIRST_COMPLETED, wait
        from concurrent.futures.process import BrokenProcessPool
        from multiprocessing import current_process

        if getattr(current_process(), "_inheriting", False):  # a worker, which would start the same job again
            raise UsageError(
                "a worker process imports the script, which starts worker processes again",
                code=ErrorCode.USAGE,
                hint="Put the call under `if __name__ == '__main__':`.",
            )
        count = min(process_count(address), max(len(items), 1))
        queue, losses = deque(range(len(items))), Counter[int]()
        running: dict[Future[Any], int] = {}
        pool = _pool(count)
        try:
            while queue or running:
                lost = list[int]()
                while queue and len(running) < count and not lost:
                    number = queue.popleft()
                    try:
                        running[pool.submit(function, items[number])] = number
                    except BrokenProcessPool:
                        lost.append(number)
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    number = running.pop(future)
                    try:
                        answer = future.result()
                    except BrokenProcessPool:
                        lost.append(number)
                        continue
                    yield number, answer
                if lost:  # one lost process ends the pool
                    lost += running.values()
                    running.clear()
                    pool.shutdown(wait=True)
                    losses.update(lost)
                    if failed := [number for number in lost if losses[number] > RETRIES]:
                        raise lost_worker(failed[0])
                    queue.extendleft(sorted(lost, reverse=True))
                    pool = _pool(count)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def process_count(address: str) -> int:
    """Return the N of `local:N`; UsageError if it is not a number."""
    if not address:
        return workers()
    if not (address.isascii() and address.isdigit() and len(address) <= 4 and 0 < int(address) <= MOST):
        expected = f"local:1 to local:{MOST}"
        raise UsageError("not a number of processes", expected=expected, found=f"local:{address}", code=ErrorCode.USAGE)
    return int(address)


def _pool(count: int) -> ProcessPoolExecutor:
    """Spawned processes: a forked one would inherit threads and locks."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    threads = max(workers() // count, 1)
    return ProcessPoolExecutor(count, get_context("spawn"), initializer=_begin, initargs=(threads,))


def _begin(threads: int) -> None:
    """Prepare a worker process: the client handles interrupts, and its workers end with it."""
    from multiprocessing import parent_process

    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ[VARIABLE] = str(threads)
    parent = parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    start_daemon(follow, "squish parent")
