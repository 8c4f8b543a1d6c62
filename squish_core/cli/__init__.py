"""The `squish` command line (extra `cli`); typer is imported only when it runs."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from contextlib import suppress


def main(argv: Sequence[str] | None = None) -> int:
    """Run one `squish` command and return its exit code.

    0: fine. 1: `verify` or `doctor` found a fault, or `diff` a difference. 2: it cannot run. 130: interrupted.
    143: told to stop; what was half written is removed then, too.
    """
    before = None
    with suppress(ValueError):  # not in the main thread: signals are another's business
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:  # also while modules are still being loaded
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _run(argv: Sequence[str]) -> int:
    try:
        from squish_core.cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "click"):
            raise
        print("error: the command line needs typer. Run `pip install typer rich`.", file=sys.stderr)
        return 2
    return run(argv)
