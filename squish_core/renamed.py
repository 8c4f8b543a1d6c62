"""Old names of methods that plugins override or call: they work in this version, with a DeprecationWarning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar


class Renamed:
    """Base of a plugin interface whose methods have had other names: `renamed` maps each old name to the new one."""

    renamed: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for old, new in cls.renamed.items():
            if old in vars(cls) and new not in vars(cls):
                _warn(f"{cls.__name__}.{old}", new)
                setattr(cls, new, vars(cls)[old])

    if not TYPE_CHECKING:  # type checkers would believe that every attribute exists

        def __getattr__(self, name: str) -> Any:
            new = type(self).renamed.get(name)
            if new is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            _warn(f"{type(self).__name__}.{name}", new)
            return getattr(self, new)


def _warn(old: str, new: str) -> None:
    warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=3)
