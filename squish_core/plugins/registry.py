"""The registry of installed formats, codecs, backends and other plugins."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pluggy
from attrs import evolve, fields_dict

from squish_core.codes import ErrorCode
from squish_core.errors import MissingPluginError, SquishError, UsageError
from squish_core.model import CodecSpec, Encoding, Refusal
from squish_core.plugins import builtin, catalog
from squish_core.plugins.entries import (
    VARIABLE,
    Broken,
    Claims,
    Conflict,
    Entry,
    Loaded,
    Settings,
    check_fact,
    has_fact,
)
from squish_core.plugins.entry_points import declarations, distribution, import_implementation
from squish_core.plugins.entry_points import entry_points as installed
from squish_core.plugins.hookspecs import (
    INFOS,
    PLURALS,
    AllocatorInfo,
    BackendInfo,
    CodecInfo,
    ContainerInfo,
    EncoderInfo,
    FamilyInfo,
    Hooks,
    SchedulerInfo,
    SourceInfo,
)
from squish_core.shown import Shown
from squish_core.text import did_you_mean
from squish_core.version import __version__

if TYPE_CHECKING:
    from squish_core.backends.answers import AnswerTable
    from squish_core.backends.base import Backend
    from squish_core.backends.chain import Chain
    from squish_core.backends.features import Matrix
    from squish_core.backends.resolve import Resolver
    from squish_core.codecs.allocator import Allocator
    from squish_core.codecs.base import Codec, Encoder
    from squish_core.codecs.byte_codec import ByteCodec
    from squish_core.formats.base import Container
    from squish_core.plugins.requirements import Providers, Requirement

MOST_CACHED = 1024
"""Maximum number of codecs, and of answers of `find`, in a cache."""


class Registry(Shown):
    """The installed plugins that the settings allow, and those registered in the process.

    Queries return plain data and import no implementations. A plugin that fails is recorded as broken, not raised.
    """

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
        self._unnamed: set[str] = set()
        self._providers: Providers | None = None
        self._codec_cache: dict[Hashable, Codec] = {}
        self.answers: AnswerTable = {}
        self.resolvers: dict[str, Resolver] = {}
        self._find_cache: dict[Hashable, list[Entry[Any]]] = {}
        self._missing_cache: dict[tuple[str, ...], Refusal | None] = {}
        self._lock = threading.RLock()
        self.register(builtin, dist="squish-core", version=__version__)
        points = list((entry_points or installed)())
        names = {name for point in points for name in (distribution(point), point.name)}
        ids = self.settings.allow - names
        for point in points:
            self._load(point, ids)
        for plugin in extra:
            self.register(plugin)
        dists = {*(loaded.dist for loaded in self.plugins), *map(distribution, points)}
        self.settings.check(dists, {*names, *(name for table in self._tables.values() for name in table)})

    @property
    def conflicts(self) -> tuple[Conflict, ...]:
        """Ids that several distributions provide, unusable until one is uninstalled or chosen."""
        return tuple(self._claims.conflicts.values())

    def register(self, plugin: Any, dist: str | None = None, version: str = "") -> None:
        """Add a plugin from this process.

        Parameters
        ----------
        plugin
            A module or an object with hook implementations (`squish_core.api.hookimpl`).
        dist
            Name of its distribution; the plugin's own name by default.
        version
            Version of the distribution.

        Raises
        ------
        ConflictError
            Another distribution provides one of its ids; nothing is registered.

        Examples
        --------
        >>> import types
        >>> from squish_core.api import CodecInfo, hookimpl
        >>> def codecs():
        ...     return [CodecInfo(id="acme.rows", title="rows of i8", factory="acme:Rows")]
        >>> plugin = types.SimpleNamespace(codecs=hookimpl(codecs, specname="squish_codecs"))
        >>> registry = squish.Registry(extra=[plugin])
        >>> registry.codecs["acme.rows"].id
        'acme.rows'
        """
        self._register(plugin, dist, version, exclusive=True)

    def instance(self, kind: str, entry: Entry[Any]) -> Any:
        """Implementation of an entry from `find`, even if its id is in conflict."""
        key = kind, entry.info.id, entry.dist
        implementation = self._instances.get(key)  # looked up for every tensor, so without the lock
        if implementation is None:
            with self._lock:
                if key not in self._instances:
                    self._instances[key] = import_implementation(entry)
                implementation = self._instances[key]
        return implementation

    def __repr__(self) -> str:
        counts = (f"{PLURALS.get(kind, f'{kind}s')}={len(table)}" for kind, table in self._tables.items())
        return f"<Registry plugins={len(self.plugins)} {' '.join(counts)} broken={len(self.broken)}>"

    @property
    def containers(self) -> Mapping[str, Entry[ContainerInfo]]:
        """Installed file formats by id."""
        return self._tables["container"]

    @property
    def codecs(self) -> Mapping[str, Entry[CodecInfo]]:
        """Installed codecs by id."""
        return self._tables["codec"]

    @property
    def backends(self) -> Mapping[str, Entry[BackendInfo]]:
        """Installed backends by id."""
        return self._tables["backend"]

    def container(self, name: str) -> Container:
        """Implementation of a format; a MissingPluginError names the package to install."""
        return self.implementation("container", name)

    def codec(self, spec: CodecSpec) -> Codec:
        """A tensor codec with its parameters and the codec that it wraps, cached; CodecError if they are invalid."""
        cache = self._codec_cache  # threads share it: dictionary operations are atomic
        try:
            codec = cache.get(key := spec.key)
        except TypeError:  # parameters that are not plain data
            key, codec = None, None
        if codec is None:
            inner = None if spec.inner is None else self.codec(spec.inner)
            codec = self.codec_type(spec.id).from_params(spec.params, inner)
            if len(cache) >= MOST_CACHED:
                cache.clear()
            if key is not None:
                cache[key] = codec
        return codec

    def codec_type(self, name: str) -> type[Codec]:
        """Return the class of a tensor codec: what does not depend on its parameters."""
        return type(self.implementation("codec", name))

    def same_codec(self, one: CodecSpec | None, other: CodecSpec | None) -> bool:
        """Return whether two specifications are equivalent (`Codec.canonical`)."""
        if one == other or one is None or other is None:
            return one == other
        if one.id != other.id or one.id not in self.codecs or not self.same_codec(one.inner, other.inner):
            return False
        return self.codec(one).canonical == self.codec(other).canonical

    def encoder(self, spec: CodecSpec) -> Encoder:
        """Return the encoder for a codec: an alternative encoder that can run here, or the codec itself."""
        codec, encoder_type = self.codec(spec), self.encoder_type(spec)
        return codec if isinstance(codec, encoder_type) else encoder_type.from_params(spec.params)

    def encoder_type(self, spec: CodecSpec) -> type[Encoder]:
        """Return the class of `encoder`, which completes a user's parameters."""
        if spec.inner is None and spec.id in self._tables["encoder"]:
            with suppress(MissingPluginError):  # it cannot run here, but the codec may
                return type(self.implementation("encoder", spec.id))
        return self.codec_type(spec.id)

    @property
    def encoders(self) -> Mapping[str, Entry[EncoderInfo]]:
        """Installed alternative encoders by codec id."""
        return self._tables["encoder"]

    @property
    def families(self) -> Mapping[str, Entry[FamilyInfo]]:
        """Installed model families by id."""
        return self._tables["family"]

    def byte_codec(self, name: str) -> ByteCodec:
        """Implementation of a byte codec."""
        return self.implementation("codec", name)

    @property
    def sources(self) -> Mapping[str, Entry[SourceInfo]]:
        """Installed sources of URLs by id."""
        return self._tables["source"]

    @property
    def schedulers(self) -> Mapping[str, Entry[SchedulerInfo]]:
        """Installed schedulers by id."""
        return self._tables["scheduler"]

    @property
    def allocators(self) -> Mapping[str, Entry[AllocatorInfo]]:
        """Installed allocators by id."""
        return self._tables["allocator"]

    def allocator(self, name: str) -> Allocator:
        """Implementation of an allocator; a MissingPluginError names the package to install."""
        return self.implementation("allocator", name)

    def backend(self, name: str) -> Backend:
        """Implementation of a backend."""
        return self.implementation("backend", name)

    def writing_options(self, container: str) -> Mapping[str, str] | None:
        """Write options of a format (`--to ID:key=value`) with descriptions; None if it is not installed."""
        entry = self.containers.get(container)
        return entry.info.options if entry else None

    def reading_options(self, container: str) -> Mapping[str, str] | None:
        """Read options of a format (`--format ID:key=value`) with descriptions; None if it is not installed."""
        entry = self.containers.get(container)
        return entry.info.reading if entry else None

    @property
    def providers(self) -> Providers:
        """Which distribution provides each format, codec, backend and source."""
        if self._providers is None:
            from squish_core.plugins.requirements import Providers

            self._providers = Providers.of(self._tables)
        return self._providers

    def absent_backends(self) -> list[Refusal]:
        """Refusals for known backends that are not installed."""
        names = (name for name in catalog.packages("backend") if name not in self.backends)
        return [evolve(catalog.absent("backend", name), backend=name, why="not installed") for name in names]

    def is_outside(self, backend: str) -> bool:
        """Whether a backend is from a third party and named neither by `+name` in the settings nor by `prefer`."""
        entry = self.backends.get(backend)
        if entry is None or entry.dist not in self._unnamed or self.prefer.get(backend) == entry.dist:
            return False
        return entry.dist not in catalog.distributions()

    def find(self, kind: str, /, **facts: Any) -> list[Entry[Any]]:
        """Find entries of a kind by the values of their declarations.

        For an id in conflict, the entries of all distributions are included.

        Parameters
        ----------
        kind
            "containers", "codecs", "backends", "encoders", "allocators", "families", "sources" or "schedulers".
        **facts
            Field of the declaration -> its value; of a field with several values (`codecs`, `suffixes`, `aliases`),
            one of them or a list that it must contain.

        Returns
        -------
        list of Entry
            In order of ids.

        Raises
        ------
        UsageError
            The kind or a field does not exist, or a value has a type that the field never has.

        Examples
        --------
        >>> [entry.id for entry in squish.registry().find("codecs", id="dense")]
        ['dense']
        >>> [entry.id for entry in squish.registry().find("containers", suffixes=".zt")]
        ['ztensor']
        """
        cache = self._find_cache  # before the claims: a registration starts a new table
        question = kind, *[(name, type(value), value) for name, value in facts.items()]
        try:
            entries = cache.get(question)
        except TypeError:  # a value without a hash
            cache, question, entries = {}, (kind,), None
        if entries is None:
            if len(cache) >= MOST_CACHED:
                cache.clear()
            entries = cache[question] = self._find(kind, facts)
        return list(entries)

    def _find(self, kind: str, facts: Mapping[str, Any]) -> list[Entry[Any]]:
        kind = next((one for one, many in PLURALS.items() if many == kind), kind.removesuffix("s"))
        if kind not in self._tables:
            raise UsageError("no such kind of plugin", expected=", ".join(self._tables), found=repr(kind), code="kind")
        entries = self._claims.of(kind)
        legal = {name for info in {INFOS[kind], *(type(entry.info) for entry in entries)} for name in fields_dict(info)}
        if unknown := sorted(set(facts) - legal):
            expected = ", ".join(sorted(legal))
            found = ", ".join(unknown)
            raise UsageError(f"{kind} declarations have no such field", found=found, expected=expected, code="fact")
        for name, value in facts.items():
            check_fact(kind, name, value, fields_dict(INFOS[kind]).get(name))
        # of one kind, the declarations of a third party may have more fields
        return [entry for entry in entries if all(has_fact(getattr(entry.info, k, None), v) for k, v in facts.items())]

    def needs(self, name: str) -> list[Requirement]:
        """List what a format, codec, backend, short name or file requires, and how to install it.

        Parameters
        ----------
        name
            An id, installed or not; a short name for `--encode` ("int4"); or a file, which need not exist.

        Returns
        -------
        list of Requirement
            The plugin itself, then every distribution to install for the codecs it needs.

        Examples
        --------
        >>> [(need.id, need.installed) for need in squish.registry().needs("gguf")]
        [('gguf', True)]
        >>> squish.registry().needs("int4")[0].id, squish.registry().needs("model.squizd")[0].id
        ('affine', 'squizd')
        >>> squish.Registry(entry_points=tuple).needs("gguf")[0].install
        '... install ...squish-gguf'
        """
        from squish_core.plugins.requirements import requirements

        return requirements(name, self._tables)

    def missing(self, encoding: Encoding) -> Refusal | None:
        """Why an encoding cannot be decoded here: a missing codec or filter, or a whole model. None if it can."""
        ids, spec = [encoding.codec.id], encoding.codec.inner
        while spec is not None:
            ids.append(spec.id)
            spec = spec.inner
        ids += [item.codec for part in encoding.parts.values() for item in part.filters]
        cache = self._missing_cache
        if (names := tuple(ids)) not in cache:
            cache[names] = self._missing(names)
        return cache[names]

    def _missing(self, codecs: tuple[str, ...]) -> Refusal | None:
        """As `missing`, from the ids of an encoding's codec, wrapped codecs and filters."""
        entries = [self.codecs[name] for name in codecs if name in self.codecs]
        if any(entry.info.kind == "whole" and entry.info.id == codecs[0] for entry in entries):
            why = f"{codecs[0]} is a whole model, which only its own runtime can run"
            return Refusal(why=why, code=ErrorCode.WHOLE)
        needed = dict.fromkeys((*codecs, *(codec for entry in entries for codec in entry.info.needs)))
        refusals = {codec: refusal for codec in needed if (refusal := self._unusable(codec))}
        if not refusals:
            return None
        packages = [catalog.package_for("codec", codec) for codec, refusal in refusals.items() if refusal.install]
        install = catalog.install_command(*dict.fromkeys(filter(None, packages))) if packages else None
        first = next(iter(refusals.values()))
        return evolve(first, why="; ".join(dict.fromkeys(item.why for item in refusals.values())), install=install)

    def _unusable(self, codec: str) -> Refusal | None:
        """Return why a codec cannot be used here."""
        if codec not in self.codecs:
            return self._absent("codec", codec)
        try:
            self.implementation("codec", codec)
        except SquishError as error:
            why = error.reason() if error.code == ErrorCode.CONFLICT else error.message
            return Refusal(why=why, code=error.code or ErrorCode.IMPORT)
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
        """Resolve a combination of a format's features, without a file.

        Parameters
        ----------
        container
            Id of the format.
        policy, op, backend
            As in `Tensor.plan`.
        **features
            Declared feature -> value or set of values.

        Returns
        -------
        Chain
            The choice, other offers and refusals, without costs.

        Raises
        ------
        UsageError
            The format has no such feature.
        SquishError
            Nothing here can run it; the message lists the reasons.

        Examples
        --------
        >>> squish.registry().resolve(container="gguf", dtype="q4_k", backend="numpy").chosen.mode
        'fold'
        """
        from squish_core.backends.features import resolve_features

        return resolve_features(self, container, features, policy=policy, op=op, backend=backend)

    def matrix(
        self,
        container: str,
        *,
        backends: Iterable[str | None] | None = None,
        policy: Any = "spec",
        op: str | None = None,
    ) -> Matrix:
        """Resolve all combinations of a format's features, without a file; refusals are data, too.

        Parameters
        ----------
        container
            Id of the format. Features that files store as a word of flags are combined in every way, the others each
            alone and with each other.
        backends
            Ids of backends, possibly with options ("ane:device=M1"), each a column; None for the choice among all. By
            default that choice, then every installed backend.
        policy, op
            As in `Tensor.plan`.

        Returns
        -------
        Matrix
            A sequence of rows: `features`, and `answers` (backend -> `Chain` or error); `to_dict()` for JSON.

        Raises
        ------
        MissingPluginError
            The format is not installed.

        Examples
        --------
        >>> matrix = squish.registry().matrix("squizd", backends=["numpy"])
        >>> len(matrix), matrix[4].text, matrix[4].answers["numpy"].chosen.mode
        (128, 'flags=INT4', 'fold')
        """
        from squish_core.backends.features import feature_matrix

        columns = (None, *sorted(self.backends)) if backends is None else tuple(backends)
        return feature_matrix(self, container, columns, policy=policy, op=op)

    def implementation(self, kind: str, name: str) -> Any:
        """Import and return the implementation of an id.

        Parameters
        ----------
        kind
            "container", "codec", "backend", "encoder", "allocator", "family", "source" or "scheduler".
        name
            The id.

        Returns
        -------
        object
            One instance for the registry.

        Raises
        ------
        MissingPluginError
            Nothing installed provides it, or it cannot be imported; the hint names the package.
        ConflictError
            Several distributions provide it.

        Examples
        --------
        >>> squish.registry().implementation("codec", "dense").id
        'dense'
        """
        if conflict := self._claims.conflicts.get((kind, name)):
            raise conflict.error()
        entry = self._tables[kind].get(name)
        if entry is None:
            refusal = self._absent(kind, name)
            ids = sorted(self._tables[kind])
            installed = f"{did_you_mean(name, ids)} Installed: {', '.join(ids) or 'none'}.".lstrip()
            hint = f"Run `{refusal.install}`." if refusal.install else installed
            raise MissingPluginError(refusal.why, code=ErrorCode.NOT_INSTALLED, hint=hint)
        return self.instance(kind, entry)

    def _absent(self, kind: str, name: str) -> Refusal:
        refusal = catalog.absent(kind, name)
        package = catalog.package_for(kind, name)
        for broken in self.broken:
            if package == broken.dist:
                return Refusal(why=f"{broken.dist} is installed but broken: {broken.reason}", code=ErrorCode.BROKEN)
        if package in {loaded.dist for loaded in self.plugins}:
            return Refusal(why=f"{package} is installed, but does not provide the {kind} {name!r}")
        return refusal

    def _register(
        self, plugin: Any, dist: str | None, version: str, *, exclusive: bool, ids: Collection[str] = ()
    ) -> frozenset[str]:
        """Add a plugin and return its ids; with `ids`, only if it provides one of them."""
        name: str = dist or str(getattr(plugin, "__name__", type(plugin).__name__))
        with self._lock:
            count = sum(loaded.dist == name for loaded in self.plugins)
            label = f"{name} ({count + 1})" if count else name  # a distribution may have several plugins
            self.manager.register(plugin, name=label)
            try:
                infos = list(declarations(self.manager, plugin))
                names = frozenset(info.id for _, info in infos)
                if ids and not names.intersection(ids):
                    self.manager.unregister(plugin)
                    return names
                entries = [(kind, Entry(info=info, dist=name, version=version)) for kind, info in infos]
                self._claims.add(entries, exclusive=exclusive)
            except BaseException:
                self.manager.unregister(plugin)
                raise
            self.answers, self.resolvers, self._providers = {}, {}, None
            self._find_cache, self._codec_cache, self._missing_cache = {}, {}, {}
            self.plugins.append(Loaded(dist=name, name=label, version=version))
            return names

    def _load(self, point: Any, ids: Collection[str]) -> None:
        """Register an entry point if the settings allow it; a failure becomes a `broken` record.

        `ids`: names in the settings that are neither entry points nor distributions, and so may be ids of a plugin.
        """
        dist = distribution(point)
        version = point.dist.version if point.dist else ""
        is_named = self.settings.allows(dist, point.name)
        if not is_named and (not ids or self.settings.blocks(dist, point.name)):
            return
        try:
            names = self._register(point.load(), dist, version, exclusive=False, ids=() if is_named else ids)
            if not self.settings.allow.intersection((dist, point.name, *names)):
                self._unnamed.add(dist)
        except Exception as error:  # a plugin may raise anything, and must not affect the others
            if is_named:
                self.broken.append(Broken(dist=dist, name=point.name, reason=f"{type(error).__name__}: {error}"))


_default: Registry | None = None
_default_lock = threading.Lock()


def registry() -> Registry:
    """Return the registry of all installed plugins, created on first use.

    Returns
    -------
    Registry
        The same object on every call.

    Examples
    --------
    >>> "numpy" in squish.registry().backends
    True
    """
    global _default
    with _default_lock:
        if _default is None:
            _default = Registry()
        return _default
