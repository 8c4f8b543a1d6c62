"""Which v2 layout holds an encoding, with which attributes and part names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from squish_core.api import DENSE, CodecSpec, Encoding, FormatError, Part, Refusal, TensorSpec, dtypes

from . import layouts
from .names import BLOCKS, STORAGE, TYPES

INDICES = ("indices", "indptr", "coords")
_LAYOUTS = {"zt.sparse_csr": "zt.sparse_csr/1", "zt.sparse_coo": "zt.sparse_coo/1", "zt.mx": "zt.mx/1"}
_AFFINE_ROLES = {"scale": "scales", "offset": "zeros"}
_ORDERS = {"lsb": "lsb_first", "msb": "msb_first"}


def held(spec: TensorSpec, encoding: Encoding) -> Encoding | Refusal:
    """The parts as v2 stores them, raw; or why it cannot."""
    codec, stored = encoding.codec, {role: _bare(part) for role, part in encoding.parts.items()}
    if codec == DENSE:
        if spec.dtype not in STORAGE and spec.dtype not in TYPES:
            return Refusal(why=f"zTensor v2 has no dtype {spec.dtype}; encode it as one of {', '.join(STORAGE[:4])}")
        packed = dtypes.bits(spec.dtype) < 8
        shape = (dtypes.nbytes(spec.dtype, spec.shape),) if packed else spec.shape
        return Encoding(codec=DENSE, parts={"data": Part(dtype="u8" if packed else spec.dtype, shape=shape)})
    block = codec.id.removeprefix("ggml.")
    if codec.id == f"ggml.{block}" and block in BLOCKS and not codec.params:
        whole = spec.shape and spec.shape[-1] % BLOCKS[block][0] == 0
        if whole and stored == {"data": Part(dtype="u8", shape=layouts.row_shape(block, spec.shape))}:
            return Encoding(codec=codec, parts=stored)
        return Refusal(why=f"its part does not hold whole rows of {block} blocks")
    if codec.id in ("zt.sparse_csr", "zt.sparse_coo"):
        kinds = {part.dtype for role, part in stored.items() if role in INDICES}
        if not kinds <= {"u32", "u64"} or len(kinds) > 1:
            return Refusal(why=f"zTensor v2 stores indices as u32 or as u64, not as {' and '.join(sorted(kinds))}")
        return Encoding(codec=codec, parts=stored)
    if codec.id == "zt.mx":
        return Encoding(codec=codec, parts=stored)
    if codec.id == "affine":
        why = _not_expressible(codec, spec)
        return Refusal(why=f"zt.quant_group/1 cannot say {why}") if why else Encoding(codec=codec, parts=stored)
    return Refusal(why=f"zTensor v2 has no layout for {codec.id}; encode it as f16, or as GGML blocks")


def layout_of(encoding: Encoding) -> str:
    """The layout's name."""
    if encoding.codec == DENSE:
        return "dense"
    if encoding.codec.id == "affine":
        return "zt.quant_group/1"
    return _LAYOUTS.get(encoding.codec.id) or f"gguf.{encoding.codec.id.removeprefix('ggml.')}/1"


def role_of(encoding: Encoding, role: str) -> str:
    """The name of a part in the file."""
    return _AFFINE_ROLES.get(role, role) if encoding.codec.id == "affine" else role


def element_of(spec: TensorSpec, role: str, part: Part) -> str:
    """The element type that a part is declared with: packed types by their own name."""
    encoding = spec.encodings[0]
    if role == "data" and encoding.codec == DENSE:
        return spec.dtype
    if role == "data" and encoding.codec.id == "zt.mx":
        return str(encoding.codec.params["dtype"])
    return part.dtype


def attributes(spec: TensorSpec, encoding: Encoding) -> dict[str, Any]:
    """What the layout needs to be told."""
    params, kind = encoding.codec.params, encoding.codec.id
    if kind.startswith("ggml."):
        elements, nbytes = BLOCKS[kind.removeprefix("ggml.")]
        return {"elems_per_block": elements, "block_bytes": nbytes}
    if kind == "zt.mx":
        return {"block_size": params["block_size"], "axis": params["axis"], "scale_form": "e8m0_exponent"}
    return _quant_group(spec, encoding) if kind == "affine" else {}


def check(spec: TensorSpec, streams: Mapping[str, Any]) -> None:
    """The columns of every row rise, which 1.x does not demand; FormatError otherwise."""
    encoding = spec.encodings[0]
    if encoding.codec.id != "zt.sparse_csr" or encoding.codec.params.get("ordered"):
        return
    from . import sparse

    parts: dict[str, Any] = {
        role: sparse.array(b"".join(bytes(chunk) for chunk in streams[role].chunks()), encoding.parts[role])
        for role in encoding.parts
    }
    try:
        sparse.csr_rows(parts, spec.shape, {**encoding.codec.params, "ordered": True}, slice(0, spec.shape[0]))
    except Exception as error:
        raise FormatError(f"cannot be stored in v2: {error}", tensor=spec.name, code="index") from None


def _quant_group(spec: TensorSpec, encoding: Encoding) -> dict[str, Any]:
    params, parts = encoding.codec.params, encoding.parts
    axis, word = len(spec.shape) + params.get("axis", -1), parts["data"].dtype.replace("i", "u")
    if "offset" in parts:
        plain = params.get("offset_dtype") != "packed"
        zero: dict[str, Any] = {"form": "tensor", "packing": "plain" if plain else "same_as_data"}
    elif params.get("zero"):
        zero = {"form": "implied", "value": params["zero"]}
    else:
        zero = {"form": "none"}
    per_word = dtypes.bits(word) // params["bits"]
    return {
        "bits": params["bits"], "group_size": params.get("group_size") or spec.shape[axis], "axis": axis,
        "packing": {"word": word, "order": _ORDERS[params.get("order", "lsb")], "per_word": per_word},
        "scale_form": "e8m0_exponent" if parts["scale"].dtype == "f8_e8m0" else "f32_factors", "zero_point": zero,
    }  # fmt: skip


def _not_expressible(codec: CodecSpec, spec: TensorSpec) -> str:
    """What of affine parameters zt.quant_group/1 has no word for; "" when it has one for all."""
    params = codec.params
    axis, scales = params.get("axis", -1), params.get("scale_dtype", "f32")
    signed = params.get("signed", params.get("offset", "none") == "none" and not params.get("zero"))
    rules = [
        (params.get("bits") in (2, 4, 8), f"{params.get('bits')} bits"),
        (axis in (-1, -2) and params.get("pack_axis", axis) == axis, "groups and words along different axes"),
        (not params.get("transposed"), "that it is transposed"),
        (not signed, "signed codes"),
        (str(params.get("order", "lsb")) in _ORDERS, f"the order {params.get('order')}"),
        (params.get("offset", "none") != "bias", "a bias"),
        (params.get("offset", "none") == "none" or not params.get("zero"), "two zero points"),
        (scales in ("f32", "f16", "bf16", "f8_e8m0"), f"scales of {scales}"),
        (bool(spec.shape) and all(spec.shape), f"the shape {list(spec.shape)}"),
    ]  # fmt: skip
    return next((why for holds, why in rules if not holds), "")


def _bare(part: Part) -> Part:
    return Part(dtype=part.dtype, shape=part.shape)
