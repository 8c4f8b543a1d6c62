"""How a tensor would be held: which block its encoding is, becomes by repacking, or is refused as."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve
from squish_codecs.api import Scheme, affine_form, rows_and_columns

from squish_core.api import CodecSpec, Encoding, Part, Refusal, TensorSpec

from . import place
from .place import Wanted


def accepts(spec: TensorSpec, encoding: Encoding, wanted: Wanted) -> Encoding | Refusal:
    """Dense f32, f16 and bf16, INT4, INT2, TCA-TBE and ASTC; affine codes are repacked; FFN tiles masked on request."""
    codec, parts = encoding.codec, dict(encoding.parts)
    if codec.id == "reshaped" and codec.inner is not None:
        stored, unpruned = evolve(spec, shape=place.stored_shape(spec)), evolve(wanted, sparsity=None)
        block = accepts(stored, evolve(encoding, codec=codec.inner), unpruned)
        return block if isinstance(block, Refusal) else evolve(block, codec=evolve(codec, inner=block.codec))
    in_layer = place.layer_of(spec.name) is not None
    inner = place.unwrapped(codec)
    form = None if codec.id in (*place.KINDS, "masked") else affine_form(codec)
    if form is not None:
        made = _repacked(spec, form)
        if isinstance(made, Refusal):
            return made
        codec, parts = made.codec, dict(made.parts)
        inner = codec
    refusal = place.fits(spec, inner, parts)
    if refusal:
        return refusal
    maskable = in_layer and (inner.id != "dense" or len(spec.shape) == 2)
    if codec.id == "masked" and not maskable:
        return Refusal(why="only matrices of a layer can have a mask", code="mask")
    if wanted.sparsity and codec.id != "masked" and maskable and len(spec.shape) == 2 and place.is_ffn(spec.name):
        side = wanted.block_size or 64
        codec = CodecSpec("masked", {"block_size": side, "sparsity": wanted.sparsity}, inner=codec)
        rows, columns = rows_and_columns(spec.shape)
        parts["mask"] = Part(dtype="u8", shape=(-(-(-(-rows // side) * -(-columns // side)) // 8),))
    bare = {role: Part(dtype=part.dtype, shape=part.shape) for role, part in parts.items()}
    return Encoding(codec=codec, parts=bare, label=encoding.label)


def _repacked(spec: TensorSpec, form: Mapping[str, Any]) -> Encoding | Refusal:
    """How affine codes would lie in INT4 or INT2 blocks, when their groups run along rows; the core tries it."""
    scheme = Scheme.of(form).upright
    whole = spec.elements if scheme.flat else spec.shape[-1] if spec.shape else 0
    group = scheme.group_size or whole
    if scheme.bits not in (2, 3, 4) or scheme.group_axis != -1 or len(spec.shape) < 2 or not group or whole % group:
        return Refusal(why="only affine codes of 2 to 4 bits in groups that divide a row fit; encode it as int4")
    bits = 2 if scheme.bits == 2 else 4
    packed = CodecSpec(f"squizd.int{bits}", {"group_size": group})
    parts = {
        "codes": Part(dtype="u8", shape=(-(-spec.elements * bits // 8),)),
        "table": Part(dtype="u32", shape=(spec.elements // group, 4)),
    }
    return Encoding(codec=packed, parts=parts, label=f"INT{bits}")
