"""ACME: magic, u32 count, one record a tensor, then raw values; integers are little-endian.

A record is u16 length of the name, u8 dtype, u8 rank, the name in UTF-8, u64 for each dimension, u64 offset.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from squish_core import api
from squish_core.api import dtypes

MAGIC = b"ACME"
DTYPES = ("f32", "f16", "bf16", "i64", "i32", "i8", "u8")


class Foo(api.Container):
    """Reads and writes ACME files."""

    def read_index(self, source: api.Source, limits: api.Limits) -> api.Index:
        at, tensors = 8, {}
        if (magic := source.read(0, 4, "the magic")) != MAGIC:
            raise api.FormatError("is not an ACME file", offset=0, expected=MAGIC, found=magic, code="magic")
        (count,) = struct.unpack("<I", source.read(4, 4, "the tensor count"))
        for _ in range(count):
            length, code, rank = struct.unpack("<HBB", source.read(at, 4, "a tensor record"))
            raw = source.read(at + 4, length + 8 * rank + 8, "a tensor record")
            name = api.check_name(text(raw[:length], at + 4), limits, offset=at + 4)
            *shape, offset = struct.unpack_from(f"<{rank + 1}Q", raw, length)
            if name in tensors or code >= len(DTYPES):
                what = "appears twice" if name in tensors else "has an unknown dtype"
                raise api.FormatError(f"a tensor {what}", tensor=name, offset=at, found=code, code="record")
            segment = api.Segment(0, offset, dtypes.nbytes(DTYPES[code], api.check_shape(shape, limits, tensor=name)))
            part = api.Part(dtype=DTYPES[code], shape=tuple(shape), segments=(segment,))
            stored = (api.Encoding(codec=api.DENSE, parts={"data": part}),)
            tensors[name] = api.TensorSpec(name=name, shape=part.shape, dtype=part.dtype, encodings=stored)
            at += 4 + len(raw)
        files = (api.FileRef(source.filename, source.size),)
        return api.Index(format="acme.foo", version="1", files=files, tensors=tensors)

    def accepts(self, spec: api.TensorSpec, encoding: api.Encoding, options: api.Options) -> api.Encoding | api.Refusal:
        if encoding.codec.id != "dense" or spec.dtype not in DTYPES:
            return api.Refusal(why=f"ACME holds plain {', '.join(DTYPES)}")
        return api.Encoding(codec=encoding.codec, parts={"data": api.Part(dtype=spec.dtype, shape=spec.shape)})

    def layout(
        self,
        specs: Sequence[api.TensorSpec],
        meta: Mapping[str, Any],
        assets: Mapping[str, api.Part],
        options: api.Options,
    ) -> api.Layout:
        dropped = (*api.dropped_metadata(meta), *api.dropped_assets(assets))
        return api.Layout(size=len(header(specs)) + sum(map(nbytes, specs)), dropped=dropped)

    def write(
        self,
        sink: api.Sink,
        tensors: Sequence[api.Outgoing],
        meta: Mapping[str, Any],
        assets: Mapping[str, bytes],
        options: api.Options,
    ) -> None:
        sink.write(header([tensor.spec for tensor in tensors]))
        for tensor in tensors:
            tensor.parts["data"].write_to(sink)


def text(raw: bytes, offset: int) -> str:
    """A name from the file."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise api.FormatError("a tensor name is not UTF-8", offset=offset, found=raw[:16], code="name") from None


def nbytes(spec: api.TensorSpec) -> int:
    """Stored bytes of a tensor."""
    return dtypes.nbytes(spec.dtype, spec.shape)


def header(specs: Sequence[api.TensorSpec]) -> bytes:
    """Everything before the values."""
    names = [spec.name.encode() for spec in specs]
    offset = 8 + sum(12 + len(name) + 8 * len(spec.shape) for name, spec in zip(names, specs, strict=True))
    out = bytearray(MAGIC + struct.pack("<I", len(specs)))
    for name, spec in zip(names, specs, strict=True):
        out += struct.pack("<HBB", len(name), DTYPES.index(spec.dtype), len(spec.shape)) + name
        out += struct.pack(f"<{len(spec.shape) + 1}Q", *spec.shape, offset)
        offset += nbytes(spec)
    return bytes(out)
