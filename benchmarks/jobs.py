"""Jobs: one digest however they run, workers and their memory, the journal, and a job of 10^5 tensors."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.job_digests import digests
from benchmarks.job_model import Rates
from benchmarks.job_workers import workers
from benchmarks.simulated_job import simulated


def run(quick: bool) -> str:
    """The sections of the page."""
    rates = Rates()
    with tempfile.TemporaryDirectory(prefix="squish-") as folder:
        lines = digests(Path(folder), quick)
    with tempfile.TemporaryDirectory(prefix="squish-") as folder:
        lines += workers(Path(folder), quick, rates)
    return "\n".join(("## Jobs", "", *lines, simulated(quick, rates)))
