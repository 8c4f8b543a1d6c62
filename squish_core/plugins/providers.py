"""Which distribution provides each id, as plain data: what a chain uses, and the command that installs it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from attrs import field, frozen

from squish_core.backends.chain import ChainPlugin
from squish_core.model import CodecSpec, Encoding
from squish_core.plugins import catalog
from squish_core.plugins.entries import Entry
from squish_core.plugins.hookspecs import CodecInfo, ContainerInfo, Info


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
        """The providers of the registry's tables."""
        return cls({
            (kind, name): Provider(entry.dist, entry.version, *_needs(entry.info))
            for kind in ("container", "codec", "backend", "source") for name, entry in tables[kind].items()
        })  # fmt: skip

    def used(self, container: str, encoding: Encoding, backend: str | None = None) -> tuple[ChainPlugin, ...]:
        """The plugins for an encoding, each once: its formats, codecs, byte codecs, and the backend."""
        rows = [*self.container(container), *self._codecs(encoding)]
        return tuple(dict.fromkeys([*rows, *([self.plugin("backend", "backend", backend)] if backend else [])]))

    def container(self, name: str) -> Iterator[ChainPlugin]:
        """A format, and those that it refines."""
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
        """A codec, and those that it needs."""
        yield self.plugin(role, "codec", name)
        provider = self.table.get(("codec", name))
        for other in provider.needs if provider else ():
            needed = self.table.get(("codec", other))
            is_bytes = needed.kind == "bytes" if needed else other in catalog.byte_suffixes().values()
            yield from self._codec("byte codec" if is_bytes else "inner codec", other)

    def plugin(self, role: str, kind: str, name: str) -> ChainPlugin:
        """The plugin that provides an id, installed or not."""
        provider = self.table.get((kind, name))
        if provider is None:
            return ChainPlugin(role, name, catalog.package_for(kind, name), None)
        return ChainPlugin(role, name, provider.distribution, provider.version)

    def install(self, plugins: Iterable[ChainPlugin]) -> str:
        """The command that installs the core and the distributions of these plugins."""
        names = tuple(dict.fromkeys(["squish-core", *distributions(plugins)]))
        if names not in self._commands:  # asked for each tensor of a plan
            self._commands[names] = catalog.install_command(*names, fresh=True)
        return self._commands[names]


def distributions(plugins: Iterable[ChainPlugin]) -> list[str]:
    """The distributions of plugins, each once, the core first."""
    names = dict.fromkeys(plugin.distribution for plugin in plugins if plugin.distribution)
    return sorted(names, key=lambda name: name != "squish-core")


def _needs(info: Info) -> tuple[tuple[str, ...], str]:
    """The ids of its kind that a plugin needs, and the kind of a codec."""
    if isinstance(info, ContainerInfo):
        return (info.refines,) if info.refines else (), ""
    return (tuple(info.needs), info.kind) if isinstance(info, CodecInfo) else ((), "")
