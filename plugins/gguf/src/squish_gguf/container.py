"""The GGUF container: reads a file or a split set into an Index, and writes tensors to a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve

from squish_core.api import (
    DENSE,
    MAX_INLINE,
    CodecSpec,
    CodeLayout,
    DenseFields,
    Encoding,
    ErrorCode,
    File,
    FileRef,
    Index,
    LazyTensors,
    Limits,
    ModelFacts,
    Options,
    OutgoingTensor,
    Part,
    Problem,
    Refusal,
    Segment,
    Sink,
    Source,
    TensorSpec,
    UsageError,
    WritableContainer,
    WritePlan,
    align_up,
    check_extents,
    dropped_assets,
    single_value,
)

from . import writer
from .kept_files import keeps_files, pack_files, small_files, split_files
from .presets import ALIASES, PRESETS, described, other_type, preset_for, read_as_f32
from .reader import Head, unknown_type
from .shapes import KEY as SHAPE
from .shapes import original_shapes, reshaped
from .shards import PLACES, SHARD_KEYS, edited_places, shards_of, splits, with_alignment
from .splits import KEYS, read_set
from .types import BLOCK_CODES, DENSE_CODES, GLOBAL_SCALE, IK_LLAMA, LAYOUTS, SCALE, SCALED_NVFP4, TYPES, WEIGHT

_KINDS = ("adapter", "imatrix", "mmproj", "vocab")


Entry = tuple[Any, ...]
"""File and record of a tensor; a weight with a global scale has a pair, with those of the scale."""


class Gguf(WritableContainer):
    """GGUF v2 and v3 in both byte orders, single files and split sets; writes little-endian v3."""

    statistics_prefix = "quantize.imatrix"

    def read_index(self, source: Source, limits: Limits) -> Index:
        heads = read_set(source, limits)
        files = tuple(FileRef(head.name, head.size) for head in heads)
        records: dict[str, Entry] = {
            name: (number, record) for number, head in enumerate(heads) for name, record in head.records.items()
        }
        extents = [
            (file, record.offset, record.nbytes, name)
            for name, (file, record) in records.items()
            if record.code in LAYOUTS
        ]
        _attach_scales(records)
        shared, _ = check_extents(extents, files, aliases="problem")
        meta: dict[str, Any] = {}
        for head in heads:
            meta.update({key: value for key, value in head.meta.items() if key not in meta})
        if len(heads) > 1:
            # Split keys describe the files, not the model: a converted model is one file.
            meta = {key: value for key, value in meta.items() if key not in KEYS}
        meta, assets = split_files(meta)
        misshapen = _reshape(records, meta)
        kind = _kind(heads[0])
        return Index(
            format="gguf",
            version=str(heads[0].version),
            files=files,
            kind=kind,
            tensors=LazyTensors(records, build, extents),
            meta=meta,
            assets=assets,
            attrs={SHARD_KEYS: {head.name: tuple(head.meta) for head in heads}} if len(heads) > 1 else {},
            problems=(
                *(p for head in heads for p in (*head.problems, *_holes(head))),
                *shared,
                *_scaled(records),
                *misshapen,
            ),
        )

    def verify(self, index: Index, source: Source, limits: Limits) -> Sequence[Problem]:
        """Report nonzero padding."""
        return [problem for head in read_set(source, limits) for problem in _dirty_padding(head, source)]

    def encodings_for(self, *, dtype: Any = None, **features: Any) -> tuple[Encoding, ...]:
        dtype = single_value("dtype", dtype)
        if dtype is None:
            return ()
        if dtype in DENSE_CODES:
            return (Encoding(codec=DENSE, parts={"data": Part(dtype=dtype, shape=())}),)
        return (Encoding(codec=CodecSpec(f"ggml.{dtype}"), parts={"data": Part(dtype="u8", shape=())}),)

    def naming(self, options: Options) -> str:
        return "gguf"

    def rewrite_options(self, file: File) -> Options:
        """Options that write a file again as it is; none."""
        return {}

    def options_for(self, source: Source, index: Index, options: Options) -> Options:
        """Let the tensors of a set that is edited stay in their files."""
        if PLACES not in index.attrs or SHARD_KEYS not in index.attrs:
            return options
        return {**options, PLACES: edited_places(index.attrs, index.attrs[PLACES])}

    def choose(self, specs: Sequence[TensorSpec], codec: CodecSpec, options: Options) -> Mapping[str, CodecSpec | str]:
        """Leave vectors and routers of a model unchanged instead of narrowing them: llama.cpp runs them in f32."""
        return {spec.name: codec for spec in specs} | read_as_f32(specs, codec)

    def preset(self, name: str, model: ModelFacts) -> str | None:
        """Return llama-quantize's preset for a type name, with its mix and fallbacks, if it would accept the model."""
        return preset_for(name, model.names, model.metadata)

    def presets(self) -> Mapping[str, Mapping[str, str]]:
        return {name: described(name) for name in (*PRESETS, *ALIASES)}

    def fallback(self, spec: TensorSpec, codec: CodecSpec) -> CodecSpec | None:
        return other_type(spec.shape, codec)

    def accepts(self, spec: TensorSpec, encoding: Encoding, options: Options) -> Encoding | Refusal:
        return writer.accepts(spec, encoding)

    def accepts_codes(self, spec: TensorSpec, layout: CodeLayout, options: Options) -> Encoding | Refusal | None:
        return writer.accepts_codes(spec, layout)

    def plan_file(
        self,
        specs: Sequence[TensorSpec],
        meta: Mapping[str, Any],
        assets: Mapping[str, Part],
        options: Options,
    ) -> WritePlan:
        if (keep := options.get("keep", "yes")) not in ("yes", "no"):
            raise UsageError(
                "invalid value of the GGUF option keep", found=repr(keep), expected="yes or no", code=ErrorCode.OPTION
            )
        shards_of(options)
        with_alignment(meta, options)
        if not keeps_files(meta, options):
            return WritePlan(dropped=(*writer.dropped_keys(specs, meta), *dropped_assets(assets)))
        files = small_files({name: bytes(part.data) for name, part in assets.items() if part.data is not None})
        lost = dropped_assets((name for name in assets if name not in files), f"more than {MAX_INLINE >> 20} MiB")
        return WritePlan(dropped=(*writer.dropped_keys(specs, meta), *lost))

    def write(
        self,
        sink: Sink,
        tensors: Sequence[OutgoingTensor],
        meta: Mapping[str, Any],
        assets: Mapping[str, bytes],
        options: Options,
    ) -> None:
        files = small_files(assets) if keeps_files(meta, options) else {}
        keys = with_alignment({**meta, **pack_files(files)}, options)
        writer.write(sink, tensors, keys, shards_of(options) if splits(options) else None)

    def writes_beside(self, options: Options) -> bool:
        return splits(options)


