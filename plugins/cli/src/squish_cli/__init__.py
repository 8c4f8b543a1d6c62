"""The `squish` command line; typer is imported only when it runs."""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False  # typing takes 5 ms of the answer to a Tab
if TYPE_CHECKING:
    from collections.abc import Sequence


def process() -> int:
    """Run `main` as a process of its own, with rare garbage collection, which would take 80 ms; or answer a Tab."""
    if shell := os.environ.get("_SQUISH_COMPLETE"):
        from .complete import answer

        return answer(shell, sys.argv[1:])
    gc.set_threshold(50_000)
    code = main()
    gc.freeze()
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Run one `squish` command and return its exit code.

    0: success. 1: `verify` or `doctor` reports a fault, or `diff` a difference. 2: the command could not run.
    130: interrupted. 141: the reader of the output is gone. 143: terminated; half-written files are removed first.
    """
    import signal
    from contextlib import suppress

    handler = None
    with suppress(ValueError):  # outside the main thread, where no handler can be set
        handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        from .app import run

        return run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:  # also raised while modules are loading
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)
