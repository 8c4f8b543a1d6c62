"""Which block stores a tensor's encoding or codes, or why none can."""

from __future__ import annotations

from attrs import evolve
from squish_codecs.api import rows_and_columns

from squish_core.api import CodecSpec, CodeLayout, Encoding, Part, Refusal, TensorSpec

from . import place
from .place import WriteOptions


def accepts(spec: TensorSpec, encoding: Encoding, options: WriteOptions) -> Encoding | Refusal:
    """Accept dense f32, f16 and bf16, INT4, INT2, TCA-TBE and ASTC; FFN matrices get a mask on request."""
    codec, parts = encoding.codec, dict(encoding.parts)
    if codec.id == "reshaped" and codec.inner is not None:
        stored, unpruned = evolve(spec, shape=place.stored_shape(spec)), evolve(options, sparsity=None)
        block = accepts(stored, evolve(encoding, codec=codec.inner), unpruned)
        return block if isinstance(block, Refusal) else evolve(block, codec=evolve(codec, inner=block.codec))
    in_layer = place.layer_of_tensor(spec) is not None
    inner = place.unwrapped(codec)
    refusal = place.fits(spec, inner, parts)
    if refusal:
        return refusal
    maskable = in_layer and (inner.id != "dense" or len(spec.shape) == 2)
    if codec.id == "masked" and not maskable:
        return Refusal(why="masks exist only for matrices inside layers", code="mask")
    if options.sparsity and codec.id != "masked" and maskable and len(spec.shape) == 2 and place.is_ffn(spec.name):
        side = options.block_size or 64
        codec = CodecSpec("masked", {"block_size": side, "sparsity": options.sparsity}, inner=codec)
        rows, columns = rows_and_columns(spec.shape)
        parts["mask"] = Part(dtype="u8", shape=(-(-(-(-rows // side) * -(-columns // side)) // 8),))
    unplaced = {role: Part(dtype=part.dtype, shape=part.shape) for role, part in parts.items()}
    return Encoding(codec=codec, parts=unplaced, label=encoding.label)


def accepts_codes(spec: TensorSpec, layout: CodeLayout, options: WriteOptions) -> Encoding | Refusal | None:
    """Accept codes of other formats as INT4 or INT2 blocks if their groups run along rows; the core tests the data."""
    if layout.table is not None:
        return None
    group = layout.run_length(spec.shape) or layout.row_group
    if layout.bits not in (2, 3, 4) or len(spec.shape) < 2 or not group or spec.elements % group:
        return Refusal(
            why="SQUIZD stores integer codes of 2 to 4 bits, in groups along rows; encode the tensor as int4 instead"
        )
    bits = 2 if layout.bits == 2 else 4
    parts = {
        "codes": Part(dtype="u8", shape=(-(-spec.elements * bits // 8),)),
        "table": Part(dtype="u32", shape=(spec.elements // group, 4)),
    }
    packed = CodecSpec(f"squizd.int{bits}", {"group_size": group})
    return accepts(spec, Encoding(codec=packed, parts=parts, label=f"INT{bits}"), options)
