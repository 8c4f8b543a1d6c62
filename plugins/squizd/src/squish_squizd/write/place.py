"""The layout of a new file, decided from the specs alone before anything is written."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import define, field, frozen
from squish_codecs.api import rows_and_columns

from squish_core.api import CodecSpec, ErrorCode, Part, Refusal, SquishError, TensorSpec

from ..read.blocks import FOOTPRINT_CODES, TCAW, aligned
from ..read.header import ARCHITECTURES, DRAFT_KEY, ENTRY, GLOBAL_KEY, SIZE
from ..read.tables import tensor_id

LAYER = "squizd.layer"
"""Attribute of a tensor with the number of its layer, if its name does not state it."""
KINDS = {"dense": "NPCL", "squizd.int4": "INT4", "squizd.int2": "INT2", "tca_tbe": "TCAW", "astc": "ASTW"}
NPCL_CODES = {"f32": 0, "f16": 1, "bf16": 2}
_LAYER = re.compile(
    r"^(?:(?:model|transformer|language_model\.model|model\.language_model)\.)?(?:layers|h|blk|blocks)\.(\d+)\."
)
_FFN = re.compile(r"\.(?:mlp|ffn\w*|feed_forward|block_sparse_moe)\.")


@frozen(kw_only=True)
class WriteOptions:
    """The parsed options of a conversion."""

    sparsity: float | None = None
    block_size: int | None = None
    arch: int | None = None
    draft: str | None = None
    coreml: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """Parse the options; SquishError for an invalid one."""
        try:
            sparsity = float(options["sparsity"]) if "sparsity" in options else None
            block_size = int(options["block_size"]) if "block_size" in options else None
            arch = options.get("arch")
            number = None if arch is None else ARCHITECTURES.index(arch) if arch in ARCHITECTURES else int(arch)
            valid = 0 <= (sparsity or 0) < 1 and (block_size is None or 1 <= block_size < 1 << 32)
            if not valid or not 0 <= (number or 0) < 1 << 16:
                raise ValueError
        except ValueError:
            raise SquishError(
                "invalid squizd option",
                expected="0 <= sparsity < 1, block_size of at least 1, arch a name or a 16-bit number",
                found=", ".join(f"{key}={value}" for key, value in options.items()),
                code=ErrorCode.OPTION,
            ) from None
        return cls(
            sparsity=sparsity or None,
            block_size=block_size,
            arch=number,
            draft=options.get("draft"),
            coreml=options.get("coreml"),
        )


@define(kw_only=True)
class PlacedBlock:
    """One tensor block: its start, the bytes of its header with padding, and the length of its data."""

    spec: TensorSpec
    codec: CodecSpec
    key: int
    start: int
    header: bytes
    length: int

    @property
    def kind(self) -> str:
        """Magic of the block."""
        return KINDS[self.codec.id]

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns of the block."""
        return rows_and_columns(stored_shape(self.spec))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the block's header."""
        return stored_shape(self.spec) if self.kind == "NPCL" else self.matrix

    @property
    def id(self) -> int:
        """Id in the tables."""
        return tensor_id(self.key, self.spec.name)

    @property
    def pairs(self) -> int:
        """Number of sub-block entries."""
        return self.spec.encodings[0].parts["table"].shape[0] if "group_size" in self.codec.params else 0


@define
class Placement:
    """All blocks of a file, with their entries in the other sections."""

    block_size: int = 64
    layers: dict[int, list[PlacedBlock]] = field(factory=dict)
    extents: dict[int, tuple[int, int, int]] = field(
        factory=dict
    )  # layer -> offset, length, offset of the masks (0: none)
    globals: list[PlacedBlock] = field(factory=list)
    tied: list[tuple[str, PlacedBlock]] = field(factory=list)
    order: list[str] = field(factory=list)
    end: int = 0

    @property
    def blocks(self) -> list[PlacedBlock]:
        """All blocks in file order, which is table order."""
        return [*(block for blocks in self.layers.values() for block in blocks), *self.globals]

    def flags(self) -> set[str]:
        """Return the flags that the blocks need."""
        flag_of = {"INT4": "INT4", "INT2": "INT2", "TCAW": "TCA_TBE", "ASTW": "ASTC"}
        flags = {flag_of[block.kind] for block in self.blocks if block.kind in flag_of}
        return flags | ({"SPARSE"} if any(masks for *_, masks in self.extents.values()) else set())


