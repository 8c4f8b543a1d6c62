"""The interfaces of file formats: `Container` reads files, and `WritableContainer` also writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from squish_core.errors import FormatError
from squish_core.formats.dropped import dropped_assets, dropped_metadata
from squish_core.formats.write_plan import WritePlan
from squish_core.io.source import Source
from squish_core.limits import Limits
from squish_core.model import CodecSpec, Encoding, Index, Part, Refusal, TensorSpec

if TYPE_CHECKING:
    from squish_core.codecs.allocator import ModelFacts
    from squish_core.codecs.code_layout import CodeLayout
    from squish_core.formats.outgoing import OutgoingTensor
    from squish_core.io.sink import Sink

Options = Mapping[str, str]
"""Options of a format as text, from `ID:key=value`."""


class Container:
    """A file format: a function from bytes to an Index. docs/writing-a-plugin.md builds one from scratch.

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

    id: str = ""

    def read_index(self, source: Source, limits: Limits) -> Index:
        """Read and check the header of a file; never its tensor data.

        Parameters
        ----------
        source
            The file or folder; it checks the bounds of every read.
        limits
            Upper bounds for what the file may declare, such as the number of tensors.

        Returns
        -------
        Index
            Names, shapes, encodings and byte ranges.

        Raises
        ------
        FormatError
            The file violates its format; TruncatedError and LimitError are subclasses.
        """
        raise NotImplementedError

    def read_index_with(self, source: Source, limits: Limits, options: Options) -> Index:
        """Read the header with the read options of `format="id:key=value"`, which `ContainerInfo.reading` declares.

        Parameters
        ----------
        source, limits
            As in `read_index`.
        options
            Read options, at least one.

        Returns
        -------
        Index
            As from `read_index`, which a format without read options calls.
        """
        return self.read_index(source, limits)

    def unrefined(self, index: Index, source: Source, limits: Limits) -> Index:
        """Complete the Index of a file that no refinement will read, because the caller named this format.

        Parameters
        ----------
        index
            As from `read_index`.
        source, limits
            As in `read_index`.

        Returns
        -------
        Index
            The Index itself by default.
        """
        return index

    def loading(self, source: Source) -> None:
        """React to the first read of values from a file whose Index has `pending_caches`.

        Parameters
        ----------
        source
            The open file.
        """

    def sniff(self, source: Source) -> bool:
        """Whether a file with this format's signature is in this format. Called only if the declaration has `sniffs`.

        Parameters
        ----------
        source
            The file, limited to 64 KiB of reads.

        Returns
        -------
        bool
            If False, other formats with the signature are tried.
        """
        return True

    def encodings_for(self, **features: Any) -> tuple[Encoding | Refusal, ...]:
        """Encodings for a combination of the declared `features`, without a file.

        Parameters
        ----------
        **features
            Feature -> value or set of values.

        Returns
        -------
        tuple of Encoding or Refusal
            In order of preference. A Refusal takes the place of an encoding that one feature names and another
            excludes, so that the chain can list the reason.

        Raises
        ------
        FormatError
            The features contradict each other.
        """
        raise FormatError("this format has no features; use a file instead", code="features")

    def verify(self, index: Index, source: Source, limits: Limits) -> Sequence[Any]:
        """Check what only the data show, in addition to the core's checks of bounds, digests and decoding.

        Parameters
        ----------
        index
            The Index of the file.
        source, limits
            As in `read_index`.

        Returns
        -------
        sequence of Problem
            Empty for a valid file.
        """
        return ()


