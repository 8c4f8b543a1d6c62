"""Guards around plugin code, which turn every exception into a typed error with its context."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from squish_core.codes import ErrorCode
from squish_core.errors import SquishError

Result = TypeVar("Result")


class boundary:  # noqa: N801 - read as a verb in a with statement
    """Turn any exception of a plugin into a typed error with its context.

    It is a class because it is entered for every tensor, and a generator would cost more than the guarded code.
    """

    __slots__ = ("_context", "_kind", "_what")

    def __init__(self, kind: type[SquishError], what: str, **context: Any) -> None:
        self._kind, self._what, self._context = kind, what, context

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            return
        kind, what = self._kind, self._what
        if isinstance(error, SquishError):
            error.within(**self._context).__suppress_context__ = True
        elif isinstance(error, MemoryError):
            raise kind(f"not enough memory while {what}", code=ErrorCode.MEMORY, **self._context) from error
        elif isinstance(error, OSError):  # such as a full or failing disk: not the plugin's fault
            raise kind(f"the system failed while {what}: {error}", code="os", **self._context) from error
        elif isinstance(error, Exception):
            raise kind(
                f"a plugin failed while {what}: {type(error).__name__}: {error}",
                code=ErrorCode.PLUGIN_BUG,
                hint="Please report this with the command and the header of the file.",
                **self._context,
            ) from error


class guarded(boundary):  # noqa: N801 - read as a verb in a with statement
    """A `boundary` that disables NumPy's warnings about infinities and NaN, if NumPy is loaded."""

    __slots__ = ("_errstate",)

    def __enter__(self) -> None:
        errstate = getattr(sys.modules.get("numpy"), "errstate", None) or self._imported()
        self._errstate: Any = None if errstate is None else errstate(all="ignore")
        if self._errstate is not None:
            self._errstate.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._errstate is not None:
            self._errstate.__exit__(None, None, None)
        super().__exit__(kind, error, trace)

    def _imported(self) -> Any:
        """`numpy.errstate` if NumPy is not loaded yet; None here, since reading a header does not need it."""
        return None


class computing(guarded):  # noqa: N801 - read as a verb in a with statement
    """A `guarded` for code that computes (decoding, encoding, products); loads NumPy."""

    __slots__ = ()

    def _imported(self) -> Any:
        import numpy as np

        return np.errstate


def quietly(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function without NumPy's warnings about infinities and NaN, a setting of each thread."""
    import numpy as np

    with np.errstate(all="ignore"):
        return function(*arguments)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause garbage collection while building many long-lived objects."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
