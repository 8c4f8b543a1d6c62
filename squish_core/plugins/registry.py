"""The registry: which containers, codecs and backends are installed, who brought them, and what is missing."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import evolve, fields_dict

from squish_core.codes import ErrorCode
from squish_core.errors import MissingPluginError, SquishError, UsageError
from squish_core.model import CodecSpec, Encoding, Refusal
from squish_core.plugins import catalog
from squish_core.plugins.entries import Entry
from squish_core.plugins.hookspecs import INFOS, PLURALS
from squish_core.plugins.loading import Plugins
from squish_core.plugins.requirements import Requirement, requirements
from squish_core.renamed import Renamed

if TYPE_CHECKING:
    from squish_core.backends.base import Backend
    from squish_core.backends.chain import Chain
    from squish_core.codecs.base import Allocator, Codec, Encoder
    from squish_core.codecs.byte_codec import ByteCodec
    from squish_core.families.base import Family
    from squish_core.formats.base import Container


class Registry(Plugins, Renamed):
    """Discovers plugins on first use; every query is plain data and imports no implementation."""

    renamed = {"policy": "allocator"}  # noqa: RUF012

    def __repr__(self) -> str:
        counts = (f"{PLURALS.get(kind, f'{kind}s')}={len(table)}" for kind, table in self._tables.items())
        return f"<Registry plugins={len(self.plugins)} {' '.join(counts)} broken={len(self.broken)}>"

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
    def sources(self) -> Mapping[str, Entry]:
        """Installed sources of URLs by id."""
        return self._tables["source"]

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
        """Entries of a kind whose declarations have some values.

        All distributions that bring an id in conflict have theirs in the list.

        Parameters
        ----------
        kind
            "containers", "codecs", "backends", "encoders", "allocators", "families" or "sources".
        **facts
            Field of the declaration -> its value.

        Returns
        -------
        list of Entry
            By id.

        Raises
        ------
        UsageError
            There is no such kind, or no declaration of the kind has such a field.

        Examples
        --------
        >>> [entry.id for entry in squish.registry().find("codecs", id="dense")]
        ['dense']
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

    def needs(self, name: str) -> list[Requirement]:
        """What a format, codec, backend, short name or file needs here, and how to install it.

        Parameters
        ----------
        name
            An id, installed or not; a short name of `--encode` ("int4"); or a file, by its content where it is there,
            else by its name.

        Returns
        -------
        list of Requirement
            What was asked for, then each distribution that brings codecs that it needs and that are not installed.

        Examples
        --------
        >>> [(need.id, need.installed) for need in squish.registry().needs("gguf")]
        [('gguf', True)]
        >>> squish.registry().needs("int4")[0].id, squish.registry().needs("model.squizd")[0].id
        ('affine', 'squizd')
        >>> squish.Registry(entry_points=tuple).needs("gguf")[0].install
        'pip install squish-gguf'
        """
        return requirements(name, self._tables)

    def missing(self, encoding: Encoding) -> Refusal | None:
        """Why the codecs and filters of an encoding cannot be had here, or that nothing decodes it; else None."""
        entry = self.codecs.get(encoding.codec.id)
        if entry is not None and getattr(entry.info, "kind", "") == "whole":
            return Refusal(why=f"{encoding.codec.id} is a whole model, for its own runtime alone", code=ErrorCode.WHOLE)
        refusals = {codec: refusal for codec in self._codecs(encoding) if (refusal := self._unusable(codec))}
        if not refusals:
            return None
        packages = [catalog.package_for("codec", codec) for codec, refusal in refusals.items() if refusal.install]
        install = catalog.install_command(*dict.fromkeys(filter(None, packages))) if packages else None
        first = next(iter(refusals.values()))
        return evolve(first, why="; ".join(dict.fromkeys(item.why for item in refusals.values())), install=install)

    def _codecs(self, encoding: Encoding) -> list[str]:
        """Ids of an encoding's codec, of those that it wraps, of its filters, and of what these need."""
        ids = list[str]()
        spec: CodecSpec | None = encoding.codec
        while spec is not None:
            ids.append(spec.id)
            spec = spec.inner
        ids += [item.codec for part in encoding.parts.values() for item in part.filters]
        infos = [self.codecs[name].info for name in ids if name in self.codecs]
        return list(dict.fromkeys((*ids, *(codec for info in infos for codec in getattr(info, "needs", ())))))

    def _unusable(self, codec: str) -> Refusal | None:
        """Why a codec cannot be used here."""
        if codec not in self.codecs:
            return self._absent("codec", codec)
        try:
            self._implementation("codec", codec)
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
        """The chain for a combination of a format's features, without any file.

        Parameters
        ----------
        container
            Id of the format.
        policy, op, backend
            As in `Tensor.plan`.
        **features
            Flags and options that the format declares -> their value, or a set of values.

        Returns
        -------
        Chain
            The chosen way, the others and the refusals, without costs.

        Raises
        ------
        UsageError
            The format has no such feature.
        SquishError
            Nothing here runs it; the message holds each reason.

        Examples
        --------
        >>> squish.registry().resolve(container="gguf", dtype="q4_k", backend="numpy").chosen.mode
        'fold'
        """
        from squish_core.backends.features import resolve_features

        return resolve_features(self, container, features, policy=policy, op=op, backend=backend)

    def _implementation(self, kind: str, name: str) -> Any:
        if conflict := self._claims.conflicts.get((kind, name)):
            raise conflict.error()
        entry = self._tables[kind].get(name)
        if entry is None:
            refusal = self._absent(kind, name)
            installed = f"Installed: {', '.join(sorted(self._tables[kind])) or 'none'}."
            hint = f"Run `{refusal.install}`." if refusal.install else installed
            raise MissingPluginError(refusal.why, code=ErrorCode.NOT_INSTALLED, hint=hint)
        return self.instance(kind, entry)

    def _absent(self, kind: str, wanted: str) -> Refusal:
        refusal = catalog.absent(kind, wanted)
        package = catalog.package_for(kind, wanted)
        for broken in self.broken:
            if package == broken.dist:
                return Refusal(why=f"{broken.dist} is installed but broken: {broken.reason}", code=ErrorCode.BROKEN)
        if package in {loaded.dist for loaded in self.plugins}:
            return Refusal(why=f"the {kind} {wanted!r} is not among those of {package}, which is installed")
        return refusal


_default: Registry | None = None
_default_lock = threading.Lock()


def registry() -> Registry:
    """The registry of everything installed; made on first use and kept.

    Returns
    -------
    Registry
        The same object at each call.

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
