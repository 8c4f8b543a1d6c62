"""Declarations of plugins: records with import strings, and the pluggy hooks that return them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pluggy
from attrs import field, frozen

SQUISH_API = 1
"""Version of the plugin interface; a plugin may declare the version it needs as `SQUISH_API`."""

hookspec = pluggy.HookspecMarker("squish")
hookimpl = pluggy.HookimplMarker("squish")
"""Marks a function of a plugin as the implementation of a hook."""


@frozen
class Signature:
    """Bytes that identify a format: at `offset` from the start ("head") or the end ("tail", negative), or the name of
    a file in a folder ("member")."""

    bytes: bytes
    where: str = "head"
    offset: int = 0


@frozen(kw_only=True)
class ContainerInfo:
    """A file format. `factory` is "module:Class"; `refines` names the format whose Index it refines.

    `features`: values of each feature that `resolve(container=..., **features)` accepts; `bits`: the bit of each value,
    for features that files store as a word of flags; `synonyms`: other name -> value, of each feature. `aliases`: short
    names for `convert --encode` in this format. `options`: write options (`--to ID:key=value`) and `reading`: read
    options of a refinement (`--format ID:key=value`), each with a description. `codecs`: ids of the codecs that files
    use. `sniffs`: other formats share the signature (as in zip archives), so `Container.sniff` decides. `views`: byte
    ranges of tensors may overlap, which is otherwise an error. `facts`: further facts that `squish formats ID` shows,
    by their title.
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
    synonyms: Mapping[str, Mapping[str, str]] = field(factory=dict)
    options: Mapping[str, str] = field(factory=dict)
    reading: Mapping[str, str] = field(factory=dict)
    aliases: Mapping[str, str] = field(factory=dict)
    codecs: tuple[str, ...] = ()
    sniffs: bool = False
    facts: Mapping[str, str] = field(factory=dict)


@frozen(kw_only=True)
class CodecInfo:
    """A codec. `kind` is "tensor", "bytes" or "whole" (a whole model for another runtime, which cannot be decoded).
    `lossless`: encoding preserves every value. `needs`: codecs of other distributions that decoding needs.

    `signature` and `suffix`: first bytes and suffix of files that a byte codec compresses. `skippable`: first bytes of
    frames that may precede the signature; a little-endian u32 with the size of the frame follows them.
    """

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
    """A backend. The higher `preference` wins among otherwise equal offers.

    `unverified`: what its project has never run it on, shown by `squish doctor`.
    """

    id: str
    title: str
    factory: str
    preference: int = 0
    unverified: str = ""


@frozen(kw_only=True)
class EncoderInfo:
    """An alternative encoder with the id of a codec, used instead of the codec's own except for dense vectors."""

    id: str
    title: str
    factory: str
    aliases: Mapping[str, str] = field(factory=dict)


@frozen(kw_only=True)
class AllocatorInfo:
    """An allocator, which chooses an encoding for each tensor; `convert --encode` accepts its id like a codec's."""

    id: str
    title: str
    factory: str


@frozen(kw_only=True)
class FamilyInfo:
    """A model family: the names of its tensors and settings in each engine.

    `model_types`: its values of `model_type` in `config.json`; `architecture`: GGUF's `general.architecture`.
    `present`, `absent`: keys without the architecture (0 is absent) and tensors that its GGUFs have or lack, or one of
    some ("a|b"); of the families of one architecture that fit, the one with most is chosen. `by_config`: it shares a
    model type with others, and `Family.fits` reads whose a config.json is. `layouts`: for models of which only the type
    is known, the only layouts to convert them into; tensors are copied unchanged, `Family.carry` computes the others.
    `part`: the component of the models that it maps. A vision tower has the model types of its text models; its
    `architecture` is the projector type of its GGUFs, which are all `clip`.
    """

    id: str
    title: str
    factory: str
    model_types: tuple[str, ...]
    architecture: str
    present: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    by_config: bool = False
    layouts: tuple[str, ...] = ()
    part: str = "text"


@frozen(kw_only=True)
class SourceInfo:
    """A source of remote files.

    `factory` is "module:Class" of a `SourceOpener`. `schemes`: URL schemes in lower case ("s3"); "*" matches schemes
    that no other source declares. `options`: options of `open(source_options=...)`, each with a description.
    """

    id: str
    title: str
    factory: str
    schemes: tuple[str, ...]
    options: Mapping[str, str] = field(factory=dict)


@frozen(kw_only=True)
class SchedulerInfo:
    """A scheduler, which runs the tasks of a job in other processes: `scheduler="ID[:ADDRESS]"`.

    `factory` is "module:Class" of a `Scheduler`.
    """

    id: str
    title: str
    factory: str


Info = ContainerInfo | CodecInfo | BackendInfo | EncoderInfo | AllocatorInfo | FamilyInfo | SourceInfo | SchedulerInfo
INFOS: dict[str, type[Any]] = {
    "container": ContainerInfo, "codec": CodecInfo, "backend": BackendInfo, "encoder": EncoderInfo,
    "allocator": AllocatorInfo, "family": FamilyInfo, "source": SourceInfo, "scheduler": SchedulerInfo,
}  # fmt: skip
"""Kind of plugin -> class of its declarations. The hook is `squish_<kind>s`, or has the plural in `PLURALS`."""
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
        """File formats of the plugin.

        Returns
        -------
        iterable of ContainerInfo
            Declarations; listing them imports no implementation.
        """

    @hookspec
    def squish_codecs(self) -> Iterable[CodecInfo]:  # type: ignore[empty-body]
        """Codecs of the plugin.

        Returns
        -------
        iterable of CodecInfo
            Declarations; listing them imports no implementation.
        """

    @hookspec
    def squish_encoders(self) -> Iterable[EncoderInfo]:  # type: ignore[empty-body]
        """Encoders of the plugin, for its own codecs or others'.

        Returns
        -------
        iterable of EncoderInfo
            Declarations; listing them imports no implementation.
        """

    @hookspec
    def squish_allocators(self) -> Iterable[AllocatorInfo]:  # type: ignore[empty-body]
        """Allocators of the plugin.

        Returns
        -------
        iterable of AllocatorInfo
            Declarations; listing them imports no implementation.
        """

    @hookspec
    def squish_backends(self) -> Iterable[BackendInfo]:  # type: ignore[empty-body]
        """Backends of the plugin.

        Returns
        -------
        iterable of BackendInfo
            Declarations; listing them imports no implementation.
        """

    @hookspec
    def squish_families(self) -> Iterable[FamilyInfo]:  # type: ignore[empty-body]
        """Model families of the plugin.

        Returns
        -------
        iterable of FamilyInfo
            Declarations; listing them imports no implementation.
        """

    @hookspec
    def squish_sources(self) -> Iterable[SourceInfo]:  # type: ignore[empty-body]
        """Sources of the plugin, which open URLs.

        Returns
        -------
        iterable of SourceInfo
            Declarations; listing them imports no implementation.
        """

    @hookspec
    def squish_schedulers(self) -> Iterable[SchedulerInfo]:  # type: ignore[empty-body]
        """Schedulers of the plugin, which run tasks in other processes.

        Returns
        -------
        iterable of SchedulerInfo
            Declarations; listing them imports no implementation.
        """

    @hookspec
    def squish_commands(self, app: Any) -> None:
        """Add subcommands to the `squish` command line.

        Parameters
        ----------
        app
            A typer app; its `command` also takes `examples=`, and adds `--json`, which decides how the `Answer` that a
            command returns is printed.
        """
