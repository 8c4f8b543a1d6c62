"""Interfaces of plugins that load each name on first use, like `squish_core.api`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_exports(
    interface: str, names: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The `__getattr__`, `__dir__` and `__all__` of a module whose names live in other modules.

    Parameters
    ----------
    interface
        Name of the module, `__name__`.
    names
        Home module, as an absolute name -> the names that it exports.

    Examples
    --------
    >>> getattr_, dir_, all_ = lazy_exports("example.api", {"fractions": ("Fraction",)})
    >>> all_
    ['Fraction']
    >>> getattr_("Fraction")
    <class 'fractions.Fraction'>
    """
    homes = {name: module for module, members in names.items() for name in members}
    cache: dict[str, Any] = {}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {interface!r} has no attribute {name!r}")
        if name not in cache:
            cache[name] = getattr(importlib.import_module(homes[name]), name)
        return cache[name]

    return load, lambda: sorted(homes), sorted(homes)
