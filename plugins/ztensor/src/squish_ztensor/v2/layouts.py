"""Which layout of v2 stores an encoding, with its attributes and part names."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from squish_core.api import DENSE, CodecError, CodecSpec, CodeLayout, Encoding, FormatError, Part, Refusal, TensorSpec

from .. import accept, groups
from ..codecs.mx import AxisMx
from ..names import BLOCKS, STORAGE, TYPES

_LAYOUTS = {
    "zt.sparse_csr": "zt.sparse_csr/1", "zt.sparse_coo": "zt.sparse_coo/1", "zt.mx": "zt.mx/1", "mx": "zt.mx/1",
}  # fmt: skip
_ROLES = {"affine": {"scale": "scales", "offset": "zeros"}, "mx": {"scale": "scales"}}


def stored(spec: TensorSpec, encoding: Encoding) -> Encoding | Refusal:
    """Return the raw parts in v2, or a refusal."""
    codec = encoding.codec
    if codec == DENSE:
        if spec.dtype not in STORAGE and spec.dtype not in TYPES:
            return Refusal(why=f"zTensor v2 has no dtype {spec.dtype}; encode it as one of {', '.join(STORAGE[:4])}")
        return Encoding(codec=DENSE, parts={"data": accept.dense_part(spec.dtype, spec.shape)})
    if codec.id in accept.SPARSE:
        kinds = {part.dtype for role, part in encoding.parts.items() if role in accept.INDICES}
        return accept.sparse(encoding, "u64" if kinds & {"u64", "i64"} else "u32")
    if codec.id == "mx" and set(encoding.parts) != {"data", "scale"}:
        return Refusal(why="zTensor's microscaling cannot store a global scale")
    if codec.id == "mx" and encoding.parts["scale"].dtype != "f8_e8m0":
        return Refusal(why="zTensor's microscaling only stores power-of-two scales (mxfp4, mxfp8)")
    if codec.id in ("zt.mx", "mx"):
        parts = {role: accept.bare(part) for role, part in encoding.parts.items()}
        return Encoding(codec=codec, parts=parts)
    if codec.id == "affine":
        return groups.as_stored(spec, encoding, zeros=False)
    if accept.is_blocks(codec):
        return accept.blocks(spec, encoding)
    return Refusal(why=f"zTensor v2 has no layout for codec {codec.id}; encode it as f16 or as GGML blocks")


def stored_codes(spec: TensorSpec, layout: CodeLayout) -> Encoding | Refusal | None:
    """Return a layout for codes of other formats: float4 or float8 blocks along rows, or groups."""
    for element, block in product(("f4_e2m1", "f8_e4m3", "f8_e5m2"), (32, 16)):
        stored_params = {"axis": len(spec.shape) - 1, "block_size": block, "dtype": element}
        stored = AxisMx.from_params(stored_params)
        if layout == stored.code_layout(spec):
            declared = dict(zip(("data", "scale"), stored.parts(spec).values()))
            parts = {role: Part(dtype=dtype, shape=shape) for role, (dtype, shape) in declared.items()}
            params = {"element": element, "block_size": block}
            own = {name: value for name, value in params.items() if value not in ("f4_e2m1", 32)}
            return Encoding(codec=CodecSpec("mx", own), parts=parts)
    return groups.nearest(spec, layout, zeros=False)


def layout_of(encoding: Encoding) -> str:
    """Return the name of the layout."""
    if encoding.codec == DENSE:
        return "dense"
    if encoding.codec.id == "affine":
        return "zt.quant_group/1"
    return _LAYOUTS.get(encoding.codec.id) or f"gguf.{encoding.codec.id.removeprefix('ggml.')}/1"


def role_of(encoding: Encoding, role: str) -> str:
    """Return the name of a part in the file."""
    return _ROLES.get(encoding.codec.id, {}).get(role, role)


def element_of(spec: TensorSpec, role: str, part: Part) -> str:
    """Return the element type to declare for a part; packed types have their own name."""
    encoding = spec.encodings[0]
    if role == "data" and encoding.codec == DENSE:
        return spec.dtype
    if role == "data" and encoding.codec.id == "zt.mx":
        return str(encoding.codec.params["dtype"])
    if role == "data" and encoding.codec.id == "mx" and part.dtype == "u8":
        return "f4_e2m1"
    return part.dtype


def attributes(spec: TensorSpec, encoding: Encoding) -> dict[str, Any]:
    """Return the attributes that the layout needs."""
    params, kind = encoding.codec.params, encoding.codec.id
    if kind.startswith("ggml."):
        elements, nbytes = BLOCKS[kind.removeprefix("ggml.")]
        return {"elems_per_block": elements, "block_bytes": nbytes}
    if kind == "mx":
        return {"block_size": params.get("block_size", 32), "axis": len(spec.shape) - 1, "scale_form": "e8m0_exponent"}
    if kind == "zt.mx":
        return {"block_size": params["block_size"], "axis": params["axis"], "scale_form": "e8m0_exponent"}
    return groups.attributes_v2(spec.shape, params) if kind == "affine" else {}


def check(spec: TensorSpec, streams: Mapping[str, Any]) -> None:
    """Raise FormatError unless the columns of each row are ascending, which 1.x does not require."""
    encoding = spec.encodings[0]
    if encoding.codec.id != "zt.sparse_csr" or encoding.codec.params.get("ordered"):
        return
    from ..codecs import sparse

    parts: dict[str, Any] = {role: sparse.array(streams[role].read(), encoding.parts[role]) for role in encoding.parts}
    try:
        sparse.csr_rows(parts, spec.shape, {**encoding.codec.params, "ordered": True}, slice(0, spec.shape[0]))
    except CodecError as error:
        raise FormatError(
            f"zTensor v2 cannot store this sparse tensor: {error}", tensor=spec.name, code="index"
        ) from None
