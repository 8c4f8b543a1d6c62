"""Old names of methods, which work in this version with a DeprecationWarning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from inspect import isfunction, signature
from typing import Any, ClassVar


class Renamed:
    """Base of classes with renamed methods: `renamed` maps old names to new ones, for callers and overrides."""

    renamed: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for old, new in cls.renamed.items():
            if old in vars(cls) and new not in vars(cls):
                _warn(f"{cls.__name__}.{old}", new)
                setattr(cls, new, vars(cls)[old])
        for old, new in vars(cls).get("renamed", {}).items():
            setattr(cls, old, _OldName(old, new))


def adapt_encode(cls: type) -> None:
    """Let an `encode` with the old argument `stats={"activations": ...}` take `activations=`, with a warning."""
    encode: Any = getattr(cls, "encode", None)
    if not isfunction(encode) or "stats" not in signature(encode).parameters:
        return
    _warn(f"{cls.__name__}.encode(stats=)", "encode(activations=)")

    def adapted(self: Any, panel: Any, params: Any, *, activations: Any = None) -> Any:
        return encode(self, panel, params, stats=None if activations is None else {"activations": activations})

    cls.encode = adapted  # type: ignore[attr-defined]


class _OldName:
    """Descriptor for an old name of a method. `__getattr__` instead would slow down every attribute."""

    __slots__ = ("new", "old")

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            raise AttributeError(f"type object {owner.__name__!r} has no attribute {self.old!r}")
        _warn(f"{owner.__name__}.{self.old}", self.new)
        return getattr(instance, self.new)


def _warn(old: str, new: str) -> None:
    warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=3)
