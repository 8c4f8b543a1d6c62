"""The ONNX container: reads the initializers of a model, and writes decoders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve
from squish_codecs.api import Affine

from squish_core.api import (
    DENSE,
    CodecSpec,
    CodeLayout,
    DenseFields,
    DenseRecord,
    Encoding,
    ErrorCode,
    FileRef,
    Index,
    LazyTensors,
    Limits,
    Options,
    OutgoingTensor,
    Part,
    Problem,
    Refusal,
    Segment,
    Sink,
    Source,
    TensorSpec,
    WritableContainer,
    WritePlan,
    check_extents,
    dtypes,
)

from . import ASSETS, CONFIG, MODEL
from .blocks import Blocks
from .external import ExternalFiles
from .graph_values import QuantizedWeight, UncombinedCodes
from .model import looks_like_model, read_model
from .tensor import TensorProto
from .write import accept, existing, writer

Record = tuple[TensorProto, int, int]
"""Tensor, and the file and offset of its values; file -1 if the tensor holds them."""
QuantizedRecord = tuple[QuantizedWeight, Mapping[str, Record]]
"""A quantized weight, and the records of its parts."""
UncombinedRecord = tuple[Problem, Record]
"""The problem of codes without scales, and the record of their initializer."""


class Onnx(WritableContainer):
    """ONNX models with weights inside or in external files; writes decoders of the families in `FAMILIES`."""

    def sniff(self, source: Source) -> bool:
        return looks_like_model(source)

    def read_index(self, source: Source, limits: Limits) -> Index:
        file = source.member(MODEL) if source.is_dir else source
        model = read_model(file, limits)
        locations = _Locations(ExternalFiles(source, file))
        parts = {part: weight for weight in model.weights.values() for part in weight.parts.values()}
        initializers = {name: locations.record(tensor) for name, tensor in model.tensors.items()}
        uncombined = {codes.name: _uncombined(codes) for codes in model.uncombined}
        records: dict[str, Record | QuantizedRecord | UncombinedRecord] = {}
        for name, record in initializers.items():
            weight = parts.get(name)
            if weight is None:
                records[name] = (uncombined[name], record) if name in uncombined else record
            elif weight.name not in records:
                records[weight.name] = weight, {role: initializers[part] for role, part in weight.parts.items()}
        files = (FileRef(file.filename, file.size), *locations.files)
        shared, _ = check_extents(locations.extents, files)
        assets = [file.member(name) for name in _assets_beside(file)]
        return Index(
            format="onnx",
            version=str(model.ir_version),
            files=(*files, *(FileRef(asset.filename, asset.size) for asset in assets)),
            tensors=LazyTensors(records, build, locations.extents),
            meta=dict(model.meta),
            assets={
                asset.filename: Part(dtype="u8", shape=(asset.size,), segments=(Segment(number, 0, asset.size),))
                for number, asset in enumerate(assets, len(files))
            },
            problems=(
                *shared,
                *map(_two_values, filter(_has_two_values, model.tensors.values())),
                *uncombined.values(),
            ),
            graph=f"of {model.nodes} nodes" if model.nodes else "",
        )

    def naming(self, options: Options) -> str:
        return "hf"

    def options_for(self, source: Source, index: Index, options: Options) -> Options:
        return writer.with_own_graph(source, index, options)

    def writes_beside(self, options: Options) -> bool:
        return True

    def accepts(self, spec: TensorSpec, encoding: Encoding, options: Options) -> Encoding | Refusal:
        return accept.accepts(spec, encoding, any_dtype=existing.GRAPH in options)

    def accepts_codes(self, spec: TensorSpec, layout: CodeLayout, options: Options) -> Encoding | Refusal | None:
        return accept.accepts_codes(spec, layout, any_name=existing.GRAPH in options)

    def omitted(self, names: Sequence[str], assets: Mapping[str, Part], options: Options) -> Mapping[str, str]:
        return {} if existing.GRAPH in options else writer.omitted(names, assets)

    def choose(self, specs: Sequence[TensorSpec], codec: CodecSpec, options: Options) -> Mapping[str, CodecSpec | str]:
        return existing.choose(specs, codec, options)

    def plan_file(
        self, specs: Sequence[TensorSpec], meta: Mapping[str, Any], assets: Mapping[str, Part], options: Options
    ) -> WritePlan:
        return writer.plan_file(specs, meta, assets, options)

    def write(
        self,
        sink: Sink,
        tensors: Sequence[OutgoingTensor],
        meta: Mapping[str, Any],
        assets: Mapping[str, bytes],
        options: Options,
    ) -> None:
        writer.write(sink, tensors, meta, assets, options)


def _assets_beside(file: Source) -> list[str]:
    """Return the names of the files beside a model, if one of them is config.json."""
    members = file.members(likely=ASSETS)
    return [name for name in ASSETS if name in members] if CONFIG in members else []


def _has_two_values(tensor: TensorProto) -> bool:
    return bool(tensor.value_fields)


def _two_values(tensor: TensorProto) -> Problem:
    """Return a warning about a tensor with several fields of values; readers choose different ones."""
    return Problem(
        code="doubled",
        severity="warning",
        where=tensor.name,
        message=f"has values in {' and '.join(tensor.value_fields)}; those in {tensor.value_fields[0]} are used",
    )


def _uncombined(codes: UncombinedCodes) -> Problem:
    """Return a note about codes that no codec combines with their scales."""
    return Problem(
        code=ErrorCode.CODES,
        severity="note",
        where=codes.name,
        message=f"holds quantized codes of {codes.operator} ({codes.reason}); parts() and copies contain the raw codes",
    )


class _Locations:
    """The locations of the values of initializers. `extents`: their byte ranges."""

    def __init__(self, external: ExternalFiles) -> None:
        self._external = external
        self._numbers: dict[str, int] = {}
        self.extents: list[tuple[int, int, int, str]] = []

    @property
    def files(self) -> Iterator[FileRef]:
        """The files beside the model."""
        return (FileRef(path, self._external.files[path].size) for path in self._numbers)

    def record(self, tensor: TensorProto) -> Record:
        """Return the record of an initializer."""
        if tensor.problem or tensor.values is not None:
            return tensor, -1, 0
        number, (offset, size) = 0, tensor.raw or (0, 0)
        if tensor.external is not None:
            values = self._external.locate(tensor, tensor.external)
            number = self._numbers.setdefault(values.path, len(self._numbers) + 1)
            offset, size = values.offset, values.size
        self.extents.append((number, offset, size, tensor.name))
        return tensor, number, offset


def build(name: str, record: Record | QuantizedRecord | UncombinedRecord) -> DenseFields | TensorSpec:
    """Return the spec of an initializer or a quantized weight, or the fields of a dense record."""
    if isinstance(record[0], QuantizedWeight):
        return _quantized(*record)
    if isinstance(record[0], Problem):
        fields = build(name, record[1])
        spec = fields if isinstance(fields, TensorSpec) else DenseRecord(*fields).spec(name)
        return evolve(spec, undeclared=record[0])
    tensor, file, offset = record
    if tensor.problem:
        return TensorSpec(name=name, shape=tensor.shape, dtype=tensor.dtype, problem=tensor.problem)
    if file >= 0:
        return tensor.dtype, tensor.shape, file, offset, None
    packed = dtypes.bits(tensor.dtype) < 8
    part = Part(
        dtype="u8" if packed else tensor.dtype, shape=(tensor.nbytes,) if packed else tensor.shape, data=tensor.values
    )
    return TensorSpec(
        name=name, shape=tensor.shape, dtype=tensor.dtype, encodings=(Encoding(codec=DENSE, parts={"data": part}),)
    )


def _quantized(weight: QuantizedWeight, records: Mapping[str, Record]) -> TensorSpec:
    """Return the spec of a weight whose codes, scales and offsets are initializers."""
    spec = TensorSpec(name=weight.name, shape=weight.shape, dtype="f32", encodings=())
    codec = (Affine if weight.codec == "affine" else Blocks).from_params(weight.params)
    parts = {}
    for role, (dtype, shape) in codec.parts(spec).items():
        tensor, file, offset = records[role]
        segments = (Segment(file, offset, tensor.nbytes),) if file >= 0 else ()
        parts[role] = Part(dtype=dtype, shape=shape, segments=segments, data=tensor.values if file < 0 else None)
    return evolve(spec, encodings=(Encoding(codec=CodecSpec(weight.codec, weight.params), parts=parts),))
