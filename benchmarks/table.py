"""Rows of a benchmark as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from attrs import frozen


class Section(NamedTuple):
    """A section of docs/benchmarks.md, and the plots (SVG by file name, in docs/benchmarks/) that it shows."""

    text: str
    plots: Mapping[str, str]


@frozen
class Row:
    """One operation: our median seconds, those of each peer, and the bytes it processes (0: no rate)."""

    operation: str
    ours: float
    peers: dict[str, float]
    nbytes: int = 0
    target: str = ""

    def ratios(self) -> str:
        """Our speed relative to each peer: 2 is twice as fast."""
        return ", ".join(f"{name} {seconds / self.ours:.2f}x" for name, seconds in self.peers.items())


def markdown(title: str, note: str, rows: Iterable[Row]) -> str:
    """A section of docs/benchmarks.md."""
    header = "| operation | ours | rate | speed relative to | target |"
    lines = [f"## {title}", "", note, "", header, "|---|---|---|---|---|"]
    for row in rows:
        rate = f"{row.nbytes / row.ours / 1e9:.2f} GB/s" if row.nbytes else ""
        lines.append(f"| {row.operation} | {format_seconds(row.ours)} | {rate} | {row.ratios()} | {row.target} |")
    return "\n".join([*lines, ""])


def format_seconds(seconds: float) -> str:
    """Seconds as text: "12.3 ms", "4.56 s"."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
