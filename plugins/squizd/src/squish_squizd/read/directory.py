"""The directory in SQXT: copies of all block headers and masks, from which a remote file opens in a few requests (P9).

Only remote files are opened with it. A source compares each copy with the original before it reads the described data,
and `verify` compares all of them. Without a directory, or if it contradicts the file, the blocks are read one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from attrs import frozen

from squish_core.api import FileAccessError, Limits, Source, SquishError, Statement

from ..findings import Findings
from . import walk
from .anatomy import Anatomy
from .blocks import ALIGNMENT, Block, Prefetched, parse_header
from .coreml import HEADER_SIZE as APPENDIX_HEADER
from .coreml import TAIL
from .draft import MAGIC as DRAFT_MAGIC
from .draft import add_draft, by_layer
from .header import DRAFT_KEY, GLOBAL_KEY, SIZE, Header, Layer
from .masks import check_sparsity, read_masks
from .names import MAX_LENGTH, Names, read_names
from .tables import MAGIC, SUB_BLOCK, Run, Table, tensor_id

MARK, TRAILER = b"\x62at\x48", 12
"""The last item of SQXT in CBOR: the key "at", and the section's offset as a byte string of 8 bytes."""
_PADDING = 63
_WHAT = "a copy in the directory of blocks"


@frozen
class BlockCopy:
    """A block in the directory: its start, its header with padding, and its number of sub-block entries."""

    start: int
    header: bytes
    entries: int


@frozen(kw_only=True)
class Directory:
    """The directory and its section; the blocks of the draft head have the key of its first layer."""

    names: Names
    at: int
    stop: int
    blocks: Mapping[int, list[BlockCopy]]
    masks: Mapping[int, bytes]
    tables: list[Table]

    @cached_property
    def by_start(self) -> dict[int, BlockCopy]:
        """The blocks by their start."""
        return {entry.start: entry for listed in self.blocks.values() for entry in listed}


def read(source: Source, limits: Limits, findings: Findings) -> Anatomy | None:
    """Parse a file from its directory of blocks, without the blocks; None without a usable directory.

    `statements` checks the directory's claims, `verify` padding and unused bits.
    """
    own = Findings()
    try:
        anatomy, index_end = walk.begin(source, own)
        stated = find(source, anatomy.header, limits)
        if stated is None:
            return None
        anatomy.directory = stated
        end, draft_end, source = _place_stated(anatomy, stated, source, index_end, limits, own)
        walk.drop_misfit_names(anatomy, own)
        blocks = walk.quantized(anatomy)
        walk.match_scales(anatomy, source, runs_of(stated, blocks, source), blocks, own)
        walk.check_scale_offsets(anatomy, own)
        walk.tail(anatomy, source, end, draft_end, limits, own, all_headers=False)
        own.raise_first()
        if stated.names.names and not anatomy.names.names:
            raise ValueError("the names of the section do not fit it")
    except (ValueError, SquishError) as error:
        if not isinstance(error, FileAccessError):
            message = "the directory of blocks is ignored, so each block is read"
            findings.warn("P9", "SQXT", f"{message}: {getattr(error, 'message', error)}")
            return None
        raise
    findings.extend(own)
    return anatomy


def _place_stated(
    anatomy: Anatomy, stated: Directory, source: Source, index_end: int, limits: Limits, findings: Findings
) -> tuple[int, int | None, Source]:
    """Place all blocks and sections where the directory states them.

    Returns the ends of the names and of the draft head, and the source with the other ranges that are needed.
    """
    header, total = anatomy.header, sum(map(len, stated.blocks.values()))
    if total > limits.tensors:
        raise ValueError(f"it states {total} blocks, at most {limits.tensors} are allowed")
    for layer in anatomy.layers:
        _stated_layer(anatomy, layer, stated, source, findings)
    weights_end = walk.weights_end(anatomy, index_end)
    first = stated.tables[0].at if stated.tables else stated.at
    anatomy.globals = blocks_of(stated, GLOBAL_KEY, source, (weights_end, first), header.flags)
    if anatomy.globals:
        end = anatomy.globals[-1].end
        anatomy.add("globals", anatomy.globals[0].start, end, walk.kinds(anatomy.globals))
    if any(table.end > stated.at for table in stated.tables):
        raise ValueError("it states a scale table that would reach into it")
    anatomy.tables = stated.tables
    walk.add_tables(anatomy)
    anatomy.names = stated.names
    anatomy.add("names", stated.at, stated.stop, "SQXT")
    check_sparsity(anatomy, findings)
    end = stated.stop
    if header.eagle is not None:
        offset, length, layers, vocabulary = header.eagle
        if offset < end or length < 8 or offset + length > source.size or not vocabulary:
            raise ValueError("the header states an invalid draft head")
        flags = header.flags | {"INT4"}
        blocks = blocks_of(stated, DRAFT_KEY, source, (offset + 8, offset + length), flags)
        if len(blocks) % layers if layers else blocks:
            raise ValueError("its draft head cannot be divided into layers")
        anatomy.draft = by_layer(blocks, layers)
        end = add_draft(anatomy, header.eagle)
    needed = [(table.at, table.end - table.at) for table in stated.tables[:1]]
    if "ANE_COREML" in header.flags:
        needed += [(end, 128), (max(source.size - TAIL, 0), TAIL)]
    return stated.stop, end, Prefetched(source, needed)


