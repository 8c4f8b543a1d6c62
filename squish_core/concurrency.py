"""Threads: their number (SQUISH_THREADS), pools, ordered parallel maps, and prefetching."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

from squish_core.codes import ErrorCode
from squish_core.errors import FileAccessError, UsageError
from squish_core.guard import quietly
from squish_core.io.system import cores

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Future
    from threading import Thread

Item = TypeVar("Item")
Result = TypeVar("Result")

VARIABLE = "SQUISH_THREADS"
MOST = 1024
"""The largest value of SQUISH_THREADS."""
WORKERS = 8
"""Default number of threads of a `map_in_order`."""
_END: Any = object()


def thread_limit() -> int | None:
    """Return the value of SQUISH_THREADS, None if it is not set; UsageError if it is invalid."""
    value = os.environ.get(VARIABLE)
    if not value:
        return None
    if not (value.isascii() and value.isdigit() and 0 < len(value) <= 4 and 0 < int(value) <= MOST):
        raise UsageError(
            f"{VARIABLE} is not a number of threads",
            expected=f"1..{MOST}",
            found=repr(value),
            code=ErrorCode.USAGE,
            hint=f"Unset it to use all cores, or set {VARIABLE}=1 to disable threads.",
        )
    return int(value)


def workers(most: int | None = None) -> int:
    """Number of threads that may compute at once.

    Parameters
    ----------
    most
        Upper bound; none by default.

    Returns
    -------
    int
        SQUISH_THREADS, or the number of cores that this process may use; at most `most`.

    Raises
    ------
    UsageError
        SQUISH_THREADS is not a number of threads.

    Examples
    --------
    >>> workers(most=1)
    1
    """
    count = thread_limit() or cores()
    return count if most is None else min(count, most)


class Pool:
    """A pool of up to `threads` threads, limited by SQUISH_THREADS; with SQUISH_THREADS=1 the caller's thread works.

    Leaving the `with` block waits for running calls and cancels the others.
    """

    def __init__(self, threads: int) -> None:
        from concurrent.futures import ThreadPoolExecutor

        limit = thread_limit()
        self._executor = None if limit == 1 else ThreadPoolExecutor(min(threads, limit or threads), "squish")

    def submit(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Start a call."""
        from concurrent.futures import Future

        if self._executor is not None:
            return self._executor.submit(function, *arguments)
        future = Future[Result]()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Results for all items, in order."""
        futures = [self.submit(function, item) for item in items]
        return [future.result() for future in futures]

    def close(self) -> None:
        """Wait for running calls and cancel the others."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def start_daemon(function: Callable[[], object], name: str) -> Thread:
    """Run a function in a thread that ends with the process.

    Parameters
    ----------
    function
        What to run; what it raises ends the thread.
    name
        Name of the thread.

    Returns
    -------
    threading.Thread
        The running thread.

    Examples
    --------
    >>> thread = start_daemon(lambda: None, "squish example")
    >>> thread.join()
    """
    import threading

    thread = threading.Thread(target=function, name=name, daemon=True)
    thread.start()
    return thread


def start_finishing(function: Callable[[], object], name: str, at_exit: Callable[[], object]) -> Thread:
    """Run a function in a thread that the process waits for when it ends, before its pools close.

    Parameters
    ----------
    function
        What to run; what it raises ends the thread.
    name
        Name of the thread.
    at_exit
        Called before the process waits for the thread, such as to say so.

    Returns
    -------
    threading.Thread
        The running thread.

    Examples
    --------
    >>> thread = start_finishing(lambda: None, "squish example", lambda: None)
    >>> thread.join()
    """
    import atexit
    import concurrent.futures.thread  # noqa: F401 - its pools close at exit in the reverse order of registration
    import threading

    thread = start_daemon(function, name)

    def finish() -> None:
        if thread.is_alive():
            at_exit()
            with contextlib.suppress(KeyboardInterrupt):
                thread.join()

    getattr(threading, "_register_atexit", atexit.register)(finish)
    return thread


