"""What a name needs, and how to install it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from squish_core.model import CodecSpec
from squish_core.plugins import catalog
from squish_core.plugins.entries import Entry
from squish_core.specs import parse_spec

HEAD = 4096
Tables = Mapping[str, Mapping[str, Entry]]


@frozen(kw_only=True)
class Requirement:
    """A format, codec, backend or encoder that is needed, and whether it is here.

    `kind` is None for a name that nobody knows; `dist` is the distribution that brings it, `install` the command that
    installs it. `others` are further ids of the same distribution that are needed, too.
    """

    id: str
    kind: str | None
    installed: bool
    dist: str | None = None
    install: str | None = None
    others: tuple[str, ...] = ()

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


def requirements(name: str, tables: Tables) -> list[Requirement]:
    """What a name needs: what it stands for, then the distributions of the codecs that this lacks."""
    for kind, table in tables.items():
        if name in table:
            return _with_codecs(kind, name, tables)
    kinds = [kind for kind in tables if catalog.package_for(kind, name)]
    if kinds:
        return _with_codecs(kinds[0], name, tables)
    codecs = list(dict.fromkeys(_codecs_of(name, tables)))
    if codecs:
        return _merged(item for codec in codecs for item in _with_codecs("codec", codec, tables))
    container = _format_of(name, tables["container"])
    if container is not None:
        return _with_codecs("container", container, tables)
    return [Requirement(id=name, kind=None, installed=False)]


def _with_codecs(kind: str, name: str, tables: Tables) -> list[Requirement]:
    """An id, and what it declares to need that is not installed."""
    entry = tables[kind].get(name)
    if entry is None:
        return [_absent(kind, name)]
    info: Any = entry.info
    base = getattr(info, "refines", None)
    absent = [_absent("container", base)] if base and base not in tables["container"] else []
    codecs = [*getattr(info, "codecs", ()), *getattr(info, "needs", ())]
    needed = [need for codec in codecs if codec in tables["codec"] for need in _needs(tables["codec"][codec])]
    absent += [_absent("codec", codec) for codec in (*codecs, *needed) if codec not in tables["codec"]]
    return [Requirement(id=name, kind=kind, installed=True, dist=entry.dist), *_merged(absent)]


def _needs(entry: Entry) -> tuple[str, ...]:
    return getattr(entry.info, "needs", ())


def _merged(items: Iterable[Requirement]) -> list[Requirement]:
    """One requirement for each distribution that is not installed, with all of its ids that are needed."""
    merged: dict[Any, Requirement] = {}
    ids: dict[Any, dict[str, None]] = {}
    for item in items:
        key = (item.kind, item.id) if item.installed or item.dist is None else item.dist
        merged.setdefault(key, item)
        ids.setdefault(key, {}).update(dict.fromkeys((item.id, *item.others)))
    fields = {key: {**asdict(item), "others": tuple(list(ids[key])[1:])} for key, item in merged.items()}
    return [Requirement(**field) for field in fields.values()]


def _codecs_of(name: str, tables: Tables) -> Iterator[str]:
    """Ids of the codecs that a short name stands for: by the codecs' own declarations, else by the formats'."""
    for kinds in (("codec", "encoder"), ("container",)):
        entries = [entry for kind in kinds for entry in tables[kind].values()]
        aliases = [getattr(entry.info, "aliases", {}) for entry in entries]
        texts = dict.fromkeys(declared[name] for declared in aliases if name in declared)
        if texts:
            for text in texts:
                spec: CodecSpec | None = parse_spec(text)
                while spec is not None:
                    yield spec.id
                    spec = spec.inner
            return
        if kinds[0] == "codec" and name in catalog.SHORT_NAMES:
            yield catalog.SHORT_NAMES[name]
            return


def _format_of(name: str, containers: Mapping[str, Entry]) -> str | None:
    """Id of the format of a file: by its first bytes or the names in a folder if it is there, else by its suffix."""
    path, found = Path(name), None
    if path.is_dir():
        members = tuple(sorted(os.listdir(path)))
        found = _by_signature("member", members, containers) or catalog.absent_format(b"", members)
    elif path.is_file():
        with path.open("rb") as file:
            head = file.read(HEAD)
        found = _by_signature("head", (head,), containers) or catalog.absent_format(head)
    suffixes = {suffix: entry.id for entry in containers.values() for suffix in getattr(entry.info, "suffixes", ())}
    longest = sorted((*suffixes, *catalog.SUFFIXES), key=len, reverse=True)
    suffix = next((suffix for suffix in longest if name.lower().endswith(suffix)), None)
    by_suffix = (suffixes.get(suffix) or catalog.SUFFIXES[suffix]) if suffix else None
    # A refinement's files begin as those of the format that it refines.
    refined = containers.get(by_suffix or "")
    return by_suffix if found is None or (refined and getattr(refined.info, "refines", None) == found) else found


def _by_signature(where: str, texts: Iterable[Any], containers: Mapping[str, Entry]) -> str | None:
    """The installed format with the longest signature that fits."""
    matches = [
        (len(signature.bytes), entry.id)
        for entry in containers.values() for signature in getattr(entry.info, "signatures", ())
        if signature.where == where and any(_fits(signature, text) for text in texts)
    ]  # fmt: skip
    return max(matches)[1] if matches else None


def _fits(signature: Any, text: Any) -> bool:
    if signature.where == "member":
        return bool(text.endswith(signature.bytes.decode()))
    return bool(text[signature.offset : signature.offset + len(signature.bytes)] == signature.bytes)


def _absent(kind: str, name: str) -> Requirement:
    package = catalog.package_for(kind, name)
    install = catalog.install_command(package) if package else None
    return Requirement(id=name, kind=kind, installed=False, dist=package, install=install)