def _stated_layer(anatomy: Anatomy, layer: Layer, stated: Directory, source: Source, findings: Findings) -> None:
    start, end = layer.offset, layer.offset + layer.length
    masked = walk.is_masked(anatomy, layer)
    bounds = (start, layer.scale_offset if masked else end)
    blocks = blocks_of(stated, layer.number, source, bounds, anatomy.header.flags)
    anatomy.blocks[layer.number] = blocks
    anatomy.count += len(blocks)
    copy = stated.masks.get(layer.number, b"")
    if masked:
        masks = Prefetched(source)
        masks.keep(layer.scale_offset, memoryview(copy))
        if len(copy) != end - layer.scale_offset:
            raise ValueError(f"it states {len(copy)} bytes of masks for layer {layer.number}")
        if anatomy.header.sparsity and anatomy.header.sparsity[0]:
            read_masks(anatomy, layer, blocks, masks, findings)
        for mask in anatomy.masks.get(layer.number, {}).values():
            mask.copy = masks.read(mask.offset, mask.length)
    if layer.length:
        walk.add_layer(anatomy, layer, masked)


def find(source: Source, header: Header, limits: Limits) -> Directory | None:
    """Find SQXT by its trailer, without the sections before it; None if it has no directory. ValueError if invalid."""
    end = _end_of_names(source, header)
    length = min(end, 64 if end == source.size else TRAILER + _PADDING)
    tail = source.read(end - length, length) if end <= source.size else b""
    place = tail.rfind(MARK)
    rest = tail[place + TRAILER :]
    if place < 0 or len(tail) < place + TRAILER or any(rest):
        return None
    (at,) = struct.unpack_from("<Q", tail, place + len(MARK))
    stop = end - len(rest)
    if not SIZE <= at < stop - TRAILER or stop - at > 8 + MAX_LENGTH:
        raise ValueError(f"it begins at byte {at}, but ends at byte {stop}")
    names, found = read_names(Prefetched(source, [(at, stop - at)]), at, stop, limits, Findings())
    if names is None or found != stop:
        raise ValueError(f"no valid section at byte {at}")
    return parse(names, header, at, stop)


def parse(names: Names, header: Header, at: int, stop: int) -> Directory | None:
    """Return the directory of a section; None if it has none, ValueError if it is invalid."""
    root = names.directory
    if root is None:
        return None
    if not isinstance(root, dict):
        raise ValueError("not a map")
    blocks, masks, tables = root.get("blocks"), root.get("masks", {}), root.get("tables", [])
    if not isinstance(blocks, dict) or not (
        _is_map(blocks, list) and _is_map(masks, bytes) and isinstance(tables, list)
    ):
        raise ValueError("masks must be a map of layers, tables a list")
    if len(tables) > 2 or not all(_is_numbers(table) for table in tables):
        raise ValueError("tables must be at most two lists [offset, entries]")
    starts = {DRAFT_KEY: header.eagle[0]} if header.eagle else {}
    return Directory(
        names=names,
        at=at,
        stop=stop,
        masks=masks,
        tables=[Table(*table) for table in tables],
        blocks={key: [_entry(item, starts.get(key, 0)) for item in items] for key, items in blocks.items()},
    )


def blocks_of(
    directory: Directory, key: int, source: Source, bounds: tuple[int, int], flags: frozenset[str]
) -> list[Block]:
    """Return the blocks of a layer, the globals or the draft head, which fill these bounds; ValueError otherwise."""
    position, blocks = bounds[0], list[Block]()
    for entry in directory.blocks.get(key, ()):
        block = None
        if 0 <= entry.start - position < ALIGNMENT and entry.start < bounds[1]:
            block = parse_header(source, entry.start, entry.header, bounds[1], flags)
        if block is None:
            raise ValueError(f"it states a block at byte {entry.start} that cannot be there")
        blocks.append(block)
        position = block.end
    if bounds[1] - position >= ALIGNMENT:
        raise ValueError(f"it states nothing for the bytes {position} to {bounds[1]}")
    return blocks


def runs_of(directory: Directory, blocks: Sequence[tuple[int, str, Block]], source: Source) -> list[Run]:
    """Return the runs of entries in both tables: stored ones of the first table, counted ones of the second."""
    if not directory.tables:
        return []
    level, *sub = directory.tables
    data = source.read(level.at, level.end - level.at)
    if data[:8] != struct.pack("<4sI", MAGIC, level.count):
        raise ValueError(f"the scale table at byte {level.at} differs from it")
    runs = [(int.from_bytes(data[at : at + 8], "little"), level.at + at, 1) for at in range(8, len(data), 16)]
    position = sub[0].offset(0) if sub else 0
    for own, _, block in blocks:
        if count := directory.by_start[block.start].entries:
            runs.append((own | SUB_BLOCK, position, count))
            position += 16 * count
    if sub and position != sub[0].end:
        raise ValueError("its numbers of entries do not add up to the second scale table")
    return runs


