"""`squish needs`: the formats, codecs, byte codecs and backend that a file needs, by its header, installed or not."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from attrs import frozen

from squish_core.backends.chain import ChainPlugin
from squish_core.backends.resolve import Resolver
from squish_core.codes import ErrorCode
from squish_core.detect import absent_refinements
from squish_core.display import table
from squish_core.errors import SquishError, redact
from squish_core.model import CodecSpec, Encoding, TensorSpec
from squish_core.opening import open as open_file
from squish_core.plugins import catalog
from squish_core.plugins.registry import Registry
from squish_core.plugins.registry import registry as installed
from squish_core.plugins.requirements import distributions
from squish_core.plugins.sources import scheme_of, source_entry, source_package
from squish_core.specs import parse_spec

from .options import Format
from .output import Answer

if TYPE_CHECKING:
    from squish_core.file import File
    from squish_core.plugins.requirements import Requirement

FileOrId = Annotated[
    str, typer.Argument(metavar="FILE", help="A file of weights, a model's folder or a URL; or an id, such as gguf.")
]
Backend = Annotated[
    str | None, typer.Option("--backend", metavar="ID", help="Also list what running the file on this backend needs.")
]
Requirements = Annotated[
    bool, typer.Option("--requirements", help="Print the packages as pip's requirements file, one a line.")
]


def needs(
    file: FileOrId,
    backend: Backend = None,
    requirements: Requirements = False,
    format: Format = None,  # noqa: A002
) -> Answer:
    """List the plugins that a file needs, and which are missing.

    Reads only the header. Lists its format, the codecs of its tensors and their packages, then the command that
    installs what is missing. Exit code 1 if something is missing.
    """
    answer = needs_of(file, backend, format)
    lines = answer.requirements() if requirements else list(answer.lines())
    return Answer(answer.to_dict(), lines, 0 if answer.ok else 1, verbatim=requirements)


@frozen(kw_only=True)
class Needs:
    """The plugins that reading a file needs, and why installed ones cannot be used here."""

    file: str
    plugins: tuple[ChainPlugin, ...]
    broken: dict[ChainPlugin, str]

    @property
    def ok(self) -> bool:
        """Whether everything is installed and can be used."""
        return not self.broken and not self.missing

    @property
    def missing(self) -> list[ChainPlugin]:
        """The plugins that are not installed."""
        return [plugin for plugin in self.plugins if plugin.version is None]

    @property
    def install(self) -> str | None:
        """The command that installs what is missing."""
        names = distributions(self.missing)
        return catalog.install_command(*names) if names else None

    def requirements(self) -> list[str]:
        """Return the distributions, installed or not, as lines of a requirements file."""
        names = dict.fromkeys(["squish-core", *distributions(self.plugins)])
        return [_requirement(each) for each in dict.fromkeys(other for name in names for other in _with_needs(name))]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        rows = [{**plugin._asdict(), "state": self._state(plugin)} for plugin in self.plugins]
        return {"file": self.file, "ok": self.ok, "plugins": rows, "install": self.install}

    def lines(self) -> Iterator[str]:
        """Yield a table, then what to do."""
        origins = [f"{plugin.package or '-'} {plugin.version or ''}".strip() for plugin in self.plugins]
        rows = [(self._state(plugin), plugin.role, plugin.id, origin) for plugin, origin in zip(self.plugins, origins)]
        yield from table(("state", "role", "id", "package"), "<<<<", rows)
        for plugin, reason in self.broken.items():
            yield f"{plugin.role} {plugin.id} cannot be used: {reason}"
        if self.install:
            yield f"install what is missing: {self.install}"
        if unknown := [plugin.id for plugin in self.missing if plugin.package is None]:
            yield f"no known package provides {', '.join(unknown)}"

    def _state(self, plugin: ChainPlugin) -> str:
        return "missing" if plugin.version is None else "broken" if plugin in self.broken else "installed"


def _with_needs(name: str) -> list[str]:
    """Return a package after those that it requires, where pip would not find them."""
    return [*catalog.dependencies(name), name]


def _requirement(name: str) -> str:
    """Return a package as a line of a requirements file."""
    origin = catalog.origin(name)
    place = origin.as_uri() if isinstance(origin, Path) else origin
    return f"{name} @ {place}" if place else name


def needs_of(
    target: str,
    backend: str | None = None,
    format: str | None = None,  # noqa: A002
    *,
    registry: Registry | None = None,
) -> Needs:
    """What reading a file needs; with `backend`, what running it there needs. Reads the header alone."""
    registry = registry or installed()
    by_name = registry.needs(target) if scheme_of(target) is None and not os.path.lexists(target) else []
    name = parse_spec(backend).id if backend else None
    if name and name not in registry.backends and catalog.package_for("backend", name) is None:
        registry.backend(name)  # raises: there is no such backend
    plugins = list(_source(target, registry))
    if any(need.id == target or need.kind == "codec" for need in by_name[:1] if need.kind):  # not a file's suffix
        plugins = [_plugin(need, registry) for need in by_name]
    else:
        plugins += _of_target(target, registry, backend if name in registry.backends else None, format)
    if name:
        plugins.append(registry.providers.plugin("backend", "backend", name))
    plugins = list(dict.fromkeys(plugins))
    broken = {plugin: reason for plugin in plugins if (reason := _fault(plugin, registry))}
    return Needs(file=redact(target), plugins=tuple(plugins), broken=broken)


def _of_target(target: str, registry: Registry, backend: str | None, format: str | None) -> list[ChainPlugin]:  # noqa: A002
    """Return the plugins for a file or URL: from its header, or from its signature if its format is not installed."""
    try:
        with open_file(target, format, registry=registry) as file:
            return list(_of_file(file, backend))
    except SquishError as error:
        if error.code != ErrorCode.NOT_INSTALLED:
            raise
        if scheme_of(target) is not None:
            if any(plugin.version is None for plugin in _source(target, registry)):
                return []
            raise
        plugins = [_plugin(need, registry) for need in registry.needs(target) if need.kind]
        if not any(plugin.version is None for plugin in plugins):
            raise  # a library is missing, which the error names
        return plugins


def _source(target: str, registry: Registry) -> Iterator[ChainPlugin]:
    """Yield the plugin that reads a URL's scheme."""
    scheme = scheme_of(target)
    if scheme is None:
        return
    try:
        entry = source_entry(scheme, registry, target)
        yield ChainPlugin("source", entry.id, entry.dist, entry.version)
    except SquishError as error:
        if error.code != ErrorCode.NOT_INSTALLED:
            raise
        yield ChainPlugin("source", scheme, source_package(scheme), None)


