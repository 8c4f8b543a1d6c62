"""ACME: magic, u32 count, one record a tensor, raw values, one u32 CRC-32C a tensor; integers are little-endian.

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


class Foo(api.WritableContainer):
    """Reads and writes ACME files."""

    def read_index(self, source: api.Source, limits: api.Limits) -> api.Index:
        position, tensors = 8, {}
        if (magic := source.read(0, 4, "the magic")) != MAGIC:
            raise api.FormatError("is not a file of ACME", offset=0, expected=MAGIC, found=magic, code="magic")
        (count,) = struct.unpack("<I", source.read(4, 4, "the tensor count"))
        checksums = source.read(max(8, source.size - 4 * count), 4 * count, "the checksums")
        for (checksum,) in struct.iter_unpack("<I", checksums):
            length, code, rank = struct.unpack("<HBB", source.read(position, 4, "a tensor record"))
            raw = source.read(position + 4, length + 8 * rank + 8, "a tensor record")
            name = api.check_name(text(raw[:length], position + 4), limits, offset=position + 4)
            *shape, offset = struct.unpack_from(f"<{rank + 1}Q", raw, length)
            if name in tensors or code >= len(DTYPES):
                problem = "appears twice" if name in tensors else "has an unknown dtype"
                raise api.FormatError(f"a tensor {problem}", tensor=name, offset=position, found=code, code="record")
            segment = api.Segment(0, offset, dtypes.nbytes(DTYPES[code], api.check_shape(shape, limits, tensor=name)))
            digest = f"crc32c:{checksum:08x}"
            part = api.Part(dtype=DTYPES[code], shape=tuple(shape), segments=(segment,), digest=digest)
            stored = (api.Encoding(codec=api.DENSE, parts={"data": part}),)
            tensors[name] = api.TensorSpec(name=name, shape=part.shape, dtype=part.dtype, encodings=stored)
            position += 4 + len(raw)
        files = (api.FileRef(source.filename, source.size),)
        return api.Index(format="acme.foo", version="1", files=files, tensors=tensors)

    def verify(self, index: api.Index, source: api.Source, limits: api.Limits) -> list[api.Problem]:
        used = len(header(list(index.tensors.values()))) + sum(nbytes(spec) + 4 for spec in index.tensors.values())
        if source.size == used:
            return []
        message = f"the file has {source.size} bytes, its tensors account for {used}"
        return [api.Problem(code="size", severity="warning", where="file", message=message)]

    def accepts(self, spec: api.TensorSpec, encoding: api.Encoding, options: api.Options) -> api.Encoding | api.Refusal:
        if encoding.codec.id != "dense" or spec.dtype not in DTYPES:
            return api.Refusal(why=f"ACME holds plain {', '.join(DTYPES)}")
        return api.Encoding(codec=encoding.codec, parts={"data": api.Part(dtype=spec.dtype, shape=spec.shape)})

    def write(
        self,
        sink: api.Sink,
        tensors: Sequence[api.OutgoingTensor],
        meta: Mapping[str, Any],
        assets: Mapping[str, bytes],
        options: api.Options,
    ) -> None:
        sink.write(header([tensor.spec for tensor in tensors]))
        checksums = b""
        for tensor in tensors:
            digest = api.Digest("crc32c")
            tensor.parts["data"].write_to(sink, digest)
            checksums += int(str(digest).partition(":")[2], 16).to_bytes(4, "little")
        sink.write(checksums)


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
