"""The boundary around plugin code: whatever escapes becomes a typed error that says where."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from squish_core.codes import ErrorCode
from squish_core.errors import SquishError

Result = TypeVar("Result")


class guarded:  # noqa: N801 - read as a verb in a with statement
    """Turn whatever escapes from a plugin into a typed error that says where.

    NumPy's warnings about infinities and NaN are off inside, where it is loaded: a file may hold such values, and they
    are what is read. A class, because one is entered for every tensor: a generator would cost more than what it guards.
    """

    __slots__ = ("_context", "_errstate", "_kind", "_what")

    def __init__(self, kind: type[SquishError], what: str, **context: Any) -> None:
        self._kind, self._what, self._context = kind, what, context
        self._errstate: Any = None

    def __enter__(self) -> None:
        errstate = getattr(sys.modules.get("numpy"), "errstate", None) or self._imported()
        if errstate is not None:
            self._errstate = errstate(all="ignore")
            self._errstate.__enter__()

    def __exit__(self, _: Any, error: BaseException | None, trace: Any) -> None:
        if self._errstate is not None:
            self._errstate.__exit__(None, None, None)
        if error is None:
            return
        kind, what = self._kind, self._what
        if isinstance(error, SquishError):
            error.within(**self._context).__suppress_context__ = True
        elif isinstance(error, MemoryError):
            raise kind(f"not enough memory while {what}", code=ErrorCode.MEMORY, **self._context) from error
        elif isinstance(error, OSError):  # a full disk, a failing one: not the plugin's doing
            raise kind(f"the system failed while {what}: {error}", code="os", **self._context) from error
        elif isinstance(error, Exception):
            raise kind(
                f"a plugin failed while {what}: {type(error).__name__}: {error}", code=ErrorCode.PLUGIN_BUG,
                hint="Please report this, with what was asked and the file's header.", **self._context,
            ) from error  # fmt: skip

    def _imported(self) -> Any:
        """`numpy.errstate` where NumPy is not loaded: reading a header does not need it."""
        return None


class computing(guarded):  # noqa: N801 - read as a verb in a with statement
    """The same around what calculates, NumPy loaded: decoding, encoding, products."""

    __slots__ = ()

    def _imported(self) -> Any:
        import numpy as np

        return np.errstate


def quietly(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function without NumPy's warnings about infinities and NaN; for other threads, which have their own
    setting."""
    import numpy as np

    with np.errstate(all="ignore"):
        return function(*arguments)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Let the garbage collector rest while thousands of small objects are made that all stay: it would look at
    everything in the process again and again, and find nothing."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
