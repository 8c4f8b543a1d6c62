"""Which layout of 1.1 stores an encoding, with its attributes and component names."""

from __future__ import annotations

from typing import Any

from squish_core.api import DENSE, Encoding, Part, Refusal, TensorSpec

from .. import accept, groups
from ..names import DTYPES, TYPES

_FORMATS = {"zt.sparse_csr": "sparse_csr", "zt.sparse_coo": "sparse_coo", "affine": "quantized_group"}
_GROUP_ROLES = {"data": "packed_weight", "scale": "scales", "offset": "zeros"}
_TYPES_1_2 = {name: stored for name, stored in TYPES.items() if name not in ("bool", "f8_e8m0", "f4_e2m1")}


def stored(spec: TensorSpec, encoding: Encoding, *, compatible: bool) -> Encoding | Refusal:
    """Return the raw parts in 1.1, or a refusal. `compatible`: readable by the released 1.x packages."""
    codec = encoding.codec
    if codec == DENSE:
        if spec.dtype in DTYPES or (compatible and spec.dtype in _TYPES_1_2):
            return Encoding(codec=DENSE, parts={"data": Part(dtype=spec.dtype, shape=spec.shape)})
        return Refusal(why=f"zTensor 1.1 has no dtype {spec.dtype}; encode it as one of {', '.join(DTYPES[:6])}")
    if codec.id in accept.SPARSE:
        return accept.sparse(encoding, "u64" if compatible else None)
    if codec.id == "affine":
        return groups.as_stored(spec, encoding, zeros=True)
    if accept.is_blocks(codec):
        return accept.blocks(spec, encoding)
    return Refusal(why=f"zTensor 1.1 has no layout for codec {codec.id}; encode it as f16 or as GGML blocks")


def format_of(encoding: Encoding) -> str:
    """Return the name of the layout."""
    if encoding.codec == DENSE:
        return "dense"
    return _FORMATS.get(encoding.codec.id) or f"gguf.{encoding.codec.id.removeprefix('ggml.')}"


def role_of(encoding: Encoding, role: str) -> str:
    """Return the name of a part in the file."""
    return _GROUP_ROLES[role] if encoding.codec.id == "affine" else role


def types_of(dtype: str, *, compatible: bool) -> dict[str, str]:
    """Return `dtype` of a component, and in the compatible flavor the `type` of 1.2."""
    if compatible and dtype in _TYPES_1_2:
        storage, logical = _TYPES_1_2[dtype]
        return {"dtype": storage, "type": logical}
    return {"dtype": dtype}


def attributes(spec: TensorSpec, encoding: Encoding) -> dict[str, Any]:
    """Return the attributes that the layout needs."""
    if encoding.codec.id == "affine":
        return groups.attributes_v1(spec.shape, encoding.codec.params)
    return {}
