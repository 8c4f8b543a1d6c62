"""What formats, codecs, files and chains require, from which distributions, and the command that installs it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from attrs import asdict, evolve, field, frozen

from squish_core.backends.chain import ChainPlugin
from squish_core.model import CodecSpec, Encoding
from squish_core.plugins import catalog
from squish_core.plugins.entries import Entry
from squish_core.plugins.hookspecs import CodecInfo, ContainerInfo, Info, Signature
from squish_core.specs import parse_spec


class Provider(NamedTuple):
    """The distribution of an id, and the ids of its kind that it needs; `kind` is that of a codec."""

    distribution: str
    version: str
    needs: tuple[str, ...] = ()
    kind: str = ""


@frozen
class Providers:
    """(kind, id) -> provider, for the ids that chains use."""

    table: Mapping[tuple[str, str], Provider]
    _commands: dict[tuple[str, ...], str] = field(factory=dict, eq=False, repr=False)

    @classmethod
    def of(cls, tables: Mapping[str, Mapping[str, Entry[Any]]]) -> Providers:
        """Return the providers of the registry's tables."""
        return cls(
            {
                (kind, name): Provider(entry.dist, entry.version, *_needs(entry.info))
                for kind in ("container", "codec", "backend", "source")
                for name, entry in tables[kind].items()
            }
        )

    def used(self, container: str, encoding: Encoding, backend: str | None = None) -> tuple[ChainPlugin, ...]:
        """Return the plugins for an encoding, each once: its formats, codecs, byte codecs, and the backend."""
        rows = [*self.container(container), *self._codecs(encoding)]
        return tuple(dict.fromkeys([*rows, *([self.plugin("backend", "backend", backend)] if backend else [])]))

    def container(self, name: str) -> Iterator[ChainPlugin]:
        """Yield a format, and those that it refines."""
        yield self.plugin("container", "container", name)
        provider = self.table.get(("container", name))
        for base in provider.needs if provider else ():
            yield from self.container(base)

    def _codecs(self, encoding: Encoding) -> Iterator[ChainPlugin]:
        spec: CodecSpec | None = encoding.codec
        role = "codec"
        while spec is not None:
            yield from self._codec(role, spec.id)
            spec, role = spec.inner, "inner codec"
        for part in encoding.parts.values():
            for item in part.filters:
                yield from self._codec("byte codec", item.codec)

    def _codec(self, role: str, name: str) -> Iterator[ChainPlugin]:
        """Yield a codec, and those that it needs."""
        yield self.plugin(role, "codec", name)
        provider = self.table.get(("codec", name))
        for other in provider.needs if provider else ():
            needed = self.table.get(("codec", other))
            is_bytes = needed.kind == "bytes" if needed else other in catalog.byte_suffixes().values()
            yield from self._codec("byte codec" if is_bytes else "inner codec", other)

    def plugin(self, role: str, kind: str, name: str) -> ChainPlugin:
        """Return the plugin that provides an id, installed or not."""
        provider = self.table.get((kind, name))
        if provider is None:
            return ChainPlugin(role, name, catalog.package_for(kind, name), None)
        return ChainPlugin(role, name, provider.distribution, provider.version)

    def install(self, plugins: Iterable[ChainPlugin]) -> str:
        """Return the command that installs the core and the distributions of these plugins."""
        names = tuple(dict.fromkeys(["squish-core", *distributions(plugins)]))
        if names not in self._commands:  # asked for each tensor of a plan
            self._commands[names] = catalog.install_command(*names, fresh=True)
        return self._commands[names]


def distributions(plugins: Iterable[ChainPlugin]) -> list[str]:
    """Return the distributions of plugins, each once, the core first."""
    names = dict.fromkeys(plugin.package for plugin in plugins if plugin.package)
    return sorted(names, key=lambda name: name != "squish-core")


def _needs(info: Info) -> tuple[tuple[str, ...], str]:
    """Return the ids of its kind that a plugin needs, and the kind of a codec."""
    if isinstance(info, ContainerInfo):
        return (info.refines,) if info.refines else (), ""
    return (tuple(info.needs), info.kind) if isinstance(info, CodecInfo) else ((), "")


HEAD = 4096
Tables = Mapping[str, Mapping[str, Entry[Any]]]