def place(specs: Sequence[TensorSpec], options: WriteOptions, layer_count: int = 0) -> Placement:
    """Place the blocks of layers, then globals. `layer_count`: the last layers up to it may be without tensors."""
    placement = Placement(block_size=_block_size(specs, options))
    by_layer: dict[int, list[TensorSpec]] = {}
    global_specs: list[TensorSpec] = []
    for spec in specs:
        layer = layer_of_tensor(spec)
        (global_specs if layer is None else by_layer.setdefault(layer, [])).append(spec)
    if len(by_layer) > 0xFFFF:
        raise SquishError("too many layers", expected="at most 65535", found=len(by_layer), code="layers")
    numbers = sorted(by_layer)
    count = max(layer_count, numbers[-1] + 1 if numbers else 0)
    if count <= 0xFFFF:
        numbers = list(range(count))  # a layer without tensors is legal, a missing layer is a warning (P2)
    position = SIZE + ENTRY.size * len(numbers)
    for layer in numbers:
        if layer not in by_layer:
            placement.layers[layer], placement.extents[layer] = [], (0, 0, 0)
            continue
        blocks, end = place_blocks(by_layer[layer], layer, position)
        masks = 0
        # Empty masks have no offset: it would be the end of the block.
        if any(is_masked(block.spec) and mask_length(block, placement.block_size) for block in blocks):
            masks = aligned(end)
            end = masks + sum(mask_length(block, placement.block_size) for block in blocks)
        start = blocks[0].start
        placement.layers[layer], placement.extents[layer] = blocks, (start, end - start, masks)
        position = end
    names = {spec.name: spec for spec in global_specs}
    tied = {spec.name: spec for spec in global_specs if _shares(spec, names)}
    own = [spec for spec in global_specs if spec.name not in tied]
    placement.globals, placement.end = place_blocks(own, GLOBAL_KEY, position)
    by_name = {block.spec.name: block for block in placement.globals}
    placement.tied = [(name, by_name[str(spec.tied_to)]) for name, spec in tied.items()]
    placement.order = [spec.name for spec in specs]
    return placement


def place_blocks(specs: Iterable[TensorSpec], key: int, position: int) -> tuple[list[PlacedBlock], int]:
    """Place blocks in sequence, each at a multiple of 64; returns them and their end."""
    blocks = []
    for spec in specs:
        codec = unwrapped(spec.encodings[0].codec)
        start = aligned(position)
        header = _HEADERS[KINDS[codec.id]](spec, codec, start)
        parts = spec.encodings[0].parts
        length = sum(part.nbytes for role, part in parts.items() if role not in ("table", "mask"))
        if codec.id == "tca_tbe":
            length += parts["high"].nbytes % 2
        blocks.append(PlacedBlock(spec=spec, codec=codec, key=key, start=start, header=header, length=length))
        position = start + len(header) + length
    return blocks, position


def layer_of(name: str) -> int | None:
    """Return the number of the transformer layer in a tensor's name, if any."""
    match = _LAYER.match(name)
    layer = int(match[1]) if match and len(match[1]) < 10 else None
    return layer if layer is not None and layer < DRAFT_KEY else None


def layer_of_tensor(spec: TensorSpec) -> int | None:
    """Return the layer of a tensor, from its name or from its SQUIZD source file."""
    layer, stated = layer_of(spec.name), spec.attrs.get(LAYER)
    if layer is None and type(stated) is int and 0 <= stated < DRAFT_KEY:
        return stated
    return layer


def is_ffn(name: str) -> bool:
    """Return whether a name belongs to a feed-forward matrix."""
    return bool(_FFN.search(name))


def unwrapped(codec: CodecSpec, *wrappers: str) -> CodecSpec:
    """Return the codec inside these wrappers; by default the codec of the block."""
    for wrapper in wrappers or ("reshaped", "masked"):
        codec = codec.inner if codec.id == wrapper and codec.inner is not None else codec
    return codec


def stored_shape(spec: TensorSpec) -> tuple[int, ...]:
    """Return the tensor's shape in its block."""
    codec = spec.encodings[0].codec
    return tuple(codec.params["shape"]) if codec.id == "reshaped" else spec.shape


def is_masked(spec: TensorSpec) -> bool:
    """Return whether a tensor already has a mask."""
    return unwrapped(spec.encodings[0].codec, "reshaped").id == "masked"