class EventLoop:
    """A thread that runs coroutines: many requests wait in it at once. It computes nothing, so SQUISH_THREADS does not
    count it. `close` cancels what runs; so does the garbage collector, for an unused loop.

    Examples
    --------
    >>> import asyncio
    >>> loop = EventLoop()
    >>> loop.submit(asyncio.sleep(0, "done")).result()
    'done'
    >>> loop.close()
    """

    def __init__(self) -> None:
        import asyncio
        import threading
        import weakref

        self._process, self._asyncio = os.getpid(), asyncio
        self._futures = weakref.WeakSet[Any]()
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = start_daemon(partial(_run_loop, self._loop), "squish-io")
        self._stop = weakref.finalize(self, _stop_loop, self._loop, self._process)

    def submit(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Begin a coroutine; its future, or `close`, cancels it. FileAccessError in a forked process."""
        from concurrent.futures import Future

        if os.getpid() != self._process:
            coroutine.close()
            hint = "Open it in the process that reads it, or start processes by spawning."
            raise FileAccessError("was opened before this process was forked", code=ErrorCode.FORK, hint=hint)
        with self._lock:
            if not self._stop.alive:
                coroutine.close()
                ended = Future[Result]()
                ended.cancel()
                return ended
            future = self._asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            self._futures.add(future)
        return future

    def close(self) -> None:
        """Cancel what runs, and wait for the thread."""
        if os.getpid() != self._process:
            return
        with self._lock:
            self._stop()
        self._thread.join()
        for future in list(self._futures):
            future.cancel()


def _run_loop(loop: Any) -> None:
    import asyncio

    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    finally:
        loop.close()


def _stop_loop(loop: Any, process: int) -> None:
    if os.getpid() == process and not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)


def map_in_order(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    most: int = WORKERS,
    weigh: Callable[[Item], int] | None = None,
    budget: int = 0,
) -> Generator[Result, None, None]:
    """Map a function over items in several threads, a few items ahead; yields the results in order.

    Parameters
    ----------
    function
        Called once per item, in any thread.
    items
        Consumed as needed; for a single one no thread is started.
    most
        Maximum number of threads.
    weigh
        Weight of an item's result, such as its size in bytes.
    budget
        Maximum total weight of the results ahead and the last one, if there is `weigh`. A heavier item is computed
        alone.

    Yields
    ------
    object
        The result of each item.

    Examples
    --------
    >>> list(map_in_order(len, ["a", "bb", "ccc"]))
    [1, 2, 3]
    """
    items = iter(items)
    first = list(islice(items, 2))
    if len(first) < 2 or thread_limit() == 1:
        yield from map(function, chain(first, items))
        return
    count = workers(most)
    with Pool(count) as pool:
        futures: deque[Future[Result]] = deque()
        weights: deque[int] = deque()
        for item in chain(first, items):
            weight = weigh(item) if weigh else 0
            while futures and weigh and sum(weights) + weight > budget:
                yield futures.popleft().result()
                weights.popleft()
            futures.append(pool.submit(function, item))
            weights.append(weight)
            if len(futures) > count:
                yield futures.popleft().result()
                weights.popleft()
        while futures:
            yield futures.popleft().result()


def prefetch(items: Iterable[Item], ahead: int = 1) -> Iterator[Item]:
    """Iterate over items, computing up to `ahead` of them in advance in a thread.

    Examples
    --------
    >>> list(prefetch(iter("abc")))
    ['a', 'b', 'c']
    """
    iterator = iter(items)
    if thread_limit() == 1:
        yield from iterator
        return
    with Pool(1) as pool:
        following = deque(pool.submit(quietly, next, iterator, _END) for _ in range(ahead))
        while (item := following.popleft().result()) is not _END:
            following.append(pool.submit(quietly, next, iterator, _END))
            yield item
