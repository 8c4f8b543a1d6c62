"""The SQUIZD container: a file's sections as an Index, its encodings without a file, and its writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve
from squish_codecs.api import rows_and_columns

from squish_core.api import (
    DENSE,
    NO_COMPANIONS,
    NO_OUTGOING_COMPANIONS,
    CodecSpec,
    CodeLayout,
    Companions,
    CompositeContainer,
    Encoding,
    File,
    FileRef,
    Index,
    Limits,
    Options,
    OutgoingCompanions,
    OutgoingTensor,
    Part,
    Problem,
    Refusal,
    Segment,
    Sink,
    Source,
    SquishError,
    TensorSpec,
    WritePlan,
    load_meta,
    single_value,
)

from . import verify
from .findings import Findings
from .read import walk
from .read.anatomy import Anatomy
from .read.blocks import BITS, NPCL_DTYPES, Block
from .read.header import ARCHITECTURES, DRAFT_KEY, GLOBAL_KEY, Header
from .read.names import shape_in
from .read.tables import Scales
from .write import coreml, writer
from .write.accept import accepts, accepts_codes
from .write.draft import CHILD, CONFIG, LAYERS, VOCABULARY
from .write.names import ARCH, ATTRS, DRAFT_CONFIG, LAYER_COUNT, META, ORDER, arch_of, other_attrs
from .write.place import LAYER, WriteOptions, layer_of

LABELS = {"INT4": "INT4", "INT2": "INT2", "ASTW": "ASTC", "TCAW": "TCA_TBE", "NPCL": "NumPy"}
# The order of preference that the format defines (P10); SPARSE and EAGLE select nothing.
PRIORITY = (
    ("ANE_COREML", CodecSpec("ane.mlpackage")), ("ASTC", CodecSpec("astc", {"footprint": "6x6"})),
    ("TCA_TBE", CodecSpec("tca_tbe")),
    ("INT2", CodecSpec("squizd.int2")), ("INT4", CodecSpec("squizd.int4")), ("NumPy", DENSE),
)  # fmt: skip
BLOCK_FLAGS = frozenset(("ASTC", "TCA_TBE", "INT2", "INT4"))
"""Flags of packed blocks; a file without any of them stores its tensors as NumPy arrays."""


class Squizd(CompositeContainer):
    """SQUIZD 1.0 under the rules P0 to P10; read_index reads headers, masks and the ends of tables."""

    def read_index(self, source: Source, limits: Limits) -> Index:
        findings = Findings()
        anatomy = _from_directory(source, limits, findings) if source.is_remote else None
        return _Builder(anatomy or walk.read(source, limits, findings), source, limits, findings).index()

    def encodings_for(self, *, flags: Any = (), dtype: Any = None, **features: Any) -> tuple[Encoding | Refusal, ...]:
        flags = {flags} if isinstance(flags, str) else set(flags)
        dtype = single_value("dtype", dtype)
        encodings: list[Encoding | Refusal] = []
        packed = flags & BLOCK_FLAGS
        for label, codec in PRIORITY:
            if label not in flags and (packed or label != "NumPy"):
                continue  # tensors in packed blocks are not stored as NumPy arrays too
            if "SPARSE" in flags and label != "ANE_COREML":
                codec = CodecSpec("masked", {"block_size": 64}, inner=codec)
            parts = {"data": Part(dtype=dtype, shape=())} if dtype and label == "NumPy" else {}
            encoding = Encoding(codec=codec, parts=parts, label=label)
            if label == "TCA_TBE" and dtype not in (None, "bf16"):
                why = f"TCA-TBE stores bf16 only, not {dtype} [P5]"
                encodings.append(Refusal(backend=None, encoding=encoding, code="dtype", why=why))
            else:
                encodings.append(encoding)
        return tuple(encodings)

    def accepts(self, spec: TensorSpec, encoding: Encoding, options: Options) -> Encoding | Refusal:
        return accepts(spec, encoding, WriteOptions.parse(options))

    def accepts_codes(self, spec: TensorSpec, layout: CodeLayout, options: Options) -> Encoding | Refusal | None:
        return accepts_codes(spec, layout, WriteOptions.parse(options))

    def plan_file(
        self,
        specs: Sequence[TensorSpec],
        meta: Mapping[str, Any],
        assets: Mapping[str, Part],
        options: Options,
        companions: Companions = NO_COMPANIONS,
    ) -> WritePlan:
        return WritePlan(dropped=writer.dropped(specs, meta, assets, WriteOptions.parse(options), companions))

    def rewrite_options(self, file: File) -> Options:
        """Options that write a file again as it is; its metadata has the architecture."""
        return {}

    def write(
        self,
        sink: Sink,
        tensors: Sequence[OutgoingTensor],
        meta: Mapping[str, Any],
        assets: Mapping[str, bytes],
        options: Options,
        companions: OutgoingCompanions = NO_OUTGOING_COMPANIONS,
    ) -> None:
        writer.write(sink, tensors, meta, assets, WriteOptions.parse(options), companions)

    def verify(self, index: Index, source: Source, limits: Limits) -> Sequence[Problem]:
        # The draft head is a child Index; verifying the file covers it.
        return verify.verify(index, source, limits) if index.kind == "model" else ()


def _from_directory(source: Source, limits: Limits, findings: Findings) -> Anatomy | None:
    """Read a remote file from its directory of blocks, if it has one and the source compares it with the blocks."""
    from .read import directory

    anatomy = directory.read(source, limits, findings)
    if anatomy is None or anatomy.directory is None:
        return None
    return anatomy if source.expect(directory.statements(anatomy, anatomy.directory)) else None


class _Builder:
    """Builds the Index of an Anatomy."""

    def __init__(self, anatomy: Anatomy, source: Source, limits: Limits, findings: Findings) -> None:
        self.anatomy, self.source, self.limits, self.findings = anatomy, source, limits, findings

    def index(self) -> Index:
        """Return the Index of the whole file."""
        anatomy, header = self.anatomy, self.anatomy.header
        meta, assets = self._meta()
        if header.arch_id and header.arch_id != arch_of(meta.get("general.architecture")):
            meta[ARCH] = header.arch_id
        if anatomy.layers and not anatomy.layers[-1].length and anatomy.layers[-1].number < 0xFFFF:
            meta[LAYER_COUNT] = anatomy.layers[-1].number + 1
        meta |= {f"squizd.legacy.{name}": value for name, value in header.legacy.items()}
        if (attrs := other_attrs(anatomy.names.attrs)) is not None:
            meta[ATTRS] = attrs
        files = (FileRef(self.source.filename, self.source.size),)
        tensors = self._ordered(self._tensors())
        children = {}
        if anatomy.draft is not None and header.eagle is not None:
            children[CHILD] = Index(
                format="squizd",
                version="1",
                kind="draft",
                files=files,
                tensors={name: self._spec(key, name, block) for key, name, block in anatomy.named(draft=True)},
                meta={LAYERS: header.eagle[2], VOCABULARY: header.eagle[3]},
                assets=self._draft_assets(),
            )
        return Index(
            format="squizd",
            version="1",
            files=files,
            tensors=tensors,
            meta=meta,
            children=children,
            assets={name: _asset(data) for name, data in assets.items()},
            whole=self._whole(),
            problems=tuple(self.findings.problems),
            attrs=_attrs(header),
            sections=tuple(anatomy.ordered_sections()),
        )

    def _meta(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        packed = self.anatomy.names.attrs.get(META)
        if packed is None:
            return {}, {}
        try:
            if not isinstance(packed, bytes):
                raise SquishError("not a byte string", code="meta")
            return load_meta(packed, self.limits)
        except SquishError as error:
            self.findings.warn("P9", "SQXT", f"metadata ignored: {error.message}")
            return {}, {}

    def _draft_assets(self) -> dict[str, Part]:
        config = self.anatomy.names.attrs.get(DRAFT_CONFIG)
        if config is not None and not isinstance(config, bytes):
            self.findings.warn("P9", "SQXT", "the draft head's config is ignored: not a byte string")
        return {CONFIG: _asset(config)} if isinstance(config, bytes) else {}

    def _tensors(self) -> dict[str, TensorSpec]:
        tensors = {}
        for key, name, block in self.anatomy.named():
            tensors[name] = self._spec(key, name, block)
            for alias in self.anatomy.global_names(block)[1:] if key == GLOBAL_KEY else ():
                tensors[alias] = self._spec(key, alias, block, tied_to=name)
        return tensors

    def _ordered(self, tensors: dict[str, TensorSpec]) -> dict[str, TensorSpec]:
        """Return the tensors in the order of the original file, if this file states it."""
        order = self.anatomy.names.attrs.get(ORDER)
        names = list(tensors)
        if not (isinstance(order, list) and all(type(place) is int for place in order)):
            return tensors
        if sorted(order) != list(range(len(names))):
            return tensors
        return {names[place]: tensors[names[place]] for place in order}

    def _spec(self, key: int, name: str, block: Block, tied_to: str | None = None) -> TensorSpec:
        shape = shape_in(self.anatomy.names.shapes, name, block.shape)
        scales = self.anatomy.scales.get(block.start)
        problem = block.problem or (scales.problem if scales else None)
        spec = TensorSpec(name=name, shape=shape, dtype=_dtype(block), tied_to=tied_to)
        if problem:
            extras = {"data": _part("u8", (block.length,), block.data, block.length)}
            return TensorSpec(name=name, shape=shape, dtype=spec.dtype, extras=extras, problem=problem, tied_to=tied_to)
        mask = self.anatomy.masks.get(key, {}).get(block.start)
        # Codes in flat order fit any matrix; tiles, bitmaps and textures need the shape of their block.
        flat = mask is None and block.kind in BITS
        fits = len(shape) > 1 and (flat or rows_and_columns(shape) == block.shape)
        stored = shape if fits or (mask is None and block.kind == "NPCL") else block.shape
        codec, parts = _ENCODED[block.kind](block, stored, scales)
        if mask is not None and self.anatomy.header.sparsity is not None:
            codec = CodecSpec("masked", {"block_size": self.anatomy.header.sparsity[0]}, inner=codec)
            bitmap = _part("u8", (mask.length,), mask.offset, mask.length)
            parts["mask"] = evolve(bitmap, segments=(), data=mask.copy) if mask.copy else bitmap
        if stored != shape:
            codec = CodecSpec("reshaped", {"shape": list(stored)}, inner=codec)
        encoding = Encoding(codec=codec, parts=parts, label=LABELS[block.kind])
        attrs = {LAYER: key} if key < DRAFT_KEY and layer_of(name) is None else {}
        return TensorSpec(name=name, shape=shape, dtype=spec.dtype, encodings=(encoding,), tied_to=tied_to, attrs=attrs)

    def _whole(self) -> tuple[Encoding, ...]:
        appendix = self.anatomy.appendix
        if appendix is None:
            return ()
        part = _part("u8", (appendix.length,), appendix.offset, appendix.length)
        return (Encoding(codec=CodecSpec(coreml.CODEC), parts={coreml.ROLE: part}, label="ANE_COREML"),)


def _attrs(header: Header) -> dict[str, Any]:
    attrs: dict[str, Any] = {
        "flags": sorted(header.flags), "layers": header.layer_count,
        "arch": ARCHITECTURES[header.arch_id] if header.arch_id < len(ARCHITECTURES) else header.arch_id,
    }  # fmt: skip
    if header.sparsity is not None:
        attrs["sparsity"] = dict(zip(("block_size", "n_sparse_layers", "mean_sparsity"), header.sparsity))
    return attrs | {f"legacy.{name}": value for name, value in header.legacy.items()}


def _asset(data: bytes) -> Part:
    return Part(dtype="u8", shape=(len(data),), data=data)


def _dtype(block: Block) -> str:
    if block.kind == "NPCL":
        return NPCL_DTYPES.get(block.facts["dtype_code"], "u8")
    return "bf16" if block.kind == "TCAW" else "f32"


def _part(dtype: str, shape: tuple[int, ...], offset: int, length: int) -> Part:
    return Part(dtype=dtype, shape=shape, segments=(Segment(0, offset, length),))


def _table(scales: Scales) -> Part:
    segments = tuple(Segment(0, offset, 16 * count) for offset, count in scales.runs)
    return Part(dtype="u32", shape=(scales.count, 4), segments=segments)


def _packed(block: Block, shape: tuple[int, ...], scales: Scales | None) -> tuple[CodecSpec, dict[str, Part]]:
    assert scales is not None
    params = {} if scales.group_size is None else {"group_size": scales.group_size}
    parts = {"codes": _part("u8", (block.length,), block.data, block.length), "table": _table(scales)}
    return CodecSpec(f"squizd.{block.kind.lower()}", params), parts


def _dense(block: Block, shape: tuple[int, ...], scales: Scales | None) -> tuple[CodecSpec, dict[str, Part]]:
    return DENSE, {"data": _part(_dtype(block), shape, block.data, block.length)}


def _astc(block: Block, shape: tuple[int, ...], scales: Scales | None) -> tuple[CodecSpec, dict[str, Part]]:
    assert scales is not None
    (rows, columns), x, y = block.shape, block.facts["x"], block.facts["y"]
    blocks = _part("u8", (-(-rows // y), -(-columns // x), 16), block.data, block.length)
    return CodecSpec("astc", {"footprint": f"{x}x{y}", "scale": scales.scale, "zero": scales.zero}), {"blocks": blocks}


def _tca_tbe(block: Block, shape: tuple[int, ...], scales: Scales | None) -> tuple[CodecSpec, dict[str, Part]]:
    facts = block.facts
    rows, words = block.shape[0], -(-block.shape[1] // 64)
    parts = {
        f"plane{number}": _part("u64", (rows, words), block.data + number * facts["plane"], facts["plane"])
        for number in range(3)
    }
    parts["high"] = _part("u8", (facts["high"],), facts["high_at"], facts["high"])
    parts["full"] = _part("u16", (facts["full"],), facts["full_at"], 2 * facts["full"])
    params = {"base_exponent": facts["base_exponent"], "n_high": facts["high"]}
    return CodecSpec("tca_tbe", params), parts


_ENCODED = {"INT4": _packed, "INT2": _packed, "NPCL": _dense, "ASTW": _astc, "TCAW": _tca_tbe}
