"""What an id needs, and how to install it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import asdict, frozen

from squish_core.plugins import catalog
from squish_core.plugins.entries import Entry


@frozen(kw_only=True)
class Requirement:
    """A format, codec, backend or encoder that is needed, and whether it is here.

    `kind` is None for an id that nobody knows; `dist` is the distribution that brings it, `install` the command that
    installs it.
    """

    id: str
    kind: str | None
    installed: bool
    dist: str | None = None
    install: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON.

        Returns
        -------
        dict
            The fields by name.

        Examples
        --------
        >>> Requirement(id="gguf", kind="container", installed=True, dist="squish-gguf").to_dict()["dist"]
        'squish-gguf'
        """
        return asdict(self)


def requirements(name: str, tables: Mapping[str, Mapping[str, Entry]]) -> list[Requirement]:
    """What an id needs: itself, then the codecs that it declares and that are not installed."""
    for kind, table in tables.items():
        if name in table:
            entry = table[name]
            codecs = [codec for codec in getattr(entry.info, "codecs", ()) if codec not in tables["codec"]]
            own = Requirement(id=name, kind=kind, installed=True, dist=entry.dist)
            return [own, *(_absent("codec", codec) for codec in codecs)]
    kinds = [kind for kind in tables if catalog.package_for(kind, name)]
    return [_absent(kinds[0] if kinds else None, name)]


def _absent(kind: str | None, name: str) -> Requirement:
    package = catalog.package_for(kind, name) if kind else None
    install = catalog.install_command(package) if package else None
    return Requirement(id=name, kind=kind, installed=False, dist=package, install=install)
