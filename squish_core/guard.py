"""The boundary around plugin code: whatever escapes becomes a typed error that says where."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from squish_core.errors import SquishError


@contextmanager
def guarded(kind: type[SquishError], what: str, **context: Any) -> Iterator[None]:
    """Turn whatever escapes from a plugin into a typed error that says where."""
    try:
        yield
    except SquishError as error:
        raise error.within(**context) from error.__cause__
    except MemoryError as error:
        raise kind(f"not enough memory while {what}", code="memory", **context) from error
    except OSError as error:  # a full disk, a failing one: not the plugin's doing
        raise kind(f"the system failed while {what}: {error}", code="os", **context) from error
    except Exception as error:
        raise kind(
            f"a plugin failed while {what}: {type(error).__name__}: {error}", code="plugin-bug",
            hint="Please report this with the file's header.", **context,
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
