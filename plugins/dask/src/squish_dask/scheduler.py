"""Tasks on the workers of a Dask cluster: at an address, of the current client, or local."""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from squish_core.api import ErrorCode, MissingPluginError, Scheduler, SquishError, install_command, lost_worker, workers

MEMORY = "memory"
"""Resource, in bytes, that workers may declare (`dask worker --resources memory=64e9`) and tasks then request."""
THREADS = "SQUISH_THREADS"
TIMEOUT = 30
"""Seconds to wait for a scheduler."""
PATIENCE = 30
"""Seconds without a result between checks of the cluster's workers."""
POLL = 0.05
"""Seconds between two checks for results."""


class DaskScheduler(Scheduler):
    """`dask` or `dask:ADDRESS`, such as `dask:tcp://10.0.0.1:8786`."""

    id = "dask"

    def map(
        self, address: str, function: Callable[[Any], Any], items: Sequence[Any], memory: int = 0
    ) -> Iterator[tuple[int, Any]]:
        """Run tasks as in `Scheduler`; only arguments and results pass through Dask's scheduler."""
        try:
            from distributed import KilledWorker, as_completed
        except ModuleNotFoundError:
            raise MissingPluginError(
                "the scheduler 'dask' needs distributed",
                code=ErrorCode.NOT_INSTALLED,
                hint=f"Run `{install_command('distributed')}`.",
            ) from None
        with ExitStack() as stack:
            client = _client(address, stack)
            options: Any = {"pure": False, "resources": _resources(client, memory)}
            call = partial(call_in_one_thread, function)
            futures = client.map(call, items, key=f"squish-{os.urandom(8).hex()}", **options)
            numbers = {future.key: number for number, future in enumerate(futures)}
            stack.callback(client.cancel, futures)
            losses, completed = Counter[int](), as_completed(futures, loop=client.loop)
            for future in _finished(completed, client, options["resources"]):
                number = numbers[future.key]
                try:
                    yield number, _answer(future)
                except KilledWorker as error:  # after as many losses as the cluster allows
                    losses[number] += error.allowed_failures + 1
                    if losses[number] > self.retries:
                        raise lost_worker(number, f"at last {error.last_worker.address}") from error
                    again = client.submit(call, items[number], key=f"{future.key}-{losses[number]}", **options)
                    numbers[again.key] = number
                    futures.append(again)
                    completed.add(again)
                future.release()


def call_in_one_thread(function: Callable[[Any], Any], item: Any) -> Any:
    """Call a function on a worker with single-threaded loops, because a worker runs one task per thread.

    SQUISH_THREADS in the worker's environment overrides it.
    """
    os.environ.setdefault(THREADS, "1")
    return function(item)


def _client(address: str, stack: ExitStack) -> Any:
    """Return a client of the cluster; `stack` closes what the job creates."""
    from dask import config
    from distributed import Client, LocalCluster, default_client

    if not address and not config.get("scheduler-address", None):
        try:
            return default_client()
        except ValueError:  # there is none
            with config.set({"distributed.scheduler.allowed-failures": Scheduler.retries}):
                cluster = LocalCluster(n_workers=workers(), threads_per_worker=1, dashboard_address=None)
            address = stack.enter_context(cluster).scheduler_address
    try:
        client = Client(address or None, timeout=TIMEOUT, set_as_default=False)
    except (OSError, ValueError) as error:
        raise SquishError(
            "the Dask scheduler cannot be reached",
            found=f"{address}: {error}",
            code=ErrorCode.UNREACHABLE,
            expected="an address such as dask:tcp://10.0.0.1:8786",
        ) from error
    return stack.enter_context(client)


def _resources(client: Any, memory: int) -> dict[str, int] | None:
    """Return the memory that a task requests if all workers declare theirs; otherwise no worker would accept it."""
    states = client.scheduler_info(n_workers=-1)["workers"].values()
    return {MEMORY: memory} if states and all(MEMORY in state["resources"] for state in states) else None


def _finished(completed: Any, client: Any, resources: dict[str, int] | None) -> Iterator[Any]:
    """Yield futures as they finish; warn while no worker can accept a task."""
    while completed.count():
        deadline = time.monotonic() + PATIENCE
        while not completed.has_ready():
            time.sleep(POLL)
            if time.monotonic() > deadline:
                _warn_if_idle(client, resources)
                deadline = time.monotonic() + PATIENCE
        yield next(completed)


def _warn_if_idle(client: Any, resources: dict[str, int] | None) -> None:
    """Warn if the cluster has no worker, or none with the memory that a task requests."""
    states = client.scheduler_info(n_workers=-1)["workers"].values()
    memory = (resources or {}).get(MEMORY, 0)
    if any(state["resources"].get(MEMORY, 0) >= memory for state in states):
        return
    need = f" with --resources {MEMORY}={memory} or more" if states else ""
    warnings.warn(
        f"the Dask cluster at {client.scheduler.address} has no worker{need}; the job waits until one connects",
        stacklevel=2,
    )


def _answer(future: Any) -> Any:
    """Return the result of a task, or raise the error of its worker."""
    from distributed.scheduler import NoValidWorkerError, NoWorkerError

    try:
        return future.result()
    except (NoValidWorkerError, NoWorkerError) as error:  # the cluster's own limit
        raise SquishError(
            f"no worker took the task within {error.timeout:g} s",
            code="worker",
            hint="Start workers; the cluster's setting distributed.scheduler.no-workers-timeout limits the wait.",
        ) from error
    except ImportError as error:
        raise MissingPluginError(
            f"a worker cannot import {error.name}",
            code=ErrorCode.NOT_INSTALLED,
            hint="Install the same distributions of Squish for all workers.",
        ) from error
