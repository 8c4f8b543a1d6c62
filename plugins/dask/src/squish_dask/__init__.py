"""Declares the scheduler; imports neither it nor Dask."""

from __future__ import annotations

from squish_core.api import SchedulerInfo, hookimpl


@hookimpl
def squish_schedulers() -> list[SchedulerInfo]:
    """Return the scheduler of this plugin."""
    return [SchedulerInfo(id="dask", title="workers of a Dask cluster", factory="squish_dask.scheduler:DaskScheduler")]
