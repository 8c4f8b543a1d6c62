"""Writing SQUIZD: blocks, then tables and names; the header is written last, at the start of the file."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from squish_core.api import (
    Companions,
    Dropped,
    FormatError,
    OutgoingCompanions,
    OutgoingTensor,
    Part,
    Sink,
    TensorSpec,
    dropped_assets,
    dropped_metadata,
)

from ..read.blocks import ALIGNMENT, aligned
from ..read.header import ENTRY, FLAGS, SIZE, fnv1a64
from ..read.tables import QUANTIZED
from . import place
from .companions import dropped_children, dropped_encodings, open_draft, write_appendix
from .directory import directory
from .entries import Entries
from .names import ARCH, MAX_META, arch_of, fits_names, layer_count_of, names_section
from .place import PlacedBlock, Placement, WriteOptions


def dropped(
    specs: Sequence[TensorSpec],
    meta: Mapping[str, Any],
    assets: Mapping[str, Part],
    options: WriteOptions,
    companions: Companions,
) -> tuple[Dropped, ...]:
    """Return what SQUIZD cannot store."""
    lost: tuple[Dropped, ...] = ()
    if not fits_names(meta, (part.nbytes for part in assets.values())):
        reason = f"metadata and assets of more than {MAX_META >> 20} MiB"
        lost = (*dropped_metadata(meta, reason), *dropped_assets(assets, reason))
    placement = place.place(specs, options, layer_count_of(meta))
    return (*lost, *dropped_children(companions, options, placement), *dropped_encodings(companions, options))


def write(
    sink: Sink,
    tensors: Sequence[OutgoingTensor],
    meta: Mapping[str, Any],
    assets: Mapping[str, bytes],
    options: WriteOptions,
    companions: OutgoingCompanions,
) -> None:
    """Write header, index, layers with masks, globals, tables, names, draft head and CoreML appendix."""
    placement = place.place([outgoing.spec for outgoing in tensors], options, layer_count_of(meta))
    streams = {outgoing.spec.name: outgoing.parts for outgoing in tensors}
    with Entries(records=sink.records) as entries, ExitStack() as stack:
        draft = open_draft(companions, options, stack)
        table_at = _table_at(placement)
        sink.write(bytes(SIZE))
        for layer, (start, length, masks) in placement.extents.items():
            quantized = any(block.kind in QUANTIZED for block in placement.layers[layer])
            sink.write(ENTRY.pack(layer, start, length, masks or (table_at if quantized else 0), 0))
        masks_of, tiles, kept = _layers(sink, placement, streams, entries)
        for block in placement.globals:
            _block(sink, block, streams[block.spec.name], entries)
        assert sink.tell() == placement.end
        if draft is not None:
            draft.collect(entries)
        if entries:
            sink.pad(ALIGNMENT)
            assert sink.tell() == table_at or not table_at
            entries.write_to(sink)
        packed = names_section(placement, meta, assets, draft, directory(placement, draft, masks_of))
        sink.pad(ALIGNMENT)
        sink.write(struct.pack("<4sI", b"SQXT", len(packed)) + packed)
        eagle = b"" if draft is None else draft.write_to(sink)
        coreml = write_appendix(sink, companions, options)
    flags = placement.flags() | ({"EAGLE"} if eagle else set()) | ({"ANE_COREML"} if coreml else set())
    sparsity = b""
    if "SPARSE" in flags:
        layers = sum(1 for *_, masks in placement.extents.values() if masks)
        sparsity = struct.pack("<IIIf16x", 1, placement.block_size, layers, (tiles - kept) / tiles if tiles else 0.0)
    sink.patch(0, _header(flags, len(placement.layers), _arch(options, meta, assets), sparsity, eagle))


def _layers(
    sink: Sink, placement: Placement, streams: Mapping[str, Any], entries: Entries
) -> tuple[dict[int, bytes], int, int]:
    """Write all layers with their masks; returns the masks, the number of tiles, and of kept tiles."""
    masks_of, tiles, kept = dict[int, bytes](), 0, 0
    for layer, blocks in placement.layers.items():
        bitmaps = [_block(sink, block, streams[block.spec.name], entries) for block in blocks]
        if placement.extents[layer][2]:
            sink.pad(ALIGNMENT)
            masks_of[layer] = b""
            for block, bitmap in zip(blocks, bitmaps):
                mask, count, bits = _mask(block, bitmap, placement.block_size)
                sink.write(mask)
                masks_of[layer], tiles, kept = masks_of[layer] + mask, tiles + count, kept + bits
    return masks_of, tiles, kept


def _header(flags: set[str], layers: int, arch: int, sparsity: bytes, eagle: bytes) -> bytes:
    word = sum(1 << bit for bit, name in enumerate(FLAGS) if name in flags)
    crc = zlib.crc32(sparsity) if sparsity else 0
    digest = fnv1a64(eagle) if eagle else 0
    fixed = struct.pack("<4sHIHHIQ", b"SQZD", 1, word, layers, arch, crc, digest)
    return fixed.ljust(128, b"\0") + sparsity.ljust(32, b"\0") + eagle.ljust(32, b"\0") + bytes(64)


def _block(sink: Sink, block: PlacedBlock, streams: Mapping[str, Any], entries: Entries) -> bytes | None:
    """Write a tensor block, add its table to `entries` and return its mask."""
    sink.pad(ALIGNMENT)
    assert sink.tell() == block.start
    sink.write(block.header)
    for role, stream in streams.items():
        if role in ("table", "mask"):
            continue
        if role == "full":
            sink.pad(2)
        stream.write_to(sink)
    entries.add(block, streams)
    return streams["mask"].read() if "mask" in streams else None


def _mask(block: PlacedBlock, bitmap: bytes | None, side: int) -> tuple[bytes, int, int]:
    """Return the bitmap of a block, all ones if it has no mask, the number of tiles, and of kept tiles."""
    if not place.has_mask(block):
        return b"", 0, 0
    count = place.tiles(block, side)
    ones = ((1 << count) - 1).to_bytes(-(-count // 8), "little")
    if bitmap is not None and len(bitmap) != len(ones):
        name, expected, found = block.spec.name, len(ones), len(bitmap)
        raise FormatError("mask size mismatch", tensor=name, expected=expected, found=found, code="mask")
    stored = ones if bitmap is None else bitmap
    return stored, count, (int.from_bytes(stored, "little") & ((1 << count) - 1)).bit_count()


def _table_at(placement: Placement) -> int:
    return aligned(placement.end) if any(block.kind in QUANTIZED for block in placement.blocks) else 0


def _arch(options: WriteOptions, meta: Mapping[str, Any], assets: Mapping[str, bytes]) -> int:
    """Return the architecture's number: from the options, the source's header, or the model's metadata and config."""
    if options.arch is not None:
        return options.arch
    stored = meta.get(ARCH)
    if type(stored) is int and 0 <= stored < 1 << 16:
        return stored
    model_type = meta.get("general.architecture")
    if model_type is None and "config.json" in assets:
        try:
            model_type = json.loads(assets["config.json"]).get("model_type")
        except (ValueError, AttributeError, RecursionError):
            model_type = None
    return arch_of(model_type)
