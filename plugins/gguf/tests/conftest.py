"""A GGUF builder independent of the plugin, so that tests compare with the specification."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest

CODES = {
    "u8": (0, "B"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h"), "u32": (4, "I"), "i32": (5, "i"),
    "f32": (6, "f"), "bool": (7, "?"), "u64": (10, "Q"), "i64": (11, "q"), "f64": (12, "d"),
}  # fmt: skip
STRING, ARRAY = 8, 9


def string(value: str | bytes) -> bytes:
    """Pack a string: length and bytes."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def pair(key: str | bytes, code: int, payload: bytes) -> bytes:
    """Pack a key with the type code and bytes of its value."""
    return string(key) + struct.pack("<I", code) + payload


def scalar(key: str, kind: str, value: object) -> bytes:
    """Pack a key with a fixed-size value."""
    code, form = CODES[kind]
    return pair(key, code, struct.pack(f"<{form}", value))


def text(key: str, value: str | bytes) -> bytes:
    """Pack a key with a string."""
    return pair(key, STRING, string(value))


def elements(code: int, count: int, payload: bytes) -> bytes:
    """Pack an array's element type, count and elements."""
    return struct.pack("<IQ", code, count) + payload


def array(key: str, code: int, count: int, payload: bytes) -> bytes:
    """Pack a key with an array."""
    return pair(key, ARRAY, elements(code, count, payload))


def tensor(name: str | bytes, dims: tuple[int, ...], code: int = 0, offset: int = 0, rank: int | None = None) -> bytes:
    """Pack a tensor table entry; `dims` are fastest first, as stored."""
    rank = len(dims) if rank is None else rank
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", rank, *dims, code, offset)


def file(
    pairs: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    order: str = "<",
    counts: tuple[int, int] | None = None,
    alignment: int = 32,
) -> bytes:
    """Build a file; the head is padded to the alignment if there are tensors."""
    head = b"GGUF" + struct.pack(f"{order}I", version)
    head += struct.pack(f"{order}QQ", *(counts or (len(tensors), len(pairs)))) + b"".join((*pairs, *tensors))
    return head + bytes(-len(head) % alignment if tensors else 0) + data


@pytest.fixture
def raw() -> SimpleNamespace:
    """The functions of this builder."""
    return SimpleNamespace(
        string=string,
        pair=pair,
        scalar=scalar,
        text=text,
        elements=elements,
        array=array,
        tensor=tensor,
        file=file,
        CODES=CODES,
        STRING=STRING,
        ARRAY=ARRAY,
    )
