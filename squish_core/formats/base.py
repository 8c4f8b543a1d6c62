"""Interfaces of file formats: `Container` reads and writes one, `Refinement` reads meaning into another's Index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from attrs import field, frozen
from attrs.validators import deep_iterable, instance_of

from squish_core.codes import ErrorCode
from squish_core.errors import FormatError
from squish_core.io.source import Source
from squish_core.limits import Limits
from squish_core.model import CodecSpec, Encoding, Index, Part, Refusal, TensorSpec
from squish_core.renamed import Renamed

if TYPE_CHECKING:
    from squish_core.codecs.code_layout import CodeLayout
    from squish_core.formats.outgoing import OutgoingTensor
    from squish_core.io.sink import Sink

Options = Mapping[str, str]


@frozen
class Dropped:
    """Something of the source that the target has no place for.

    `name` is its key, role or file name; `where` is the tensor, part or file that it belongs to, if it belongs to one.
    """

    kind: Literal[
        "metadata", "asset", "attribute", "part", "digest", "child", "encoding", "declaration", "tensor",
    ]  # fmt: skip
    name: str
    reason: str = ""
    where: str = ""

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        return f"{where}{self.kind} {self.name}{f' ({self.reason})' if self.reason else ''}"


def dropped_assets(names: Iterable[str], reason: str = "") -> tuple[Dropped, ...]:
    """Assets that have no place."""
    return tuple(Dropped("asset", name, reason) for name in names)


def dropped_metadata(keys: Iterable[str], reason: str = "") -> tuple[Dropped, ...]:
    """Metadata that has no place."""
    return tuple(Dropped("metadata", key, reason) for key in keys)


@frozen(kw_only=True)
class WritePlan:
    """What writing would give: total bytes (None: not known before compression), what has no place, sentences about
    the file that its user should read, and tensors that are written as one: its name, and theirs in the order of its
    rows."""

    size: int | None
    dropped: tuple[Dropped, ...] = field(default=(), validator=deep_iterable(instance_of(Dropped)))
    notes: tuple[str, ...] = ()
    stacks: Mapping[str, Sequence[str]] = field(factory=dict)


class Container(Renamed):
    """A file format: a function from bytes to an Index, and back.

    A format that is only read needs `read_index` alone; one that is written also `accepts`, `plan_file` and `write`.
    docs/writing-a-plugin.md builds one from scratch.

    Examples
    --------
    >>> from squish_core import api
    >>> class Acme(api.Container):
    ...     def read_index(self, source, limits):
    ...         count = int.from_bytes(source.read(4, 4, "count"), "little")
    ...         part = api.Part(dtype="f32", shape=(count,), segments=(api.Segment(0, 8, 4 * count),))
    ...         encoding = api.Encoding(codec=api.DENSE, parts={"data": part})
    ...         spec = api.TensorSpec(name="w", shape=(count,), dtype="f32", encodings=(encoding,))
    ...         files = (api.FileRef(source.filename, source.size),)
    ...         return api.Index(format=self.id, version="1", files=files, tensors={"w": spec})
    >>> source = api.open_source(b"ACME" + bytes([2, 0, 0, 0]) + bytes(8))
    >>> Acme().read_index(source, api.Limits()).tensors["w"].shape
    (2,)
    """

    renamed: ClassVar[Mapping[str, str]] = {"layout": "plan_file", "recipes": "encodings_for"}
    id: str = ""

    def read_index(self, source: Source, limits: Limits) -> Index:
        """Index of a file; reads the header only and checks everything its format demands.

        Parameters
        ----------
        source
            The file or folder; it checks every range that is read.
        limits
            Most tensors, bytes and so on that the file may declare.

        Returns
        -------
        Index
            Names, shapes, encodings and byte ranges.

        Raises
        ------
        FormatError
            The file breaks its format; TruncatedError and LimitError are kinds of it.
        """
        raise NotImplementedError

    def sniff(self, source: Source) -> bool:
        """Whether a file with this format's signature is this format; asked only where the declaration has `sniffs`.

        Parameters
        ----------
        source
            The file; at most 64 KiB of it are read.

        Returns
        -------
        bool
            False lets other formats with the signature be tried.
        """
        return True

    def encodings_for(self, **features: Any) -> tuple[Encoding | Refusal, ...]:
        """What a combination of the declared `features` means; no file needed.

        Parameters
        ----------
        **features
            Feature -> a value, or a set of values.

        Returns
        -------
        tuple of Encoding or Refusal
            Ranked. A way that one feature names and another rules out is a Refusal, so that the chain can say why.

        Raises
        ------
        FormatError
            The features contradict each other.
        """
        raise FormatError("this format names no encodings by features; ask with a file", code="features")

    def accepts(self, spec: TensorSpec, encoding: Encoding, options: Options) -> Encoding | Refusal:
        """How this format would hold a tensor that is encoded so.

        Parameters
        ----------
        spec
            The tensor: name, shape, dtype.
        encoding
            An encoding of the source, or one that a rule asks for.
        options
            Options of writing, `--to ID:key=value`.

        Returns
        -------
        Encoding or Refusal
            Parts with dtype and shape but no segments, or why the format cannot hold it.
        """
        return Refusal(why="this format is read-only here", code="read-only")

    def accepts_codes(self, spec: TensorSpec, layout: CodeLayout, options: Options) -> Encoding | Refusal | None:
        """How this format would store codes of this layout, for a tensor whose encoding `accepts` refuses.

        Whether the codes fit exactly is decided on the data.

        Parameters
        ----------
        spec, layout, options
            The tensor, the layout of its stored integers, and options of writing.

        Returns
        -------
        Encoding, Refusal or None
            None: the answer of `accepts` stands.
        """
        return None

    def choose(self, specs: Sequence[TensorSpec], wanted: CodecSpec, options: Options) -> Mapping[str, CodecSpec]:
        """What a rule for all tensors (`encode=` without a pattern) means for each, by the format's own habits.

        Parameters
        ----------
        specs, wanted, options
            The tensors to write, the codec of the rule, and options of writing.

        Returns
        -------
        dict
            Name -> codec. Tensors that it does not name are kept as they are, and so are those the codec cannot take.
        """
        return {spec.name: wanted for spec in specs}

    def plan_file(
        self,
        specs: Sequence[TensorSpec],
        meta: Mapping[str, Any],
        assets: Mapping[str, Part],
        options: Options,
    ) -> WritePlan:
        """Predict the size of the file and what cannot be carried.

        Parameters
        ----------
        specs
            The tensors, with exactly one encoding each.
        meta, assets, options
            Metadata with stored types, whole files that belong to the model as parts, and options of writing.

        Returns
        -------
        WritePlan
            The size in bytes, what is dropped, notes and stacked tensors.

        Raises
        ------
        FormatError
            The format cannot hold these together.
        """
        raise FormatError("this format is read-only here", code="read-only")

    def write(
        self,
        sink: Sink,
        tensors: Sequence[OutgoingTensor],
        meta: Mapping[str, Any],
        assets: Mapping[str, bytes],
        options: Options,
    ) -> None:
        """Write a whole file in one pass.

        Parameters
        ----------
        sink
            Where the bytes go: one file, or the files of a folder.
        tensors
            What `plan_file` was asked about, each part as a stream.
        meta
            Metadata with stored types.
        assets
            Name -> bytes of whole files.
        options
            Options of writing.

        Raises
        ------
        FormatError
            The format is read-only.
        """
        raise FormatError("this format is read-only here", code="read-only")

    def naming(self, options: Options) -> str | None:
        """The layout of whole models whose names the engines that open this format look for.

        Parameters
        ----------
        options
            Options of writing.

        Returns
        -------
        str or None
            "hf", "gguf", "mlx" or "uqff"; None for a container of any names.
        """
        return None

    def writes_folder(self, options: Options) -> bool:
        """Whether these options make a folder of files rather than one file.

        Parameters
        ----------
        options
            Options of writing.

        Returns
        -------
        bool
            False for one file.
        """
        return False

    def verify(self, index: Index, source: Source, limits: Limits) -> Sequence[Any]:
        """Findings that only a look at the data shows; the core already checks bounds, digests and decoding.

        Parameters
        ----------
        index
            The Index of the file.
        source, limits
            As in `read_index`.

        Returns
        -------
        sequence of Problem
            Empty for a sound file.
        """
        return ()


def single_value(feature: str, value: Any) -> Any:
    """The one value of a feature of which a tensor has one; FormatError when several are given."""
    if isinstance(value, (set, frozenset, list, tuple)):
        if len(value) != 1:
            raise FormatError(f"a tensor has one {feature}", found=", ".join(sorted(value)), code="feature")
        (value,) = value
    return value


class Refinement(Container):
    """A format stored inside another one: it turns the other's Index into a richer one.

    Examples
    --------
    >>> from squish_core import api
    >>> class Marked(api.Refinement):
    ...     def refine(self, index, source, limits, options):
    ...         return index if index.meta.get("format") == "marked" else None
    >>> index = api.Index(format="safetensors", version="", files=(), tensors={}, meta={"format": "pt"})
    >>> Marked().refine(index, api.open_source(b""), api.Limits(), {}) is None
    True
    """

    def refine(self, index: Index, source: Source, limits: Limits, options: Options) -> Index | None:
        """The refined Index, or None when the file does not declare this format.

        Parameters
        ----------
        index
            The Index of the format around it.
        source, limits
            As in `Container.read_index`.
        options
            Options of opening (`ContainerInfo.reading`), as `format="id:key=value"` gives them.

        Returns
        -------
        Index or None
            Tensors with encodings that say what the stored parts mean.
        """
        raise NotImplementedError

    def read_index(self, source: Source, limits: Limits) -> Index:
        raise FormatError("a refinement reads an Index, not bytes", code=ErrorCode.PLUGIN_BUG)
