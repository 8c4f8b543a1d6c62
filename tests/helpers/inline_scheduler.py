"""A scheduler of this process: the tasks of a job one after the other, to test many jobs in little time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import squish_core as squish
from squish_core.api import Scheduler, SchedulerInfo, hookimpl


class InlineScheduler(Scheduler):
    """Calls the function for one item after the other."""

    def map(
        self, address: str, function: Callable[[Any], Any], items: Sequence[Any], memory: int = 0
    ) -> Iterator[tuple[int, Any]]:
        yield from enumerate(map(function, items))


@hookimpl
def squish_schedulers() -> list[SchedulerInfo]:
    """The scheduler of this module."""
    return [SchedulerInfo(id="inline", title="this process", factory="inline_scheduler:InlineScheduler")]


def inline_registry() -> squish.Registry:
    """The installed plugins, and the scheduler `inline`."""
    return squish.Registry(extra=[SimpleNamespace(squish_schedulers=squish_schedulers)])
