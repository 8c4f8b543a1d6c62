"""The boundary around plugin code: whatever escapes becomes a typed error that says where."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from squish_core.errors import SquishError


class guarded:  # noqa: N801 - read as a verb in a with statement
    """Turn whatever escapes from a plugin into a typed error that says where.

    A class, because one is entered for every tensor: a generator would cost more than what it guards.
    """

    __slots__ = ("_context", "_kind", "_what")

    def __init__(self, kind: type[SquishError], what: str, **context: Any) -> None:
        self._kind, self._what, self._context = kind, what, context

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: Any, error: BaseException | None, trace: Any) -> None:
        kind, what = self._kind, self._what
        if isinstance(error, SquishError):
            error.within(**self._context).__suppress_context__ = True
        elif isinstance(error, MemoryError):
            raise kind(f"not enough memory while {what}", code="memory", **self._context) from error
        elif isinstance(error, OSError):  # a full disk, a failing one: not the plugin's doing
            raise kind(f"the system failed while {what}: {error}", code="os", **self._context) from error
        elif isinstance(error, Exception):
            raise kind(
                f"a plugin failed while {what}: {type(error).__name__}: {error}", code="plugin-bug",
                hint="Please report this, with what was asked and the file's header.", **self._context,
            ) from error  # fmt: skip


@contextmanager
def uncollected() -> Iterator[None]:
    """Let the garbage collector rest while thousands of small objects are made that all stay: it would look at
    everything in the process again and again, and find nothing."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
