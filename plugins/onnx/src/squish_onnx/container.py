"""The ONNX container: the initializers of a model as an Index, and a model for the tensors of a family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from squish_core.api import (
    DENSE,
    CodecSpec,
    CodeLayout,
    Container,
    DenseFields,
    Encoding,
    FileRef,
    Index,
    LazyTensors,
    Limits,
    Options,
    OutgoingTensor,
    Part,
    Refusal,
    Sink,
    Source,
    TensorSpec,
    WritePlan,
    check_extents,
    dtypes,
)

from . import MODEL
from .external import ExternalFiles
from .model import looks_like_model, read_model
from .tensor import TensorProto
from .write import accept, existing, writer

Record = tuple[TensorProto, int, int]
"""Tensor, and the file and offset of its values; file -1 if they are in the tensor."""


class Onnx(Container):
    """ONNX models with their weights inside or in files beside them; writes decoders of known families."""

    def sniff(self, source: Source) -> bool:
        return looks_like_model(source)

    def read_index(self, source: Source, limits: Limits) -> Index:
        file = source.member(MODEL) if source.is_dir else source
        model = read_model(file, limits)
        external = ExternalFiles(source, file)
        records: dict[str, Record] = {}
        extents: list[tuple[int, int, int, str]] = []
        numbers: dict[str, int] = {}
        for name, tensor in model.tensors.items():
            records[name] = tensor, -1, 0
            if tensor.problem or tensor.values is not None:
                continue
            number, (offset, size) = 0, tensor.raw or (0, 0)
            if tensor.external is not None:
                place = external.place(tensor, tensor.external)
                number = numbers.setdefault(place.path, len(numbers) + 1)
                offset, size = place.offset, place.size
            records[name] = tensor, number, offset
            extents.append((number, offset, size, name))
        files = (FileRef(file.filename, file.size), *(FileRef(path, external.files[path].size) for path in numbers))
        shared, _ = check_extents(extents, files)
        return Index(
            format="onnx",
            version=str(model.ir_version),
            files=files,
            tensors=LazyTensors(records, build, extents),
            meta=dict(model.meta),
            problems=tuple(shared),
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

    def choose(self, specs: Sequence[TensorSpec], codec: CodecSpec, options: Options) -> Mapping[str, CodecSpec]:
        return existing.choose(specs, codec, options)

    def plan_file(
        self, specs: Sequence[TensorSpec], meta: Mapping[str, Any], assets: Mapping[str, Part], options: Options
    ) -> WritePlan:
        return writer.plan_file(specs, meta, assets, options)

    def write(
        self, sink: Sink, tensors: Sequence[OutgoingTensor], meta: Mapping[str, Any], assets: Mapping[str, bytes],
        options: Options,
    ) -> None:  # fmt: skip
        writer.write(sink, tensors, meta, assets, options)


def build(name: str, record: Record) -> DenseFields | TensorSpec:
    """The spec of an initializer, or the fields of its record."""
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