def statements(anatomy: Anatomy, directory: Directory) -> Iterator[Statement]:
    """Yield what opening did not check: each block's header and mask, and the ends of its entries in table 2."""
    eagle = anatomy.header.eagle
    masks = {start: mask for each in anatomy.masks.values() for start, mask in each.items()}
    draft = {block.start for blocks in (anatomy.draft or {}).values() for block in blocks}
    layers = (*anatomy.blocks.values(), anatomy.globals, *(anatomy.draft or {}).values())
    for block in (block for blocks in layers for block in blocks):
        content = [(block.start, directory.by_start[block.start].header)]
        if eagle is not None and block.start in draft:
            content.append((eagle[0], struct.pack("<4sI", DRAFT_MAGIC, eagle[2])))
        if block.start in masks:
            content.append((masks[block.start].offset, masks[block.start].copy))
        yield Statement(start=block.start, stop=block.end, content=tuple(content), what=_WHAT, code="P9")
    for key, name, block in (*anatomy.named(), *anatomy.named(draft=True)):
        scales = anatomy.scales.get(block.start)
        if scales is None or scales.group_size is None or not scales.runs:
            continue
        table, ((first, count),) = directory.tables[1], scales.runs
        own = struct.pack("<Q", tensor_id(key, name) | SUB_BLOCK)
        ends = dict.fromkeys((first, first + 16 * (count - 1)), own).items()
        content = [(table.at, struct.pack("<4sI", MAGIC, table.count)), *ends]
        yield Statement(start=first, stop=first + 16 * count, content=tuple(content), what=_WHAT, code="P9")


def contradictions(directory: Directory, anatomy: Anatomy, source: Source) -> Iterator[str]:
    """Yield how the directory differs from a file whose blocks were read one by one."""
    layers = {**anatomy.blocks, GLOBAL_KEY: anatomy.globals}
    if anatomy.draft is not None:
        layers[DRAFT_KEY] = [block for blocks in anatomy.draft.values() for block in blocks]
    for key in sorted({*layers, *directory.blocks}):
        found = [(block.start, source.read(block.start, block.data - block.start)) for block in layers.get(key, ())]
        stated = [(entry.start, entry.header) for entry in directory.blocks.get(key, ())]
        if found != stated and (key in layers or key != DRAFT_KEY):
            yield f"states other blocks of {_label(key)} than the file has"
    for layer in anatomy.layers:
        copy = directory.masks.get(layer.number, b"")
        length = sum(mask.length for mask in anatomy.masks.get(layer.number, {}).values())
        if len(copy) != length or (length and source.read(layer.scale_offset, length) != copy):
            yield f"states other masks of {_label(layer.number)} than the file has"
    if anatomy.tables != directory.tables:
        yield "states other scale tables than the file has"
    for block in (block for blocks in layers.values() for block in blocks):
        scales, entry = anatomy.scales.get(block.start), directory.by_start.get(block.start)
        if scales is not None and scales.problem is None and entry is not None:
            count = scales.count if scales.group_size is not None else 0
            if count != entry.entries:
                yield f"states {entry.entries} sub-block entries of the block at byte {block.start}, which has {count}"


def _end_of_names(source: Source, header: Header) -> int:
    """Return the start of the section after SQXT, or the end of the file."""
    if header.eagle is not None:
        return header.eagle[0]
    if "ANE_COREML" not in header.flags:
        return source.size
    length = min(64, source.size)
    tail = source.read(source.size - length, length)
    place = tail.rfind(b"PK\5\6")
    if place < 0 or length < place + 22:
        return source.size
    size, offset = struct.unpack_from("<II", tail, place + 12)
    return max(source.size - length + place - size - offset - APPENDIX_HEADER, 0)


def _entry(item: Any, offset: int) -> BlockCopy:
    if not (isinstance(item, list) and len(item) == 3 and isinstance(item[1], bytes) and _is_numbers(item[::2])):
        raise ValueError("each block must be [start, header, entries]")
    return BlockCopy(item[0] + offset, item[1], item[2])


def _is_map(root: Any, kind: type) -> bool:
    return isinstance(root, dict) and all(type(key) is int and isinstance(value, kind) for key, value in root.items())


def _is_numbers(item: Any) -> bool:
    return isinstance(item, list) and len(item) == 2 and all(type(each) is int and 0 <= each < 1 << 64 for each in item)


def _label(key: int) -> str:
    return {GLOBAL_KEY: "the globals", DRAFT_KEY: "the draft head"}.get(key, f"layer {key}")