@frozen(kw_only=True)
class Requirement:
    """A required format, codec, backend or encoder, and whether it is installed.

    `kind` is None for an unknown name. `dist` is the distribution that provides it, `install` the command to install
    it. `others`: more required ids of the same distribution.
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
    """Requirements of a name: the plugin it refers to, then the distributions of missing codecs."""
    for kind, table in tables.items():
        if name in table:
            return _with_codecs(kind, name, tables)
    kinds = [kind for kind in tables if catalog.package_for(kind, name)]
    if kinds:
        return _with_codecs(kinds[0], name, tables)
    codecs = list(dict.fromkeys(_codecs_of(name, tables)))
    if codecs:
        return _merged(item for codec in codecs for item in _with_codecs("codec", codec, tables))
    stem, byte_codec = _uncompressed(name, tables["codec"])
    container = _format_of(stem, tables["container"])
    if container is not None:
        codec = _with_codecs("codec", byte_codec, tables) if byte_codec else []
        return [*_with_codecs("container", container, tables), *(item for item in codec if not item.installed)]
    return [Requirement(id=name, kind=None, installed=False)]


def _with_codecs(kind: str, name: str, tables: Tables) -> list[Requirement]:
    """Requirements of an id: itself, and what it needs that is not installed."""
    entry = tables[kind].get(name)
    if entry is None:
        return [_absent(kind, name), *_merged(_known_needs(name, tables) if kind == "container" else ())]
    info = entry.info
    base = info.refines if isinstance(info, ContainerInfo) else None
    absent = [_absent("container", base)] if base and base not in tables["container"] else []
    codecs = info.codecs if isinstance(info, ContainerInfo) else info.needs if isinstance(info, CodecInfo) else ()
    indirect = [need for codec in codecs if codec in tables["codec"] for need in tables["codec"][codec].info.needs]
    absent += [_absent("codec", codec) for codec in (*codecs, *indirect) if codec not in tables["codec"]]
    return [Requirement(id=name, kind=kind, installed=True, dist=entry.dist), *_merged(absent)]


def _known_needs(container: str, tables: Tables) -> Iterator[Requirement]:
    """Missing codecs and base format of a format that is not installed, as far as the catalog lists them."""
    base = catalog.format_facts(container).get("refines")
    if base and base not in tables["container"]:
        yield _absent("container", base)
    present = {entry.dist for entry in tables["codec"].values()}
    for codec in catalog.format_facts(container).get("needs", ()):
        if catalog.package_for("codec", codec) not in present:
            yield _absent("codec", codec)


def _merged(items: Iterable[Requirement]) -> list[Requirement]:
    """Merge the requirements of each distribution that is not installed into one."""
    merged: dict[Any, Requirement] = {}
    ids: dict[Any, dict[str, None]] = {}
    for item in items:
        key = (item.kind, item.id) if item.installed or item.dist is None else item.dist
        merged.setdefault(key, item)
        ids.setdefault(key, {}).update(dict.fromkeys((item.id, *item.others)))
    return [evolve(item, others=tuple(ids[key])[1:]) for key, item in merged.items()]


def _codecs_of(name: str, tables: Tables) -> Iterator[str]:
    """Ids of the codecs that a short name stands for, from the declarations of codecs, else of formats."""
    for kinds in (("codec", "encoder"), ("container",)):
        entries = [entry for kind in kinds for entry in tables[kind].values()]
        aliases = [entry.info.aliases for entry in entries]
        texts = dict.fromkeys(table[name] for table in aliases if name in table)
        if texts:
            for text in texts:
                spec: CodecSpec | None = parse_spec(text)
                while spec is not None:
                    yield spec.id
                    spec = spec.inner
            return
        if codec := catalog.short_names(*kinds).get(name):
            yield codec
            return


def _uncompressed(name: str, codecs: Mapping[str, Entry[CodecInfo]]) -> tuple[str, str | None]:
    """Return a file name without the suffix of a compressed file, and the byte codec that compressed it, if any."""
    suffixes = {entry.info.suffix: entry.id for entry in codecs.values()}
    for suffix, codec in {**catalog.byte_suffixes(), **suffixes}.items():
        if suffix and name.lower().endswith(suffix):
            return name[: -len(suffix)], codec
    return name, None


def _format_of(name: str, containers: Mapping[str, Entry[ContainerInfo]]) -> str | None:
    """Format of a file or folder: from its content if it exists, else from its suffix."""
    path, by_content = Path(name), None
    if path.is_dir():
        members = tuple(sorted(os.listdir(path)))
        by_content = _by_signature("member", members, containers) or catalog.absent_format(b"", members)
    elif path.is_file():
        with path.open("rb") as file:
            head = file.read(HEAD)
        by_content = _by_signature("head", (head,), containers) or catalog.absent_format(head)
    suffixes = {suffix: entry.id for entry in containers.values() for suffix in entry.info.suffixes}
    longest = sorted((*suffixes, *catalog.suffixes()), key=len, reverse=True)
    suffix = next((suffix for suffix in longest if name.lower().endswith(suffix)), None)
    by_suffix = (suffixes.get(suffix) or catalog.suffixes()[suffix]) if suffix else None
    # Files of a refinement have the signature of the base format.
    refined = containers.get(by_suffix or "")
    is_refined = refined is not None and refined.info.refines == by_content
    return by_suffix if by_content is None or is_refined else by_content


def _by_signature(where: str, texts: Iterable[Any], containers: Mapping[str, Entry[ContainerInfo]]) -> str | None:
    """Return the installed format with the longest matching signature."""
    matches = [
        (len(signature.bytes), entry.id)
        for entry in containers.values()
        for signature in entry.info.signatures
        if signature.where == where and any(_matches(signature, text) for text in texts)
    ]
    return max(matches)[1] if matches else None


def _matches(signature: Signature, text: Any) -> bool:
    if signature.where == "member":
        return bool(text.endswith(signature.bytes.decode()))
    return bool(text[signature.offset : signature.offset + len(signature.bytes)] == signature.bytes)


def _absent(kind: str, name: str) -> Requirement:
    package = catalog.package_for(kind, name)
    install = catalog.install_command(package) if package else None
    return Requirement(id=name, kind=kind, installed=False, dist=package, install=install)
