"""Writing SQUIZD: blocks first, tables and names after them, the header's sums patched in at the end."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import cbor2

from squish_core.api import (
    FormatError,
    OutgoingTensor,
    Part,
    Sink,
    TensorSpec,
    WritePlan,
    dropped_assets,
    dropped_metadata,
    dump_meta,
)

from ..read.blocks import ALIGNMENT, aligned
from ..read.header import ARCHITECTURES, DRAFT_KEY, ENTRY, FLAGS, SIZE, fnv1a64
from ..read.tables import QUANTISED
from . import extras
from . import place as placing
from .entries import Entries
from .place import Placed, Placement, Wanted

ARCH, META = "squizd.arch_id", "squish.meta"
"""Keys of the metadata: the architecture's number, and under which SQXT holds all others and the assets."""
_MOST_META = 48 << 20


def plan_file(
    specs: Sequence[TensorSpec], meta: Mapping[str, Any], assets: Mapping[str, Part], wanted: Wanted
) -> WritePlan:
    """The exact size, from the placement alone."""
    small = sum(part.nbytes for part in assets.values()) <= _MOST_META
    stand_in = {name: bytes(part.nbytes) for name, part in assets.items()} if small else {}
    carried, reason = small and _carried(meta, stand_in), f"metadata and assets of more than {_MOST_META >> 20} MiB"
    dropped = () if carried else (*dropped_metadata(meta, reason), *dropped_assets(assets, reason))
    if wanted.draft or wanted.coreml:
        return WritePlan(size=None, dropped=dropped)
    placement = placing.place(specs, wanted)
    position = placement.end
    quantised = [block for block in placement.placed if block.kind in QUANTISED]
    if quantised:
        position = aligned(position) + 8 + 16 * len(quantised)
    pairs = sum(block.pairs for block in quantised)
    if pairs:
        position = aligned(position) + 8 + 16 * pairs
    position = aligned(position) + 8 + len(_names(placement, *((meta, stand_in) if carried else ({}, {})), {}))
    return WritePlan(size=position, dropped=dropped)


def write(
    sink: Sink, tensors: Sequence[OutgoingTensor], meta: Mapping[str, Any], assets: Mapping[str, bytes], wanted: Wanted
) -> None:
    """Header and index, layers with their masks, globals, tables, names, draft head, CoreML appendix."""
    placement = placing.place([outgoing.spec for outgoing in tensors], wanted)
    streams = {outgoing.spec.name: outgoing.parts for outgoing in tensors}
    with Entries() as entries, extras.Draft(wanted.draft) as draft:
        table_at = _table_at(placement)
        sink.write(bytes(SIZE))
        for layer, (start, length, masks) in placement.extents.items():
            quantised = any(block.kind in QUANTISED for block in placement.layers[layer])
            sink.write(ENTRY.pack(layer, start, length, masks or (table_at if quantised else 0), 0))
        kept = tiles = 0
        for layer, blocks in placement.layers.items():
            bitmaps = [_block(sink, block, streams[block.spec.name], entries) for block in blocks]
            if placement.extents[layer][2]:
                sink.pad(ALIGNMENT)
                for block, bitmap in zip(blocks, bitmaps):
                    count, bits = _mask(sink, block, bitmap, placement.block_size)
                    tiles, kept = tiles + count, kept + bits
        for block in placement.globals:
            _block(sink, block, streams[block.spec.name], entries)
        assert sink.tell() == placement.end
        blocks = draft.place()
        for block in blocks:
            draft.collect(block, entries)
        if entries:
            sink.pad(ALIGNMENT)
            assert sink.tell() == table_at or not table_at
            entries.write_to(sink)
        packed = _names(placement, meta, assets, draft.names())
        sink.pad(ALIGNMENT)
        sink.write(struct.pack("<4sI", b"SQXT", len(packed)) + packed)
        eagle = draft.write_to(sink)
        coreml = extras.write_coreml(sink, wanted.coreml)
    flags = placement.flags() | ({"EAGLE"} if eagle else set()) | ({"ANE_COREML"} if coreml else set())
    sparsity = b""
    if "SPARSE" in flags:
        layers = sum(1 for *_, masks in placement.extents.values() if masks)
        sparsity = struct.pack("<IIIf16x", 1, placement.block_size, layers, (tiles - kept) / tiles if tiles else 0.0)
    sink.patch(0, _header(flags, len(placement.layers), _arch(wanted, meta, assets), sparsity, eagle))


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


def _names(
    placement: Placement, meta: Mapping[str, Any], assets: Mapping[str, bytes], draft: Mapping[int, list[str]]
) -> bytes:
    """The map of SQXT."""
    outside = [(block.spec.name, block) for block in placement.globals] + placement.tied
    shapes = {block.spec.name: list(block.spec.shape) for block in placement.placed if block.shape != block.spec.shape}
    natural = [block.spec.name for blocks in placement.layers.values() for block in blocks]
    others: dict[str, list[str]] = {}
    for name, shared in placement.tied:
        others.setdefault(shared.spec.name, []).append(name)
    for block in placement.globals:
        natural += [block.spec.name, *others.get(block.spec.name, ())]
    attrs: dict[str, Any] = {}
    if natural != placement.order:
        places = {name: place for place, name in enumerate(natural)}
        attrs["order"] = [places[name] for name in placement.order]
    own = {key: value for key, value in meta.items() if key != ARCH}
    if (own or assets) and _carried(own, assets):
        attrs[META] = dump_meta(own, assets)
    root: dict[str, Any] = {
        "v": 1,
        "names": {layer: [block.spec.name for block in blocks] for layer, blocks in placement.layers.items() if blocks}
        | {DRAFT_KEY + layer: names for layer, names in draft.items()},
        "globals": [[name, block.start, len(block.header) + block.length] for name, block in outside],
    }
    root |= {key: value for key, value in (("shapes", shapes), ("attrs", attrs)) if value}
    return cbor2.dumps(root)


def _carried(meta: Mapping[str, Any], assets: Mapping[str, bytes]) -> bool:
    return sum(map(len, assets.values())) <= _MOST_META and len(dump_meta(meta, {})) <= _MOST_META // 4


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
