"""Records of the registry: declarations with their distributions, broken plugins, and settings."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from attrs import asdict, frozen

from squish_core.errors import ConflictError
from squish_core.plugins.hookspecs import Info

VARIABLE = "SQUISH_PLUGINS"
"""The environment variable with the settings."""
InfoT = TypeVar("InfoT", bound=Info, covariant=True)

_BYTES = ("signature", "signatures", "skippable")
"""Fields of declarations that JSON cannot represent."""


@frozen(kw_only=True, repr=False)
class Entry(Generic[InfoT]):
    """A declaration and its distribution."""

    info: InfoT
    dist: str
    version: str = ""

    @property
    def id(self) -> str:
        """Id in the declaration."""
        return self.info.id

    def __repr__(self) -> str:
        return f"<{type(self.info).__name__.removesuffix('Info')} {self.id!r} of {self.dist} {self.version}>"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        data = {key: value for key, value in asdict(self.info).items() if key not in _BYTES}
        return {**data, "dist": self.dist, "version": self.version}


@frozen(kw_only=True)
class Broken:
    """A plugin that cannot be used, with the reason."""

    dist: str
    name: str
    reason: str


@frozen(kw_only=True)
class Loaded:
    """A loaded plugin: distribution, name and version."""

    dist: str
    name: str
    version: str


@frozen
class Settings:
    """Parsed `SQUISH_PLUGINS`: "-name" blocks, "+name" allows only the listed plugins, "id=dist" prefers.

    A name is a distribution or an entry point; after "+" also an id that a plugin provides. Blocked plugins are never
    imported.
    """

    allow: frozenset[str] = frozenset()
    block: frozenset[str] = frozenset()
    prefer: Mapping[str, str] = {}

    @classmethod
    def parse(cls, text: str) -> Settings:
        """Parse "+a,-b,id=dist"."""
        items = [item.strip() for item in text.split(",") if item.strip()]
        bad = [item for item in items if item[0] not in "+-" and "=" not in item]
        if bad:
            raise ConflictError(
                "invalid plugin settings", found=repr(bad[0]), code="settings",
                hint=f"{VARIABLE} takes +name (only these), -name (not this) and id=distribution, with commas.",
            )  # fmt: skip
        return cls(
            frozenset(item[1:] for item in items if item[0] == "+"),
            frozenset(item[1:] for item in items if item[0] == "-"),
            dict(item.split("=", 1) for item in items if item[0] not in "+-"),
        )

    def allows(self, *names: str) -> bool:
        """Whether a plugin with any of these names may be used."""
        return not self.blocks(*names) and (not self.allow or bool(self.allow.intersection(names)))

    def blocks(self, *names: str) -> bool:
        """Whether a plugin with any of these names must not be used."""
        return bool(self.block.intersection(names))

    def check(self, dists: set[str], names: set[str]) -> None:
        """Warn of unknown names: a typo would allow or block the wrong plugin."""
        if unknown := sorted({*self.allow, *self.block, *self.prefer.values()} - dists - names):
            installed = ", ".join(sorted(dists))
            warnings.warn(f"{VARIABLE}: no plugin is called {', '.join(unknown)}; installed: {installed}", stacklevel=3)
