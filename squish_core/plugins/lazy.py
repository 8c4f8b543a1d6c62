"""Lazy modules: names loaded on first use, as in `squish_core`, `squish_core.api` and the plugins' interfaces."""

from __future__ import annotations

# `import squish_core` runs this, so typing and importlib are imported only when a name is used.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_exports(
    interface: str, names: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Make `__getattr__`, `__dir__` and `__all__` for a module that re-exports names from other modules.

    Parameters
    ----------
    interface
        Name of the module, `__name__`.
    names
        Absolute name of a module -> names to export from it; a name may be a submodule.

    Returns
    -------
    tuple
        `__getattr__`, `__dir__` and `__all__`, in this order.

    Raises
    ------
    AttributeError
        From `__getattr__`, for a name that is not exported.
    MissingPluginError
        From `__getattr__`, for a name from a package of this repository that is not installed.

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
            from importlib import import_module

            try:
                module = import_module(homes[name])
                cache[name] = getattr(module, name) if hasattr(module, name) else import_module(f"{homes[name]}.{name}")
            except ModuleNotFoundError as error:
                raise _missing(f"{interface}.{name}", error) from error
        return cache[name]

    return load, lambda: sorted(homes), sorted(homes)


def _missing(name: str, error: ModuleNotFoundError) -> Exception:
    """The MissingPluginError for a name whose package is not installed; the error itself for any other module."""
    from squish_core.codes import ErrorCode
    from squish_core.errors import MissingPluginError
    from squish_core.plugins.catalog import RELEASED_TOGETHER, install_command

    package = RELEASED_TOGETHER.get(error.name or "")
    if package is None:
        return error
    return MissingPluginError(
        f"{name} needs {package}, which is not installed",
        code=ErrorCode.NOT_INSTALLED,
        hint=f"Run `{install_command(package)}`.",
    )
