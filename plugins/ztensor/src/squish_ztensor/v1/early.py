"""Versions 0.1 and 1.0, translated to the manifest of 1.1: long dtype names, other keys, the same components."""

from __future__ import annotations

from typing import Any

from squish_core.api import ErrorCode, FormatError

from ..names import LONG_NAMES

_ENTRY = {"name", "offset", "size", "dtype", "layout", "shape", "encoding", "data_endianness", "checksum"}
_INDICES = ("indices", "indptr", "coords")


def from_0_1(root: Any, offset: int) -> dict[str, Any]:
    """Translate a list of flat entries; unknown keys become attributes of the object."""
    objects: dict[str, Any] = {}
    for entry in root:
        if type(entry) is not dict or type(entry.get("name")) is not str:
            raise FormatError("each entry of the manifest must be a map with a name", offset=offset, code="schema")
        name = entry["name"]
        if name in objects:
            raise FormatError(
                "duplicate tensor name in the manifest", tensor=name, offset=offset, code=ErrorCode.DUPLICATE
            )
        data = {
            "dtype": _short(entry.get("dtype")), "offset": entry.get("offset"), "length": entry.get("size"),
            "encoding": entry.get("encoding"), "digest": entry.get("checksum"),
            "byteorder": _ORDERS.get(str(entry.get("data_endianness")), entry.get("data_endianness")),
        }  # fmt: skip
        layout = entry.get("layout", "dense")
        objects[name] = {
            "shape": entry.get("shape"), "format": layout if layout == "dense" else f"{layout} of zTensor 0.1",
            "attributes": {key: value for key, value in entry.items() if key not in _ENTRY},
            "components": {"data": {key: value for key, value in data.items() if value is not None}},
        }  # fmt: skip
    return {"version": "0.1", "objects": objects}


def from_1_0(root: Any, offset: int) -> dict[str, Any]:
    """Translate `tensors`, which have one dtype per tensor; indices are u64."""
    tensors = root.get("tensors")
    if type(tensors) is not dict:
        raise FormatError("'tensors' of the manifest is missing or not a map", offset=offset, code="schema")
    return {**root, "objects": {name: _object(tensor) for name, tensor in tensors.items()}}


def _object(tensor: Any) -> Any:
    if type(tensor) is not dict or type(tensor.get("components")) is not dict:
        return tensor  # the common check refuses it
    dtype = _short(tensor.get("dtype"))
    components = {
        role: {**component, "dtype": "u64" if role in _INDICES else dtype} if type(component) is dict else component
        for role, component in tensor["components"].items()
    }
    return {**tensor, "components": components}


_ORDERS = {"None": "<", "little": "<", "big": ">"}


def _short(dtype: Any) -> Any:
    return LONG_NAMES.get(dtype, f"{dtype} of an early zTensor") if type(dtype) is str else dtype
