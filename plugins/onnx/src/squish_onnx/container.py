"""The ONNX container: the initializers of a model as an Index, and a model for the tensors of a family."""

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
from .coded import CodedWeight, CodesApart
from .external import ExternalFiles
from .model import looks_like_model, read_model
from .tensor import TensorProto
from .write import accept, existing, writer

Record = tuple[TensorProto, int, int]
"""Tensor, and the file and offset of its values; file -1 if they are in the tensor."""
CodedRecord = tuple[CodedWeight, Mapping[str, Record]]
"""A quantized weight, and the records of its parts."""
ApartRecord = tuple[Problem, Record]
"""What is not known about codes, and their record."""


class Onnx(WritableContainer):
    """ONNX models with their weights inside or in files beside them; writes decoders of known families."""

    def sniff(self, source: Source) -> bool:
        return looks_like_model(source)

    def read_index(self, source: Source, limits: Limits) -> Index:
        file = source.member(MODEL) if source.is_dir else source
        model = read_model(file, limits)
        locations = _Locations(ExternalFiles(source, file))
        parts = {part: weight for weight in model.weights.values() for part in weight.parts.values()}
        stored = {name: locations.record(tensor) for name, tensor in model.tensors.items()}
        apart = {codes.name: _apart(codes) for codes in model.apart}
        records: dict[str, Record | CodedRecord | ApartRecord] = {}
        for name, record in stored.items():
            weight = parts.get(name)
            if weight is None:
                records[name] = (apart[name], record) if name in apart else record
            elif weight.name not in records:
                records[weight.name] = weight, {role: stored[part] for role, part in weight.parts.items()}
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
            problems=(*shared, *map(_doubled, filter(_is_doubled, model.tensors.values())), *apart.values()),
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
    """Names of the files beside a model whose config.json is there."""
    members = file.members(likely=ASSETS)
    return [name for name in ASSETS if name in members] if CONFIG in members else []


def _is_doubled(tensor: TensorProto) -> bool:
    return bool(tensor.doubled)


def _doubled(tensor: TensorProto) -> Problem:
    """A warning about a tensor with two sets of values, of which readers use one or the other."""
    return Problem(
        code="doubled",
        severity="warning",
        where=tensor.name,
        message=f"has values in {' and '.join(tensor.doubled)}; those in {tensor.doubled[0]} are used",
    )


def _apart(codes: CodesApart) -> Problem:
    """A note about codes whose values are unknown, because no codec combines them with their scales."""
    return Problem(
        code=ErrorCode.CODES,
        severity="note",
        where=codes.name,
        message=f"holds quantized codes of {codes.operator} ({codes.reason}); its numbers are in parts() and in copies",
    )


class _Locations:
    """Locates the values of initializers. `extents`: their byte ranges."""

    def __init__(self, external: ExternalFiles) -> None:
        self._external = external
        self._numbers: dict[str, int] = {}
        self.extents: list[tuple[int, int, int, str]] = []

    @property
    def files(self) -> Iterator[FileRef]:
        """The files beside the model."""
        return (FileRef(path, self._external.files[path].size) for path in self._numbers)

    def record(self, tensor: TensorProto) -> Record:
        """The record of an initializer."""
        if tensor.problem or tensor.values is not None:
            return tensor, -1, 0
        number, (offset, size) = 0, tensor.raw or (0, 0)
        if tensor.external is not None:
            values = self._external.locate(tensor, tensor.external)
            number = self._numbers.setdefault(values.path, len(self._numbers) + 1)
            offset, size = values.offset, values.size
        self.extents.append((number, offset, size, tensor.name))
        return tensor, number, offset


def build(name: str, record: Record | CodedRecord | ApartRecord) -> DenseFields | TensorSpec:
    """The spec of an initializer or a quantized weight, or the fields of a dense record."""
    if isinstance(record[0], CodedWeight):
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


def _quantized(weight: CodedWeight, records: Mapping[str, Record]) -> TensorSpec:
    """The spec of a weight whose codes, scales and offsets are initializers."""
    spec = TensorSpec(name=weight.name, shape=weight.shape, dtype="f32", encodings=())
    codec = (Affine if weight.codec == "affine" else Blocks).from_params(weight.params)
    parts = {}
    for role, (dtype, shape) in codec.parts(spec).items():
        tensor, file, offset = records[role]
        segments = (Segment(file, offset, tensor.nbytes),) if file >= 0 else ()
        parts[role] = Part(dtype=dtype, shape=shape, segments=segments, data=tensor.values if file < 0 else None)
    return evolve(spec, encodings=(Encoding(codec=CodecSpec(weight.codec, weight.params), parts=parts),))
