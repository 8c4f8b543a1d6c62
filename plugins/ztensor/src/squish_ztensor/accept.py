"""Checks of tensors that both writers share, and how they store bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve

from squish_core.api import (
    CodecSpec,
    Digest,
    Dropped,
    Encoding,
    Filter,
    FormatError,
    Limits,
    Part,
    Refusal,
    Sink,
    SquishError,
    TensorSpec,
    check_name,
    dtypes,
)

from . import objects, sidecar
from .names import BLOCKS
from .options import WriteOptions, zstd_codec
from .records import METADATA

INDICES = ("indices", "indptr", "coords")
SPARSE = ("zt.sparse_csr", "zt.sparse_coo")
_LIMITS = Limits()


def name_refusal(name: str) -> Refusal | None:
    """Return why no version can store this name, or None."""
    try:
        check_name(name, _LIMITS).encode()
    except (SquishError, UnicodeError) as error:
        return Refusal(why=f"invalid tensor name: {error}", code="name")
    if name == METADATA:
        return Refusal(why=f"the tensor name {name!r} is reserved for metadata in other formats", code="name")
    if name == sidecar.NAME:
        return Refusal(why=f"the tensor name {sidecar.NAME!r} is reserved for metadata", code="name")
    return None


def blocks(spec: TensorSpec, encoding: Encoding) -> Encoding | Refusal:
    """Accept GGML blocks of whole rows unchanged."""
    name = encoding.codec.id.removeprefix("ggml.")
    if spec.shape and spec.shape[-1] % BLOCKS[name][0] == 0:
        stored = {"data": Part(dtype="u8", shape=objects.row_shape(name, spec.shape))}
        if {role: bare(part) for role, part in encoding.parts.items()} == stored:
            return Encoding(codec=encoding.codec, parts=stored)
    return Refusal(why=f"its rows are not whole {name} blocks")


def is_blocks(codec: CodecSpec) -> bool:
    """Return whether a codec is a GGML block type that zTensor supports."""
    return codec.id.startswith("ggml.") and codec.id[5:] in BLOCKS


def sparse(encoding: Encoding, kind: str | None) -> Encoding:
    """Accept a sparse tensor; `kind` is the integer type to which all its indices are converted."""
    parts = {role: bare(part) for role, part in encoding.parts.items()}
    if kind is None:
        return Encoding(codec=encoding.codec, parts=parts)
    parts |= {role: evolve(parts[role], dtype=kind) for role in INDICES if role in parts}
    params = {**encoding.codec.params, **{role: kind for role in INDICES if role in parts}}
    return Encoding(codec=CodecSpec(encoding.codec.id, params), parts=parts)


def bare(part: Part) -> Part:
    """Return a part without its place, with dtype and shape only."""
    return Part(dtype=part.dtype, shape=part.shape)


def filtered(encoding: Encoding, options: WriteOptions, codec: str, raw_roles: Sequence[str]) -> Encoding:
    """Return the encoding with its parts except `raw_roles` compressed, if `options` request compression."""
    if options.encoding == "raw":
        return encoding
    _, check_level = zstd_codec()
    check_level(options.params)
    filters = (Filter(codec, options.params),)
    parts = {
        role: part if role in raw_roles else evolve(part, filters=filters) for role, part in encoding.parts.items()
    }
    return evolve(encoding, parts=parts)


def dropped(specs: Sequence[TensorSpec], storable: Callable[[Mapping[str, Any]], bool]) -> tuple[Dropped, ...]:
    """Return the attributes that cannot be stored, for the report."""
    return tuple(
        Dropped("attribute", key, where=spec.name)
        for spec in specs
        for key, value in spec.attrs.items()
        if not storable({key: value})
    )


def counted(chunks: Iterable[Any], part: Part, digest: Digest | None = None) -> Iterator[Any]:
    """Yield and hash the chunks; FormatError if their total size differs from the declared one."""
    count = 0
    for chunk in chunks:
        count += memoryview(chunk).nbytes
        if digest:
            digest.update(chunk)
        yield chunk
    if count != part.nbytes:
        raise FormatError("part size mismatch", expected=part.nbytes, found=count, code="size")


def pad(sink: Sink, offset: int) -> int:
    """Append zeros up to `offset` and return it."""
    if padding := offset - sink.tell():
        sink.write(bytes(padding))
    return offset


def dense_part(dtype: str, shape: tuple[int, ...]) -> Part:
    """Return the part of a dense tensor; elements smaller than a byte are packed into a run of bytes."""
    if dtypes.bits(dtype) < 8:
        return Part(dtype="u8", shape=(dtypes.nbytes(dtype, shape),))
    return Part(dtype=dtype, shape=shape)
