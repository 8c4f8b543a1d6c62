"""Lazy modules: names loaded on first use, as in `squish_core`, `squish_core.api` and the plugins' interfaces."""

from __future__ import annotations

# `import squish_core` runs this, so typing and importlib are imported only when a name is used.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_exports(
    interface: str, names: Mapping[str, tuple[str, ...]], renamed: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Make `__getattr__`, `__dir__` and `__all__` for a module that re-exports names from other modules.

    Parameters
    ----------
    interface
        Name of the module, `__name__`.
    names
        Absolute name of a module -> names to export from it; a name may be a submodule.
    renamed
        Old name -> new name, possibly an attribute (`Owner.NAME`). Old names work with a DeprecationWarning.

    Returns
    -------
    tuple
        `__getattr__`, `__dir__` and `__all__`, in this order.

    Raises
    ------
    AttributeError
        From `__getattr__`, for a name that is not exported.

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
        if renamed and name in renamed:
            import warnings

            warnings.warn(f"{interface}.{name} is now {renamed[name]}", DeprecationWarning, stacklevel=2)
            name = renamed[name]
        owner, dot, member = name.partition(".")
        if dot:
            return getattr(load(owner), member)
        if name not in homes:
            raise AttributeError(f"module {interface!r} has no attribute {name!r}")
        if name not in cache:
            from importlib import import_module

            try:
                cache[name] = getattr(import_module(homes[name]), name)
            except AttributeError:
                cache[name] = import_module(f"{homes[name]}.{name}")
        return cache[name]

    return load, lambda: sorted(homes), sorted(homes)
