"""Writes GGUF v3: the head, then each tensor, padded to the alignment."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen
from squish_ggml.api import blocks_for

from squish_core.api import (
    CodecSpec,
    CodeLayout,
    Dropped,
    Encoding,
    FormatError,
    OutgoingTensor,
    Part,
    Refusal,
    Sink,
    TensorSpec,
    align_up,
    dropped_metadata,
)

from .file_type import type_code, with_file_type
from .reader import MAGIC, check_alignment
from .shapes import KEY as SHAPE
from .shapes import MOST_DIMENSIONS, RESHAPED, shape_keys, stored_shape
from .shards import EditedSet, Shards, shard_name, split_keys
from .types import BLOCK_CODES, DENSE_CODES, GLOBAL_SCALE, LAYOUTS, SCALE, SCALED_NVFP4, TYPE_CODES, WEIGHT
from .values import has_type, pack_pair, pack_string, typed

VERSION = 3


@frozen(kw_only=True)
class TensorTable:
    """The entries of the tensors in a file, and the size of their data."""

    entries: tuple[bytes, ...]
    alignment: int
    size: int


def accepts(spec: TensorSpec, encoding: Encoding) -> Encoding | Refusal:
    """Return the encoding as GGUF stores it, or a refusal."""
    codec, part = encoding.codec.id, encoding.parts.get("data")
    if codec == RESHAPED and encoding.codec.inner and encoding.codec.inner.id in BLOCK_CODES and part is not None:
        return Encoding(codec=encoding.codec, parts={"data": Part(dtype=part.dtype, shape=part.shape)})
    if encoding.codec.inner and encoding.codec.inner.id in BLOCK_CODES:  # of a big-endian file
        return _blocks(spec, encoding.codec.inner.id)
    if codec == SCALED_NVFP4:
        return _blocks(spec, codec)
    if (inner := encoding.codec.inner) and len(encoding.parts) == 1:
        return Refusal(why=f"GGUF stores blocks along rows, not {codec} of {inner.id}", code="codec")
    if part is None or len(encoding.parts) > 1 or inner:
        hint = "; use --encode mxfp4 or nvfp4" if codec == "mx" else ""
        return Refusal(why=f"GGUF stores one array per tensor, {codec} has several{hint}", code="codec")
    if codec == "dense":
        if part.dtype not in DENSE_CODES:
            return Refusal(why=f"GGUF has no {part.dtype} tensors, only {', '.join(DENSE_CODES)}", code="dtype")
        expected = (part.dtype, spec.shape)
    elif codec in TYPE_CODES:
        layout = _blocks(spec, codec)
        if isinstance(layout, Refusal):
            return layout
        expected = ("u8", layout.parts["data"].shape)
    else:
        return Refusal(why=f"GGUF has no type for {codec}", code="codec")
    if (part.dtype, part.shape) != expected:
        return Refusal(
            why=f"its part is {part.dtype} {list(part.shape)}, not {expected[0]} {list(expected[1])}", code="shape"
        )
    return Encoding(codec=encoding.codec, parts={"data": Part(dtype=expected[0], shape=expected[1])})


def accepts_codes(spec: TensorSpec, layout: CodeLayout) -> Encoding | Refusal | None:
    """Return the block encoding that can hold codes from another format."""
    blocks = blocks_for(layout)
    return _blocks(spec, blocks) if blocks else None


def _blocks(spec: TensorSpec, codec: str) -> Encoding | Refusal:
    """Return the encoding of a tensor as rows of blocks."""
    kind = LAYOUTS[TYPE_CODES[codec]]
    if not spec.shape or spec.shape[-1] % kind.elements:
        return Refusal(why=f"rows of {kind.name} must be a multiple of {kind.elements}", code="shape")
    shape = (*spec.shape[:-1], kind.row_size(spec.shape[-1]))
    parts = {"data": Part(dtype="u8", shape=shape)}
    if codec == SCALED_NVFP4:
        if len(spec.shape) > MOST_DIMENSIONS:
            return Refusal(why=f"NVFP4 with global scales has at most {MOST_DIMENSIONS} dimensions", code="rank")
        if not spec.name.endswith(WEIGHT):
            return Refusal(why=f"a global scale belongs to a tensor NAME{WEIGHT}; llama.cpp reads it as NAME{SCALE}")
        parts[GLOBAL_SCALE] = Part(dtype="f32", shape=spec.shape[:-2])
    return Encoding(codec=CodecSpec(codec), parts=parts)


def dropped_keys(specs: Sequence[TensorSpec], meta: Mapping[str, Any]) -> tuple[Dropped, ...]:
    """Return the metadata that GGUF has no type for, or that does not describe the written file."""
    return dropped_metadata(
        key for key, value in _described(meta, specs).items() if value is None or not has_type(value)
    )


def write(
    sink: Sink,
    tensors: Sequence[OutgoingTensor],
    meta: Mapping[str, Any],
    shards: Shards | EditedSet | None = None,
) -> None:
    """Write the file in one pass, or the files of a split set beside it."""
    described = _described(meta, [tensor.spec for tensor in tensors])
    if shards is None:
        _write_file(sink, tensors, described)
        return
    groups = shards.groups(tensors)
    stored = sum(len(_roles(tensor.spec)) for tensor in tensors)
    for number, group in enumerate(groups):
        keys = shards.metadata(number, described, split_keys(number, len(groups), stored))
        with sink.member(shard_name(sink.name, number, len(groups))) as member:
            _write_file(member, group, keys)


def _write_file(sink: Sink, tensors: Sequence[OutgoingTensor], meta: Mapping[str, Any]) -> None:
    packed = (pack_pair(key, value) for key, value in meta.items() if value is not None)
    pairs = [pair for pair in packed if pair is not None]
    table = tensor_table([tensor.spec for tensor in tensors], meta)
    head = b"".join([_start(table, len(pairs)), *pairs, *table.entries])
    head = head.ljust(align_up(len(head), table.alignment), b"\0")
    sink.reserve(len(head) + table.size)
    sink.write(head)
    for tensor in tensors:
        for role in _roles(tensor.spec):
            tensor.parts[role].write_to(sink)
            sink.pad(table.alignment)


def tensor_table(specs: Sequence[TensorSpec], meta: Mapping[str, Any]) -> TensorTable:
    """Lay out the tensors one after the other."""
    alignment = check_alignment(typed(meta.get("general.alignment")))
    entries, offset = [], 0
    names = {spec.name for spec in specs}
    for spec in specs:
        for role, part in _roles(spec).items():
            name, shape, code = spec.name, stored_shape(spec), type_code(spec)
            if role == GLOBAL_SCALE:
                name, shape, code = f"{name.removesuffix(WEIGHT)}{SCALE}", part.shape or (1,), DENSE_CODES["f32"]
            if name != spec.name and name in names:
                raise FormatError("the name belongs to the global scale of another tensor", tensor=name, code="name")
            entries.append(_entry(name, shape, code, offset))
            offset += align_up(part.nbytes, alignment)
    return TensorTable(entries=tuple(entries), alignment=alignment, size=offset)


def _described(meta: Mapping[str, Any], specs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Return the metadata of the written file; None for keys that do not describe it."""
    described = with_file_type(meta, specs)
    keys = (*(key for key in meta if not key.startswith(SHAPE)), *(key for key in described if key not in meta))
    return {**{key: described.get(key) for key in keys}, **shape_keys(specs)}


def _start(table: TensorTable, pairs: int) -> bytes:
    """Return the bytes before the metadata."""
    counts = len(table.entries).to_bytes(8, "little") + pairs.to_bytes(8, "little")
    return MAGIC + VERSION.to_bytes(4, "little") + counts


def _roles(spec: TensorSpec) -> Mapping[str, Part]:
    """Return the parts of a tensor in the order of the file; each is a tensor in it."""
    parts = spec.encodings[0].parts
    return {role: parts[role] for role in ("data", GLOBAL_SCALE) if role in parts}


def _entry(name: str, shape: tuple[int, ...], code: int, offset: int) -> bytes:
    """Pack one tensor table entry: name, dimensions (fastest first), type, offset."""
    try:
        packed = pack_string(name)
    except UnicodeEncodeError:
        raise FormatError("the name cannot be written as UTF-8", tensor=name, code="name") from None
    return packed + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), code, offset)
