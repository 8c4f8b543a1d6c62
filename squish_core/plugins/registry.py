"""The registry: which containers, codecs and backends are installed, who brought them, and what is missing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import pluggy
from attrs import evolve, fields_dict

from squish_core.errors import MissingPluginError, UsageError
from squish_core.model import CodecSpec, Encoding, Refusal
from squish_core.plugins import catalog
from squish_core.plugins.claims import Claims, Conflict
from squish_core.plugins.discovery import (
    check_api,
    check_hooks,
    distribution,
    import_implementation,
    installed_entry_points,
)
from squish_core.plugins.entries import VARIABLE, Broken, Entry, Loaded, Settings
from squish_core.plugins.hookspecs import INFOS, PLURALS, Hooks, Info

if TYPE_CHECKING:
    from squish_core.backends.base import Backend
    from squish_core.backends.chain import Chain
    from squish_core.codecs.base import Allocator, ByteCodec, Codec, Encoder
    from squish_core.families.base import Family
    from squish_core.formats.base import Container


class Registry:
    """Discovers plugins on first use; every query is plain data and imports no implementation."""

    def __init__(
        self,
        plugins: str | None = None,
        *,
        prefer: Mapping[str, str] | None = None,
        extra: Iterable[Any] = (),
        entry_points: Callable[[], Iterable[Any]] | None = None,
    ) -> None:
        self.settings = Settings.parse(os.environ.get(VARIABLE, "") if plugins is None else plugins)
        self.prefer = {**self.settings.prefer, **(prefer or {})}
        self.manager = pluggy.PluginManager("squish")
        self.manager.add_hookspecs(Hooks)
        self.plugins: list[Loaded] = []
        self.broken: list[Broken] = []
        self._claims = Claims(INFOS, self.prefer)
        self._tables = self._claims.winners
        self._instances: dict[tuple[str, str, str], Any] = {}
        self._outside: set[str] = set()
        self._lock = threading.RLock()
        from squish_core import __version__
        from squish_core.plugins import builtin

        self.register(builtin, dist="squish-core", version=__version__)
        points = list((entry_points or installed_entry_points)())
        for point in points:
            self._load(point)
        for plugin in extra:
            self.register(plugin)
        dists = {*(loaded.dist for loaded in self.plugins), *map(distribution, points)}
        self.settings.check(dists, {point.name for point in points})

    def __repr__(self) -> str:
        counts = (f"{kind}s={len(table)}" for kind, table in self._tables.items())
        return f"<Registry plugins={len(self.plugins)} {' '.join(counts)} broken={len(self.broken)}>"

    @property
    def conflicts(self) -> tuple[Conflict, ...]:
        """Ids that several distributions bring, each unusable until one is uninstalled or chosen."""
        return tuple(self._claims.conflicts.values())

    @property
    def containers(self) -> Mapping[str, Entry]:
        """Installed file formats by id."""
        return self._tables["container"]

    @property
    def codecs(self) -> Mapping[str, Entry]:
        """Installed codecs by id."""
        return self._tables["codec"]

    @property
    def backends(self) -> Mapping[str, Entry]:
        """Installed backends by id."""
        return self._tables["backend"]

    def container(self, wanted: str) -> Container:
        """Implementation of a format; MissingPluginError with the package to install."""
        return self._implementation("container", wanted)

    def codec(self, wanted: str | CodecSpec) -> Codec:
        """Implementation of a tensor codec, by id or by its spec (a wrapping one comes bound to what it wraps)."""
        if isinstance(wanted, str):
            return self._implementation("codec", wanted)
        codec: Codec = self._implementation("codec", wanted.id)
        return codec if wanted.inner is None else codec.wrap(self.codec(wanted.inner), wanted.inner.params)

    def same_codec(self, one: CodecSpec | None, other: CodecSpec | None) -> bool:
        """Whether two specs say the same, if in other words (`Codec.canonical`)."""
        if one == other or one is None or other is None:
            return one == other
        if one.id != other.id or one.id not in self.codecs or not self.same_codec(one.inner, other.inner):
            return False
        codec: Codec = self._implementation("codec", one.id)
        return codec.canonical(one.params) == codec.canonical(other.params)

    def encoder(self, wanted: CodecSpec) -> Encoder:
        """What encodes values for a codec: an encoder that a plugin brings and that can be used here, or the codec."""
        if wanted.inner is None and wanted.id in self._tables["encoder"]:
            try:
                return self._implementation("encoder", wanted.id)
            except MissingPluginError:  # it cannot run here; the codec may
                return self.codec(wanted)
        return self.codec(wanted)

    def encoder_missing(self, wanted: CodecSpec) -> str | None:
        """Why an encoder that a plugin declares cannot be used here; None when it can, or none is declared."""
        try:
            if wanted.inner is None and wanted.id in self._tables["encoder"]:
                self._implementation("encoder", wanted.id)
        except MissingPluginError as error:
            return error.message
        return None

    @property
    def encoders(self) -> Mapping[str, Entry]:
        """Installed encoders by the id of their codec."""
        return self._tables["encoder"]

    @property
    def families(self) -> Mapping[str, Entry]:
        """Installed families of models by id."""
        return self._tables["family"]

    def family(self, wanted: str) -> Family:
        """Implementation of a family of models."""
        return self._implementation("family", wanted)

    def byte_codec(self, wanted: str) -> ByteCodec:
        """Implementation of a byte codec (a filter)."""
        return self._implementation("codec", wanted)

    @property
    def allocators(self) -> Mapping[str, Entry]:
        """Installed allocators by id."""
        return self._tables["allocator"]

    def allocator(self, allocator_id: str) -> Allocator:
        """Implementation of an allocator; MissingPluginError with the package to install."""
        return self._implementation("allocator", allocator_id)

    def backend(self, wanted: str) -> Backend:
        """Implementation of a backend."""
        return self._implementation("backend", wanted)

    def writing_options(self, container: str) -> Mapping[str, str] | None:
        """Options of writing that a format declares (`--to ID:key=value`); None where it is not installed."""
        entry = self.containers.get(container)
        return getattr(entry.info, "options", None) if entry else None

    def reading_options(self, container: str) -> Mapping[str, str] | None:
        """Options of opening that a format declares (`--format ID:key=value`); None where it is not installed."""
        entry = self.containers.get(container)
        return getattr(entry.info, "reading", None) if entry else None

    def absent_backends(self) -> list[Refusal]:
        """The backends that exist and are not installed."""
        names = (name for name in catalog.PACKAGES["backend"] if name not in self.backends)
        return [evolve(catalog.absent("backend", name), backend=name, why="not installed") for name in names]

    def is_outside(self, backend: str) -> bool:
        """Whether a backend is an installed third party's, named neither by `+name` in the settings nor by `prefer`."""
        entry = self.backends.get(backend)
        return entry is not None and entry.dist in self._outside and self.prefer.get(backend) != entry.dist

    def find(self, kind: str, /, **facts: Any) -> list[Entry]:
        """Entries of a kind ("containers", "codecs", ..., each key of `INFOS`) with these values, by id.

        All distributions that bring an id in conflict have theirs in the list.
        """
        kind = next((one for one, many in PLURALS.items() if many == kind), kind.removesuffix("s"))
        if kind not in self._tables:
            raise UsageError("no such kind of plugin", expected=", ".join(self._tables), found=repr(kind), code="kind")
        entries = self._claims.of(kind)
        legal = {name for info in (INFOS[kind], *(type(entry.info) for entry in entries)) for name in fields_dict(info)}
        if unknown := sorted(set(facts) - legal):
            raise UsageError(
                f"no {kind} declares such a fact", found=", ".join(unknown),
                expected=", ".join(sorted(legal)), code="fact",
            )  # fmt: skip
        return [entry for entry in entries if all(getattr(entry.info, k, None) == v for k, v in facts.items())]

    def needs(self, wanted: str) -> dict[str, Any]:
        """What a format, codec or backend needs and whether it is here: plain data."""
        for kind, table in self._tables.items():
            if wanted in table:
                entry = table[wanted]
                codecs = getattr(entry.info, "codecs", ())
                lacking = [catalog.absent("codec", codec) for codec in codecs if codec not in self.codecs]
                installs = [refusal.install for refusal in lacking if refusal.install]
                return {
                    "id": wanted,
                    "kind": kind,
                    "installed": True,
                    "dist": entry.dist,
                    "install": installs,
                }
        for kind in self._tables:
            package = catalog.package_for(kind, wanted)
            if package:
                install = [catalog.install_command(package)]
                return {"id": wanted, "kind": kind, "installed": False, "dist": package, "install": install}
        return {"id": wanted, "kind": None, "installed": False, "dist": None, "install": []}

    def missing(self, encoding: Encoding) -> Refusal | None:
        """The first codec or filter of an encoding that is not installed, or that nothing decodes."""
        entry = self.codecs.get(encoding.codec.id)
        if entry is not None and getattr(entry.info, "kind", "") == "whole":
            return Refusal(why=f"{encoding.codec.id} is a whole model, for its own runtime alone", code="whole")
        in_conflict = self._claims.conflicts
        if entry is not None and encoding.codec.inner is None and not encoding.filtered and not in_conflict:
            return None
        spec: CodecSpec | None = encoding.codec
        wanted = []
        while spec is not None:
            wanted.append(spec.id)
            spec = spec.inner
        wanted += [item.codec for part in encoding.parts.values() for item in part.filters]
        for codec in wanted:
            if codec not in self.codecs:
                return self._absent("codec", codec)
            if ("codec", codec) in in_conflict:
                error = in_conflict["codec", codec].error()
                return Refusal(why=error.reason(), code="conflict")
        return None

    def resolve(
        self,
        *,
        container: str,
        policy: Any = "spec",
        op: str | None = None,
        backend: str | None = None,
        **features: Any,
    ) -> Chain:
        """The chain for a flag or dtype combination of a format, without any file."""
        from squish_core.backends.resolve import resolve_features

        return resolve_features(self, container, features, policy=policy, op=op, backend=backend)

    def register(self, plugin: Any, dist: str | None = None, version: str = "") -> None:
        """Add a plugin from this process: a module or an object with hook implementations.

        Raises ConflictError when it brings an id that another distribution has brought.
        """
        self._register(plugin, dist, version, exclusive=True)

    def instance(self, kind: str, entry: Entry) -> Any:
        """Implementation of one entry of `find`, even where its id is in conflict."""
        with self._lock:
            key = kind, entry.info.id, entry.dist
            if key not in self._instances:
                self._instances[key] = import_implementation(entry)
            return self._instances[key]

    def _register(self, plugin: Any, dist: str | None, version: str, *, exclusive: bool) -> None:
        name: str = dist or str(getattr(plugin, "__name__", type(plugin).__name__))
        check_api(plugin)
        with self._lock:
            count = sum(loaded.dist == name for loaded in self.plugins)
            label = f"{name} ({count + 1})" if count else name  # one distribution may bring several plugins
            self.manager.register(plugin, name=label)
            try:
                check_hooks(self.manager, plugin)
                infos = list(self._declared(plugin))
                entries = [(kind, Entry(info=info, dist=name, version=version)) for kind, info in infos]
                self._claims.add(entries, exclusive=exclusive)
            except BaseException:
                self.manager.unregister(plugin)
                raise
            self.plugins.append(Loaded(dist=name, name=label, version=version))

    def _load(self, point: Any) -> None:
        """Register one entry point; whatever goes wrong becomes a `broken` record."""
        dist = distribution(point)
        version = point.dist.version if point.dist else ""
        if not self.settings.allows(dist, point.name):
            return
        try:
            self._register(point.load(), dist, version, exclusive=False)
            if dist not in catalog.DISTRIBUTIONS and not self.settings.allow.intersection((dist, point.name)):
                self._outside.add(dist)
        except Exception as error:  # a plugin may fail in any way at all; it must not take the others down
            self.broken.append(Broken(dist=dist, name=point.name, reason=f"{type(error).__name__}: {error}"))

    def _declared(self, plugin: Any) -> Iterator[tuple[str, Info]]:
        # Each implementation is called alone, so that a result has its distribution and its failure a name.
        for kind, info_type in INFOS.items():
            hook = getattr(self.manager.hook, f"squish_{PLURALS.get(kind, f'{kind}s')}")
            for implementation in hook.get_hookimpls():
                if implementation.plugin is plugin:
                    for info in cast(Iterable[Any], implementation.function()):
                        if not isinstance(info, info_type):
                            raise TypeError(f"{hook.name} must give {info_type.__name__}, not {type(info).__name__}")
                        yield kind, info

    def _implementation(self, kind: str, name: str) -> Any:
        if conflict := self._claims.conflicts.get((kind, name)):
            raise conflict.error()
        entry = self._tables[kind].get(name)
        if entry is None:
            refusal = self._absent(kind, name)
            installed = f"Here are {', '.join(sorted(self._tables[kind])) or 'none'}."
            hint = f"Run `{refusal.install}`." if refusal.install else installed
            raise MissingPluginError(refusal.why, code="not-installed", hint=hint)
        return self.instance(kind, entry)

    def _absent(self, kind: str, wanted: str) -> Refusal:
        refusal = catalog.absent(kind, wanted)
        package = catalog.package_for(kind, wanted)
        for broken in self.broken:
            if package == broken.dist:
                return Refusal(why=f"{broken.dist} is installed but broken: {broken.reason}", code="broken")
        if package in {loaded.dist for loaded in self.plugins}:
            return Refusal(why=f"the {kind} {wanted!r} is not among those of {package}, which is installed")
        return refusal


_default: Registry | None = None
_default_lock = threading.Lock()


def registry() -> Registry:
    """The registry of everything installed; made on first use and kept."""
    global _default
    with _default_lock:
        if _default is None:
            _default = Registry()
        return _default
