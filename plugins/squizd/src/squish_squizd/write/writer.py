"""Writing SQUIZD: blocks first, tables and names after them, the header's sums patched in at the end."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from squish_core.api import (
    Companions,
    FormatError,
    OutgoingCompanions,
    OutgoingTensor,
    Part,
    Sink,
    TensorSpec,
    WritePlan,
    dropped_assets,
    dropped_metadata,
)

from ..read.blocks import ALIGNMENT, aligned
from ..read.header import ARCHITECTURES, ENTRY, FLAGS, SIZE, fnv1a64
from ..read.tables import QUANTISED
from . import place as placing
from .beside import open_draft, plan_appendix, plan_draft, write_appendix
from .coreml import HEADER
from .entries import Entries
from .names import ARCH, MOST_META, fits_names, names_section
from .place import Placed, Placement, Wanted


def plan_file(
    specs: Sequence[TensorSpec], meta: Mapping[str, Any], assets: Mapping[str, Part], wanted: Wanted,
    companions: Companions,
) -> WritePlan:  # fmt: skip
    """The exact size, from the placement alone, and which companions have no place."""
    placement = placing.place(specs, wanted)
    small = sum(part.nbytes for part in assets.values()) <= MOST_META
    stand_in = {name: bytes(part.nbytes) for name, part in assets.items()} if small else {}
    carried, reason = small and fits_names(meta, stand_in), f"metadata and assets of more than {MOST_META >> 20} MiB"
    dropped = () if carried else (*dropped_metadata(meta, reason), *dropped_assets(assets, reason))
    draft, lost = plan_draft(companions, wanted, placement)
    appendix, excess = plan_appendix(companions, wanted)
    dropped = (*dropped, *lost, *excess)
    if wanted.draft or wanted.coreml:
        return WritePlan(size=None, dropped=dropped)
    position = placement.end
    quantised = [block for block in placement.placed if block.kind in QUANTISED]
    quantised += [block for block, _ in draft.blocks(0) if block.kind in QUANTISED] if draft else []
    if quantised:
        position = aligned(position) + 8 + 16 * len(quantised)
    pairs = sum(block.pairs for block in quantised)
    if pairs:
        position = aligned(position) + 8 + 16 * pairs
    held = (meta, stand_in) if carried else ({}, {})
    position = aligned(position) + 8 + len(names_section(placement, *held, draft))
    if draft is not None:
        position = draft.end(position)
    if appendix is not None:
        position = aligned(position) + HEADER.size + appendix
    return WritePlan(size=position, dropped=dropped)


def write(
    sink: Sink, tensors: Sequence[OutgoingTensor], meta: Mapping[str, Any], assets: Mapping[str, bytes], wanted: Wanted,
    companions: OutgoingCompanions,
) -> None:  # fmt: skip
    """Header and index, layers with their masks, globals, tables, names, draft head, CoreML appendix."""
    placement = placing.place([outgoing.spec for outgoing in tensors], wanted)
    streams = {outgoing.spec.name: outgoing.parts for outgoing in tensors}
    with Entries() as entries, ExitStack() as opened:
        draft = open_draft(companions, wanted, opened)
        table_at = _table_at(placement)
        sink.write(bytes(SIZE))
        for layer, (start, length, masks) in placement.extents.items():
            quantised = any(block.kind in QUANTISED for block in placement.layers[layer])
            sink.write(ENTRY.pack(layer, start, length, masks or (table_at if quantised else 0), 0))
        tiles, kept = _layers(sink, placement, streams, entries)
        for block in placement.globals:
            _block(sink, block, streams[block.spec.name], entries)
        assert sink.tell() == placement.end
        if draft is not None:
            draft.collect(entries)
        if entries:
            sink.pad(ALIGNMENT)
            assert sink.tell() == table_at or not table_at
            entries.write_to(sink)
        packed = names_section(placement, meta, assets, draft)
        sink.pad(ALIGNMENT)
        sink.write(struct.pack("<4sI", b"SQXT", len(packed)) + packed)
        eagle = b"" if draft is None else draft.write_to(sink)
        coreml = write_appendix(sink, companions, wanted)
    flags = placement.flags() | ({"EAGLE"} if eagle else set()) | ({"ANE_COREML"} if coreml else set())
    sparsity = b""
    if "SPARSE" in flags:
        layers = sum(1 for *_, masks in placement.extents.values() if masks)
        sparsity = struct.pack("<IIIf16x", 1, placement.block_size, layers, (tiles - kept) / tiles if tiles else 0.0)
    sink.patch(0, _header(flags, len(placement.layers), _arch(wanted, meta, assets), sparsity, eagle))


def _layers(sink: Sink, placement: Placement, streams: Mapping[str, Any], entries: Entries) -> tuple[int, int]:
    """All layers with their masks; the tiles of the masks, and how many are kept."""
    tiles = kept = 0
    for layer, blocks in placement.layers.items():
        bitmaps = [_block(sink, block, streams[block.spec.name], entries) for block in blocks]
        if placement.extents[layer][2]:
            sink.pad(ALIGNMENT)
            for block, bitmap in zip(blocks, bitmaps):
                count, bits = _mask(sink, block, bitmap, placement.block_size)
                tiles, kept = tiles + count, kept + bits
    return tiles, kept


def _header(flags: set[str], layers: int, arch: int, sparsity: bytes, eagle: bytes) -> bytes:
    word = sum(1 << bit for bit, name in enumerate(FLAGS) if name in flags)
    crc = zlib.crc32(sparsity) if sparsity else 0
    digest = fnv1a64(eagle) if eagle else 0
    fixed = struct.pack("<4sHIHHIQ", b"SQZD", 1, word, layers, arch, crc, digest)
    return fixed.ljust(128, b"\0") + sparsity.ljust(32, b"\0") + eagle.ljust(32, b"\0") + bytes(64)


def _block(sink: Sink, block: Placed, streams: Mapping[str, Any], entries: Entries) -> bytes | None:
    """One tensor block; its table goes to `entries`, its mask is returned."""
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
    return b"".join(bytes(chunk) for chunk in streams["mask"].chunks()) if "mask" in streams else None


def _mask(sink: Sink, block: Placed, bitmap: bytes | None, side: int) -> tuple[int, int]:
    """A block's bitmap, all ones where it was not pruned; its tiles, and how many are kept."""
    if not placing.has_mask(block):
        return 0, 0
    count = placing.tiles(block, side)
    ones = ((1 << count) - 1).to_bytes(-(-count // 8), "little")
    if bitmap is not None and len(bitmap) != len(ones):
        raise FormatError(
            "a mask came out in another size", tensor=block.spec.name, expected=len(ones), found=len(bitmap)
        )
    sink.write(ones if bitmap is None else bitmap)
    held = int.from_bytes(ones if bitmap is None else bitmap, "little") & ((1 << count) - 1)
    return count, held.bit_count()


def _table_at(placement: Placement) -> int:
    return aligned(placement.end) if any(block.kind in QUANTISED for block in placement.placed) else 0


def _arch(wanted: Wanted, meta: Mapping[str, Any], assets: Mapping[str, bytes]) -> int:
    """The architecture's number: as asked, as it was, or from what the model says of itself."""
    if wanted.arch is not None:
        return wanted.arch
    stored = meta.get(ARCH)
    if type(stored) is int and 0 <= stored < 1 << 16:
        return stored
    named = getattr(meta.get("general.architecture"), "value", meta.get("general.architecture"))
    if named is None and "config.json" in assets:
        try:
            named = json.loads(assets["config.json"]).get("model_type")
        except (ValueError, AttributeError, RecursionError):
            named = None
    names = [name for name in ARCHITECTURES[1:] if isinstance(named, str) and named.lower().startswith(name)]
    return ARCHITECTURES.index(names[0]) if names else 0
