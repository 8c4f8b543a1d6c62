"""A model of a job on many machines: its seconds from the rates that are measured here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MACHINES, CORES, NETWORK = (5, 50), 16, 1.25e9
"""Machines, cores of each of them, and bytes that each transfers in a second (10 Gbit/s)."""


@dataclass
class Rates:
    """Rates of one core: `values` encoded to q4_k, bytes hashed (`hash`); seconds of a synced line of the journal."""

    values: float = 0.0
    hash: float = 0.0
    line: float = 0.0


@dataclass
class JobFacts:
    """A job: its tasks, the bytes that it reads and writes, the values that it encodes; seconds until the client sends
    the first task, and until a worker has the job open."""

    title: str
    tasks: int
    read: int
    written: int
    encoded: int
    client: float
    worker: float

    def compute(self, rates: Rates) -> float:
        """Core seconds of the work: encoding, and the digest of everything written."""
        return self.encoded / rates.values + self.written / rates.hash

    def seconds(self, rates: Rates, machines: int) -> float:
        """Seconds of the job: the start, then the slower of processors and network; the journal runs beside them."""
        work = self.compute(rates) / (machines * CORES)
        return self.client + self.worker + max(work, self.network(machines), self.tasks * rates.line)

    def network(self, machines: int) -> float:
        """Seconds to transfer what is read and written."""
        return (self.read + self.written) / (machines * NETWORK)


def estimate(rates: Rates, jobs: Sequence[JobFacts]) -> list[str]:
    """The estimate as a table: a column for each job."""
    few, many = MACHINES
    totals = {
        f"**total, {count} machines**": [f"{job.seconds(rates, count):.0f} s" for job in jobs] for count in MACHINES
    }
    rows = {
        "bytes read, written": [f"{job.read / 1e9:.0f} GB, {job.written / 1e9:.0f} GB" for job in jobs],
        "start: client, then each worker": [f"{job.client:.0f} s, {job.worker:.0f} s" for job in jobs],
        "core seconds of work": [f"{job.compute(rates):,.0f}" for job in jobs],
        f"work, network of {many} machines": [
            f"{job.compute(rates) / (many * CORES):.0f} s, {job.network(many):.0f} s" for job in jobs
        ],
        "journal, while workers run": [f"{job.tasks * rates.line:.0f} s" for job in jobs],
        **totals,
    }  # fmt: skip
    return [
        f"## An estimate for {few} and {many} machines",
        "",
        (
            f"Each with {CORES} cores, one worker per core, and {NETWORK / 1e9:.2f} GB/s. One core here encodes "
            f"{rates.values / 1e6:.0f} million values per second to q4_k and hashes {rates.hash / 1e9:.2f} GB/s; a line of "
            f"the journal takes {rates.line * 1e3:.1f} ms. The start is that of the simulated job above."
        ),
        "",
        f"| | {' | '.join(job.title for job in jobs)} |",
        f"|---|{'---|' * len(jobs)}",
        *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()),
    ]