def has_mask(block: PlacedBlock) -> bool:
    """Return whether sparse layers have a bitmap for the block: only if it is two-dimensional in the file."""
    return len(block.shape) == 2


def tiles(block: PlacedBlock, side: int) -> int:
    """Return the number of tiles of a block."""
    rows, columns = block.matrix
    return -(-rows // side) * -(-columns // side)


def mask_length(block: PlacedBlock, side: int) -> int:
    """Return the size of a block's bitmap in bytes."""
    return -(-tiles(block, side) // 8) if has_mask(block) else 0


def fits(spec: TensorSpec, codec: CodecSpec, parts: Mapping[str, Part]) -> Refusal | None:
    """Return why a tensor cannot be stored as a block, or None."""
    if codec.id not in KINDS:
        return Refusal(
            why=f"SQUIZD has no block for codec {codec.id}; encode it as int4, int2, tca_tbe, bf16, f16 or f32"
        )
    if any(size >= 1 << 32 for size in (*spec.shape, *rows_and_columns(spec.shape))):
        return Refusal(why="a dimension exceeds 32 bits", code="shape")
    if codec.id == "dense" and (spec.dtype not in NPCL_CODES or len(spec.shape) > 8):
        return Refusal(
            why=f"NPCL blocks store f32, f16 and bf16 with at most 8 dimensions, not {spec.dtype} {list(spec.shape)}"
        )
    if codec.id != "dense" and len(spec.shape) < 2:
        return Refusal(why="only tensors of two or more dimensions can be packed", code="shape")
    if codec.id == "astc" and not spec.elements:
        return Refusal(why="an empty tensor cannot be an ASTC texture", code="shape")
    try:
        spec.name.encode()
    except UnicodeError:
        return Refusal(why="its name is not valid Unicode", code="name")
    return None


def _block_size(specs: Sequence[TensorSpec], options: WriteOptions) -> int:
    masked = [unwrapped(spec.encodings[0].codec, "reshaped") for spec in specs if is_masked(spec)]
    sizes = {codec.params["block_size"] for codec in masked}
    if len(sizes) > 1:
        raise SquishError(
            "the masks have different tile sizes; SQUIZD stores one per file",
            found=", ".join(map(str, sorted(sizes))),
            code="block_size",
        )
    return next(iter(sizes), options.block_size or 64)


def _shares(spec: TensorSpec, names: Mapping[str, TensorSpec]) -> bool:
    """Return whether tied weights share a block: both are globals and stored in the same way."""
    other = names.get(spec.tied_to or "")
    return (
        other is not None
        and other is not spec
        and not other.tied_to
        and ((other.shape, other.dtype, other.encodings[0]) == (spec.shape, spec.dtype, spec.encodings[0]))
    )


def _npcl(spec: TensorSpec, codec: CodecSpec, start: int) -> bytes:
    shape = stored_shape(spec)
    return struct.pack(f"<4sII{len(shape)}I", b"NPCL", NPCL_CODES[spec.dtype], len(shape), *shape)


def _packed(spec: TensorSpec, codec: CodecSpec, start: int) -> bytes:
    rows, columns = rows_and_columns(stored_shape(spec))
    if codec.id == "squizd.int4":
        return struct.pack("<4sII", b"INT4", rows, columns)
    length = codec.params.get("group_size", max(spec.elements, 1))
    return struct.pack("<4sIII", b"INT2", rows, columns, min(length, 0xFFFFFFFF))


def _tcaw(spec: TensorSpec, codec: CodecSpec, start: int) -> bytes:
    rows, columns = rows_and_columns(stored_shape(spec))
    high = codec.params["n_high"]
    base = codec.params["base_exponent"]
    fixed = TCAW.pack(b"TCAW", rows, 64, columns, 2, base, 3, 0, high, spec.elements - high)
    return fixed + bytes(aligned(start + len(fixed)) - start - len(fixed))


def _astw(spec: TensorSpec, codec: CodecSpec, start: int) -> bytes:
    rows, columns = rows_and_columns(stored_shape(spec))
    x, y = map(int, codec.params["footprint"].split("x"))
    return struct.pack("<4sIII", b"ASTW", columns, rows, FOOTPRINT_CODES[x, y])


_HEADERS: dict[str, Any] = {"NPCL": _npcl, "INT4": _packed, "INT2": _packed, "TCAW": _tcaw, "ASTW": _astw}