def build(name: str, entry: Entry) -> DenseFields | TensorSpec:
    """Return a tensor's spec (of a dense one the fields of its record): dense, or rows of blocks."""
    file, (code, stored, offset, nbytes, big, original), *scale = entry
    kind, shape = TYPES.get(code), stored if original is None else original
    if kind is not None and kind.dtype and not big:
        return kind.dtype, shape, file, offset, None
    segments = (Segment(file, offset, nbytes),)
    if kind is None:
        return _undecoded(name, code, shape, Part(dtype="u8", shape=(nbytes,), segments=segments), big)
    dtype, codec, part_shape = kind.dtype or "u8", DENSE, shape
    if not kind.dtype:
        part_shape = (*(shape if stored[-1] == shape[-1] else stored)[:-1], stored[-1] // kind.elements * kind.nbytes)
        codec = CodecSpec(f"ggml.{kind.name.lower()}")
        codec = CodecSpec("ggml.big_endian", {}, codec) if big else codec
        codec = codec if original is None else reshaped(codec, stored, shape)
    part = Part(dtype=dtype, shape=part_shape, segments=segments, byteorder=">" if big and kind.dtype else "<")
    parts = {"data": part}
    for number, record in scale:
        codec, segment = CodecSpec(SCALED_NVFP4), Segment(number, record.offset, record.nbytes)
        parts[GLOBAL_SCALE] = Part(dtype="f32", shape=shape[:-2], segments=(segment,))
    return TensorSpec(
        name=name, shape=shape, dtype=kind.dtype or "f32", encodings=(Encoding(codec=codec, parts=parts),)
    )


def _undecoded(name: str, code: int, shape: tuple[int, ...], data: Part, big: bool) -> TensorSpec:
    """Return the spec of a tensor without a decoder; GGUF keeps its bytes if the size of its type is defined."""
    kind, problem = IK_LLAMA.get(code), unknown_type(code)
    if kind is None or big:
        return TensorSpec(name=name, shape=shape, dtype="f32", problem=problem, extras={"data": data})
    rows = evolve(data, shape=(*shape[:-1], kind.row_size(shape[-1] if shape else 1)))
    encoding = Encoding(codec=CodecSpec(f"ik_llama.{kind.name.lower()}"), parts={"data": rows})
    return TensorSpec(name=name, shape=shape, dtype="f32", problem=problem, encodings=(encoding,))


def _kind(head: Head) -> str:
    """Return the kind of content; vision projectors without `general.type` are recognized by their architecture."""
    kind = head.value("general.type")
    if kind is None and head.value("general.architecture") == "clip":
        return "mmproj"
    return kind if kind in _KINDS else "model"


def _reshape(records: dict[str, Entry], meta: dict[str, Any]) -> list[Problem]:
    """Give tensors the shapes that keys state for them."""
    if not any(key.startswith(SHAPE) for key in meta):
        return []
    shapes, problems = original_shapes(meta, {name: record.shape for name, (_, record, *_) in records.items()})
    for name, shape in shapes.items():
        number, record, *scale = records[name]
        if not scale and record.code in TYPES:
            records[name] = (number, record._replace(original=shape))
    return problems


def _attach_scales(records: dict[str, Entry]) -> None:
    """Join NVFP4 weights and their global scales: f32 [1], or one for each matrix of a stack."""
    nvfp4, f32 = BLOCK_CODES[SCALED_NVFP4], DENSE_CODES["f32"]
    for name in [name for name, (_, record, *_) in records.items() if record.code == nvfp4 and not record.big]:
        number, record, *_ = records[name]
        scale_number, scale, *_ = records.get(_scale_name(name), (0, None))
        if scale is not None and scale.code == f32 and scale.shape == (record.shape[:-2] or (1,)):
            records[name] = (number, record, (scale_number, scale))
            del records[_scale_name(name)]


def _scale_name(name: str) -> str:
    return f"{name.removesuffix(WEIGHT)}{SCALE}" if name.endswith(WEIGHT) else ""


def _scaled(records: Mapping[str, Entry]) -> Iterator[Problem]:
    """Yield a note if llama.cpp multiplies products by scales that are tensors of their own (BitNet)."""
    scaled = [
        name
        for name, (_, record, *_) in records.items()
        if _scale_name(name) in records and (kind := TYPES.get(record.code)) is not None and not kind.dtype
    ]
    if scaled:
        scale = _scale_name(scaled[0])
        yield Problem(
            code="scale",
            severity="note",
            where=scaled[0],
            message=f"{len(scaled)} quantized tensors have separate scales ({scale}), by which llama.cpp multiplies "
            "their products; the values read here do not include them",
        )


def _holes(head: Head) -> Iterator[Problem]:
    """Yield unused ranges between and after the tensors, beyond padding."""
    end, holes = head.data, []
    ranges = sorted((record.offset, record.nbytes) for record in head.records.values())
    for offset, nbytes in (*ranges, (head.size, 0)):
        if offset > align_up(end, head.alignment):
            holes.append((align_up(end, head.alignment), offset))
        end = max(end, offset + nbytes)
    if holes and holes[-1][1] == head.size:
        start, stop = holes.pop()
        yield Problem(
            code="trailing",
            severity="warning",
            where=f"byte {start}",
            message=f"{stop - start} unused bytes after the last tensor",
        )
    if holes:
        yield Problem(
            code="hole",
            severity="warning",
            where=f"byte {holes[0][0]}",
            message=f"{sum(stop - start for start, stop in holes)} unused bytes between tensors (gaps: {len(holes)})",
        )


def _dirty_padding(head: Head, source: Source) -> Iterator[Problem]:
    member = source if head.name == source.filename else source.member(head.name)
    ranges = [(record.offset, record.offset + record.nbytes) for record in head.records.values()]
    spans = sorted([(0, head.end), *ranges, (head.size, head.size)])
    for (_, end), (start, _) in zip(spans, spans[1:]):
        if 0 < start - end < head.alignment and any(member.read(end, start - end)):
            yield Problem(code="padding", severity="warning", where=f"byte {end}", message="nonzero padding")
