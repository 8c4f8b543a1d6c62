"""Writing GGUF v3: header and tensor table first, then the data in the same order, all in one pass."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from squish_core.api import Encoding, Layout, Outgoing, Part, Refusal, Sink, TensorSpec, Typed, dtypes

from .arrays import StoredSequence
from .tables import (
    ALIGNMENT_KEY,
    ARRAY,
    BLOCK_IDS,
    BLOCK_TYPES,
    DEFAULT_ALIGNMENT,
    DENSE_IDS,
    MAGIC,
    MAX_NAME,
    MAX_RANK,
    SCALAR_IDS,
    SCALARS,
    STRING,
)

VERSION = 3


def accepts(spec: TensorSpec, encoding: Encoding) -> Encoding | Refusal:
    """Dense arrays of ggml's types, and GGML blocks; rank at most 4, names at most 64 bytes."""
    if len(spec.shape) > MAX_RANK:
        return Refusal(why=f"GGUF holds at most {MAX_RANK} dimensions, this has {len(spec.shape)}", code="rank")
    if len(spec.name.encode()) > MAX_NAME:
        return Refusal(why=f"GGUF names have at most {MAX_NAME} bytes, this has {len(spec.name.encode())}", code="name")
    codec, part = encoding.codec, encoding.parts.get("data")
    if codec.id == "dense":
        if spec.dtype not in DENSE_IDS:
            return Refusal(why=f"GGUF has no type for {spec.dtype}; it has {', '.join(DENSE_IDS)}", code="dtype")
        return Encoding(codec=codec, parts={"data": Part(dtype=spec.dtype, shape=spec.shape)})
    block = codec.id.removeprefix("ggml.")
    if codec.id.startswith("ggml.") and block in BLOCK_IDS and part is not None and len(encoding.parts) == 1:
        _, elements, nbytes = BLOCK_TYPES[BLOCK_IDS[block]]
        if spec.shape and spec.shape[-1] % elements == 0:
            shape = (*spec.shape[:-1], spec.shape[-1] // elements * nbytes)
            if part.shape == shape:
                return Encoding(codec=codec, parts={"data": Part(dtype="u8", shape=shape)})
    return Refusal(why=f"GGUF has no type for {codec.id}", code="codec")


def layout(specs: Sequence[TensorSpec], meta: Mapping[str, Any], assets: Mapping[str, Part]) -> Layout:
    """Exact size; assets and values without a GGUF type have no place."""
    kept, dropped = typed(meta)
    head, _ = header(specs, kept)
    alignment = _alignment(kept)
    data = sum(_padded(_nbytes(spec), alignment) for spec in specs)
    return Layout(
        size=len(head) + data, dropped=(*(f"metadata {key}" for key in dropped), *(f"asset {name}" for name in assets))
    )


def write(sink: Sink, tensors: Sequence[Outgoing], meta: Mapping[str, Any]) -> None:
    """Write header and data; each tensor is padded to the alignment, the last one too."""
    kept, _ = typed(meta)
    head, alignment = header([outgoing.spec for outgoing in tensors], kept)
    sink.write(head)
    for outgoing in tensors:
        outgoing.parts["data"].write_to(sink)
        sink.pad(alignment)


def typed(meta: Mapping[str, Any]) -> tuple[dict[str, Typed], list[str]]:
    """Metadata with GGUF types, and the keys whose values have none.

    Plain values: str -> str; bool -> bool; int -> u32, i32 or i64, the first that holds it; float -> f64; a list of one
    of these -> an array.
    """
    kept: dict[str, Typed] = {}
    dropped = []
    for key, value in meta.items():
        found = value if isinstance(value, Typed) else _guess(value)
        if found is None or not _known(found.type):
            dropped.append(key)
        else:
            kept[key] = found
    return kept, dropped


def header(specs: Sequence[TensorSpec], meta: Mapping[str, Typed]) -> tuple[bytes, int]:
    """Everything before the data, padded; and the alignment."""
    alignment = _alignment(meta)
    out = bytearray(MAGIC + struct.pack("<IQQ", VERSION, len(specs), len(meta)))
    for key, value in meta.items():
        out += _string(key) + _value(value)
    offset = 0
    for spec in specs:
        out += _string(spec.name) + struct.pack("<I", len(spec.shape))
        out += struct.pack(f"<{len(spec.shape)}Q", *reversed(spec.shape))
        out += struct.pack("<IQ", _type_id(spec), offset)
        offset += _padded(_nbytes(spec), alignment)
    out += bytes(-len(out) % alignment)
    return bytes(out), alignment


def _alignment(meta: Mapping[str, Typed]) -> int:
    return int(meta[ALIGNMENT_KEY].value) if ALIGNMENT_KEY in meta else DEFAULT_ALIGNMENT


def _nbytes(spec: TensorSpec) -> int:
    return spec.encodings[0].parts["data"].nbytes


def _padded(size: int, alignment: int) -> int:
    return size + -size % alignment


def _type_id(spec: TensorSpec) -> int:
    codec = spec.encodings[0].codec.id
    return DENSE_IDS[spec.dtype] if codec == "dense" else BLOCK_IDS[codec.removeprefix("ggml.")]


def _string(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else bytes(value)
    return len(raw).to_bytes(8, "little") + raw


def _value(value: Typed) -> bytes:
    """Type number and stored form of a value."""
    if value.type.startswith("array:"):
        return struct.pack("<I", ARRAY) + _array(value.type[6:], value.value)
    if value.type == "str":
        return struct.pack("<I", STRING) + _string(value.value)
    number = SCALAR_IDS[value.type]
    return struct.pack("<I", number) + SCALARS[number][1].pack(value.value)


def _array(kind: str, values: Any) -> bytes:
    """Element type, count and elements of an array."""
    import numpy as np

    number = STRING if kind == "str" else ARRAY if kind.startswith("array:") else SCALAR_IDS[kind]
    head = struct.pack("<IQ", number, len(values))
    if isinstance(values, StoredSequence) and values.type == kind:
        return head + values.data
    if number == STRING:
        return head + b"".join(map(_string, values))
    if number == ARRAY:
        return head + b"".join(_array(kind[6:], inner) for inner in values)
    return head + np.asarray(values, dtypes.to_numpy(kind)).tobytes()


def _known(kind: str) -> bool:
    while kind.startswith("array:"):
        kind = kind[6:]
    return kind == "str" or kind in SCALAR_IDS


def _guess(value: Any) -> Typed | None:
    if isinstance(value, bool):
        return Typed("bool", value)
    if isinstance(value, int):
        fits = (("u32", 0, 1 << 32), ("i32", -(1 << 31), 1 << 31), ("i64", -(1 << 63), 1 << 63))
        return next((Typed(kind, value) for kind, low, high in fits if low <= value < high), None)
    if isinstance(value, float):
        return Typed("f64", value)
    if isinstance(value, str):
        return Typed("str", value)
    if isinstance(value, (list, tuple)) and value:
        kinds = {found.type if (found := _guess(item)) else "" for item in value}
        if kinds <= {"u32", "i32", "i64"} and len(kinds) > 1:
            kinds = {"i64"}
        if len(kinds) == 1 and _known(kind := kinds.pop()):
            return Typed(f"array:{kind}", list(value))
    return None