def _plugin(need: Requirement, registry: Registry) -> ChainPlugin:
    """Return a requirement of a name, as what a chain uses."""
    kind = need.kind or ""
    infos = [table[need.id].info for table in (registry.codecs,) if need.id in table]
    is_bytes = need.id in catalog.byte_suffixes().values() or any(info.kind == "bytes" for info in infos)
    return registry.providers.plugin("byte codec" if is_bytes else kind, kind, need.id)


def _of_file(file: File, backend: str | None) -> Iterator[ChainPlugin]:
    """Yield the plugins for the compression of an open file, its format, and one encoding of each tensor."""
    providers, index = file.registry.providers, file.index
    if file.source.packed:
        yield providers.plugin("byte codec", "codec", file.source.packed[0])
    yield from providers.container(index.format)
    for name in absent_refinements(index, file.source, file.registry):
        yield providers.plugin("container", "container", name)
    for part in index.assets.values():
        for item in part.filters:
            yield providers.plugin("byte codec", "codec", item.codec)
    resolver = Resolver(file.registry, backend)
    by_ids: dict[Any, tuple[ChainPlugin, ...]] = {}
    for spec in index.tensors.values():
        key = tuple(_ids(encoding) for encoding in spec.encodings), len(spec.shape)
        if key not in by_ids:
            by_ids[key] = _of_tensor(spec, file, resolver if backend else None)
        yield from by_ids[key]
    if index.whole and (backend or not index.tensors):
        yield from _of_encodings(index.whole, index.format, file.registry)


def _of_tensor(spec: TensorSpec, file: File, resolver: Resolver | None) -> tuple[ChainPlugin, ...]:
    """Return the plugins of the encoding that a backend runs, or else of the first one that can be read here."""
    if resolver is not None:
        try:
            return resolver.resolve(spec.name, file.format, spec.encodings, spec=spec).plugins[:-1]
        except SquishError:  # what is missing follows from the encodings
            pass
    return _of_encodings(spec.encodings, file.format, file.registry)


def _of_encodings(encodings: Sequence[Encoding], container: str, registry: Registry) -> tuple[ChainPlugin, ...]:
    """Return the plugins of the first encoding that needs nothing else, or else of the first one."""
    used = [registry.providers.used(container, encoding) for encoding in encodings]
    complete = (plugins for plugins in used if all(plugin.version is not None for plugin in plugins))
    return next(complete, used[0] if used else ())


def _ids(encoding: Encoding) -> tuple[Any, ...]:
    """Return the ids on which an encoding depends."""
    filters = {item.codec for part in encoding.parts.values() for item in part.filters}
    codecs = list[str]()
    spec: CodecSpec | None = encoding.codec
    while spec is not None:
        codecs.append(spec.id)
        spec = spec.inner
    return (*codecs, *sorted(filters))


def _fault(plugin: ChainPlugin, registry: Registry) -> str | None:
    """Why an installed plugin cannot be used here: its implementation or one of its libraries cannot be imported."""
    kind = plugin.role.rpartition(" ")[2]
    entries = [entry for entry in registry.find(kind, id=plugin.id) if entry.dist == plugin.package]
    try:
        for entry in entries:
            registry.instance(kind, entry)
    except SquishError as error:
        return error.reason()
    return None