class WritableContainer(Container):
    """A file format that can also be written: it implements `accepts`, `write` and, to store metadata, `plan_file`.

    `write` decides all sizes and offsets: planning calls it with a sink that only records them (`Sink.records`).

    Examples
    --------
    >>> from squish_core import api
    >>> class Acme(api.WritableContainer):
    ...     def write(self, sink, tensors, meta, assets, options):
    ...         sink.write(b"ACME" + bytes(4))
    >>> Acme().plan_file((), {"author": "me"}, {}, {}).dropped
    (Dropped(kind='metadata', name='author', reason='', where=''),)
    """

    statistics_prefix: ClassVar[str | None] = None
    """Prefix of the metadata in which the format records activation statistics; None if it does not."""

    def accepts(self, spec: TensorSpec, encoding: Encoding, options: Options) -> Encoding | Refusal:
        """How this format would store a tensor with this encoding.

        Parameters
        ----------
        spec
            The tensor: name, shape, dtype.
        encoding
            An encoding of the source, or the one that a rule requests.
        options
            Write options, `--to ID:key=value`.

        Returns
        -------
        Encoding or Refusal
            Parts with dtype and shape but without segments, or the reason why the format cannot store it.
        """
        raise NotImplementedError

    def accepts_codes(self, spec: TensorSpec, layout: CodeLayout, options: Options) -> Encoding | Refusal | None:
        """How this format would store codes with this layout; called if `accepts` refuses the tensor's encoding.

        Whether the codes fit exactly is decided later, on the data.

        Parameters
        ----------
        spec, layout, options
            The tensor, the layout of its codes, and the write options.

        Returns
        -------
        Encoding, Refusal or None
            None keeps the refusal of `accepts`.
        """
        return None

    def tells_symmetric(self, options: Options) -> bool:
        """Whether this format stores symmetric codes, whose zero points are all the middle, in a form of their own.

        Parameters
        ----------
        options
            Write options, `--to ID:key=value`.

        Returns
        -------
        bool
            If True, planning reads stored zero points, and passes symmetric codes to `accepts` and `accepts_codes` as
            codes without zero points.
        """
        return False

    def choose(self, specs: Sequence[TensorSpec], codec: CodecSpec, options: Options) -> Mapping[str, CodecSpec | str]:
        """Apply a rule for all tensors (`encode=` without a pattern) by the conventions of the format.

        Parameters
        ----------
        specs, codec, options
            The tensors to write, the codec of the rule, and the write options.

        Returns
        -------
        dict
            Name -> codec, or the reason why the tensor stays unchanged. Others stay unchanged, as do those that the
            codec cannot encode. Reasons also apply to a rule `*=SPEC`.
        """
        return {spec.name: codec for spec in specs}

    def preset(self, name: str, model: ModelFacts) -> str | None:
        """What the bare name of an encoding means in a rule for all tensors.

        Parameters
        ----------
        name, model
            The name in `encode=`, in lower case, and the model to write.

        Returns
        -------
        str or None
            Another specification, such as a preset; None for the encoding itself.
        """
        return None

    def presets(self) -> Mapping[str, Mapping[str, str]]:
        """The names that `preset` knows, for `squish explain`.

        Returns
        -------
        dict
            Name -> kind of tensor -> its encoding, in words.
        """
        return {}

    def fallback(self, spec: TensorSpec, codec: CodecSpec) -> CodecSpec | None:
        """The codec for a tensor whose shape does not fit the codec of a rule with a pattern; None if there is none.

        Parameters
        ----------
        spec, codec
            The tensor, and the codec of the rule.

        Returns
        -------
        CodecSpec or None
            The codec that the format's own quantizer would use instead; the step's note names it.
        """
        return None

    def omitted(self, names: Sequence[str], assets: Mapping[str, Part], options: Options) -> Mapping[str, str]:
        """Tensors that this format leaves out of a model, such as those of other modalities.

        Parameters
        ----------
        names, assets, options
            The tensors to write, the model's other files as parts, and the write options.

        Returns
        -------
        dict
            Name -> reason, for the report. For a tensor that it does not know, `plan_file` raises an error instead.
        """
        return {}

    def dense_dtypes(self, specs: Sequence[TensorSpec], options: Options) -> Mapping[str, str]:
        """Dtypes that the write options prescribe for dense tensors that no rule changes.

        Parameters
        ----------
        specs, options
            The tensors to write, and the write options.

        Returns
        -------
        dict
            Name -> dtype, narrower than the tensor's own. Other tensors stay unchanged.
        """
        return {}

    def plan_file(
        self, specs: Sequence[TensorSpec], meta: Mapping[str, Any], assets: Mapping[str, Part], options: Options
    ) -> WritePlan:
        """State what the file cannot store: by default, all metadata and assets.

        Parameters
        ----------
        specs
            The tensors, with exactly one encoding each.
        meta, assets, options
            Metadata with stored types, the model's other files as parts, and the write options.

        Returns
        -------
        WritePlan
            Dropped items, notes and stacked tensors.
        """
        return WritePlan(dropped=(*dropped_metadata(meta), *dropped_assets(assets)))

    def write(
        self,
        sink: Sink,
        tensors: Sequence[OutgoingTensor],
        meta: Mapping[str, Any],
        assets: Mapping[str, bytes],
        options: Options,
    ) -> None:
        """Write a file in one pass.

        Parameters
        ----------
        sink
            The output: one file, the files of a folder, or a sink that only records offsets.
        tensors
            The tensors that `plan_file` got, each part as a stream.
        meta, assets, options
            Metadata with stored types, files by name, and the write options.
        """
        raise NotImplementedError

    def naming(self, options: Options) -> str | None:
        """Model layout whose tensor names the engines of this format expect.

        Parameters
        ----------
        options
            Write options.

        Returns
        -------
        str or None
            "hf", "gguf", "mlx" or "uqff"; None if the format prescribes no names.
        """
        return None

    def writes_folder(self, options: Options) -> bool:
        """Return whether the output is a folder rather than one file.

        Parameters
        ----------
        options
            Write options.

        Returns
        -------
        bool
            False for one file.
        """
        return False

    def writes_beside(self, options: Options) -> bool:
        """Return whether the output is one file with others beside it, which `sink.member` writes.

        Parameters
        ----------
        options
            Write options.

        Returns
        -------
        bool
            False for one file or a folder.
        """
        return False

    def options_for(self, source: Source, index: Index, options: Options) -> Options:
        """Return the write options of a conversion, completed from its source.

        Parameters
        ----------
        source, index
            The file to convert, and its Index.
        options
            The write options of `to=`.

        Returns
        -------
        dict
            `options` by default; more if the format copies data other than tensors from a source in the same format.
        """
        return options
