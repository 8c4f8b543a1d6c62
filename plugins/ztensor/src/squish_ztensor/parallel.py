"""Work on several cores, with results in order and memory for a few of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from os import cpu_count
from typing import TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


def in_order(work: Callable[[Job], Result], jobs: Iterable[Job]) -> Generator[Result, None, None]:
    """Results in the order of the jobs, a few jobs ahead of the one asked for. A single job starts no thread.

    Closing it cancels the jobs that have not started, and waits for the others.
    """
    jobs = iter(jobs)
    first = list(islice(jobs, 2))
    if len(first) < 2:
        yield from map(work, first)
        return
    workers = min(8, cpu_count() or 1)
    pool = ThreadPoolExecutor(workers)
    try:
        waiting: list[Future[Result]] = []
        for job in chain(first, jobs):
            waiting.append(pool.submit(work, job))
            if len(waiting) > workers:
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)
