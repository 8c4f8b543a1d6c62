"""What a plugin declares: light records with import strings, and the pluggy hooks that return them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pluggy
from attrs import field, frozen

SQUISH_API = 1
"""Version of the plugin interface; a plugin may state the one it was written for as `SQUISH_API`."""

hookspec = pluggy.HookspecMarker("squish")
hookimpl = pluggy.HookimplMarker("squish")


@frozen
class Signature:
    """Bytes that identify a format: at `offset` from the start ("head") or the end ("tail", negative), or the
    plain name of a file in a folder ("member")."""

    bytes: bytes
    where: str = "head"
    offset: int = 0


@frozen(kw_only=True)
class ContainerInfo:
    """A file format. `factory` is "module:Class"; `refines` names the format whose Index it refines.

    `features` lists the values of each flag or option that `resolve(container=..., **features)` accepts, and `bits` the
    bit of each value of a feature that files store as a word of flags;
    `aliases` are the short names that `convert --encode` understands for this format. `options` are those of writing
    (`--to ID:key=value`), `reading` those of opening as a refinement (`--format ID:key=value`), each with what it does.
    `sniffs`: other formats share the signature (a zip archive), and `Container.sniff` looks into the file.
    `views`: tensors may be views of one storage, so that their byte ranges overlap; elsewhere that is an error.
    """

    id: str
    title: str
    factory: str
    suffixes: tuple[str, ...] = ()
    signatures: tuple[Signature, ...] = ()
    refines: str | None = None
    can_write: bool = False
    views: bool = False
    features: Mapping[str, tuple[str, ...]] = field(factory=dict)
    bits: Mapping[str, Mapping[str, int]] = field(factory=dict)
    options: Mapping[str, str] = field(factory=dict)
    reading: Mapping[str, str] = field(factory=dict)
    aliases: Mapping[str, str] = field(factory=dict)
    codecs: tuple[str, ...] = ()
    sniffs: bool = False


@frozen(kw_only=True)
class CodecInfo:
    """A codec. `kind` is "tensor", "bytes" or "whole" (a model for another runtime, which nothing decodes).
    `lossless` says whether encoding keeps every value, `needs` which codecs of other distributions decoding takes.

    `signature` and `suffix`: how files that are compressed whole by a byte codec begin, and end in name. `skippable`:
    how frames begin that may precede the signature; a u32 (little endian) behind it counts the bytes that follow."""

    id: str
    title: str
    factory: str
    kind: str = "tensor"
    lossless: bool = False
    needs: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(factory=dict)
    signature: bytes = b""
    skippable: tuple[bytes, ...] = ()
    suffix: str = ""


@frozen(kw_only=True)
class BackendInfo:
    """A place to execute. A higher `preference` wins among equal offers."""

    id: str
    title: str
    factory: str
    preference: int = 0


@frozen(kw_only=True)
class EncoderInfo:
    """Another encoder of a codec, whose id it has: taken for the codec's own wherever values are encoded."""

    id: str
    title: str
    factory: str
    aliases: Mapping[str, str] = field(factory=dict)


@frozen(kw_only=True)
class AllocatorInfo:
    """What chooses an encoding for each tensor; `convert --encode` takes its id as it takes a codec's."""

    id: str
    title: str
    factory: str


@frozen(kw_only=True)
class FamilyInfo:
    """A family of models: what each engine calls their tensors and settings.

    `model_types` are its names in `config.json` (`model_type`), `architecture` is GGUF's `general.architecture`. Of two
    families with one architecture, the one with `experts` has the models whose GGUF states experts.
    """

    id: str
    title: str
    factory: str
    model_types: tuple[str, ...]
    architecture: str
    experts: bool = False


@frozen(kw_only=True)
class SourceInfo:
    """Where files that are no local ones are read from.

    `factory` is "module:Class" of a `SourceOpener`. `schemes` are the URL schemes, in lower case ("s3"); "*" stands for
    those that no other source declares. `options` are those of `open(source_options=...)`, each with what it does.
    """

    id: str
    title: str
    factory: str
    schemes: tuple[str, ...]
    options: Mapping[str, str] = field(factory=dict)


Info = ContainerInfo | CodecInfo | BackendInfo | EncoderInfo | AllocatorInfo | FamilyInfo | SourceInfo
INFOS: dict[str, type[Any]] = {
    "container": ContainerInfo, "codec": CodecInfo, "backend": BackendInfo, "encoder": EncoderInfo,
    "allocator": AllocatorInfo, "family": FamilyInfo, "source": SourceInfo,
}  # fmt: skip
"""Kinds of plugin and how each is declared, by the hook `squish_<kind>s` (`PLURALS`: or its irregular plural)."""
PLURALS = {"family": "families"}


class Hooks:
    """The hooks. Each returns declarations; implementations are imported on first use.

    A distribution names its module under the entry point group `squish`.

    Examples
    --------
    >>> import types
    >>> from squish_core.api import ContainerInfo, hookimpl
    >>> @hookimpl
    ... def squish_containers():
    ...     return [ContainerInfo(id="acme", title="Acme", factory="acme_format.container:Acme", suffixes=(".acme",))]
    >>> registry = squish.Registry(extra=[types.SimpleNamespace(squish_containers=squish_containers)])
    >>> registry.containers["acme"].info.suffixes
    ('.acme',)
    """

    @hookspec
    def squish_containers(self) -> Iterable[ContainerInfo]:  # type: ignore[empty-body]
        """File formats that the plugin brings.

        Returns
        -------
        iterable of ContainerInfo
            Declarations; no implementation is imported for them.
        """

    @hookspec
    def squish_codecs(self) -> Iterable[CodecInfo]:  # type: ignore[empty-body]
        """Codecs that the plugin brings.

        Returns
        -------
        iterable of CodecInfo
            Declarations; no implementation is imported for them.
        """

    @hookspec
    def squish_encoders(self) -> Iterable[EncoderInfo]:  # type: ignore[empty-body]
        """Encoders that the plugin brings for codecs, its own or others'.

        Returns
        -------
        iterable of EncoderInfo
            Declarations; no implementation is imported for them.
        """

    @hookspec
    def squish_allocators(self) -> Iterable[AllocatorInfo]:  # type: ignore[empty-body]
        """Allocators that the plugin brings.

        Returns
        -------
        iterable of AllocatorInfo
            Declarations; no implementation is imported for them.
        """

    @hookspec
    def squish_backends(self) -> Iterable[BackendInfo]:  # type: ignore[empty-body]
        """Backends that the plugin brings.

        Returns
        -------
        iterable of BackendInfo
            Declarations; no implementation is imported for them.
        """

    @hookspec
    def squish_families(self) -> Iterable[FamilyInfo]:  # type: ignore[empty-body]
        """Families of models that the plugin brings.

        Returns
        -------
        iterable of FamilyInfo
            Declarations; no implementation is imported for them.
        """

    @hookspec
    def squish_sources(self) -> Iterable[SourceInfo]:  # type: ignore[empty-body]
        """Sources that the plugin brings: where URLs of some schemes are read from.

        Returns
        -------
        iterable of SourceInfo
            Declarations; no implementation is imported for them.
        """

    @hookspec
    def squish_commands(self, app: Any) -> None:
        """Add subcommands to the `squish` command line.

        Parameters
        ----------
        app
            The typer app; a command that returns an `Answer` prints it, with `--json` too.
        """
