"""The `squish` command line."""

from __future__ import annotations


def main() -> None:
    """Entry point of the `squish` command."""
    raise SystemExit("not built yet")
