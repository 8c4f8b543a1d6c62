"""The walk through a file: which section lies where, and what it holds (specification 2; profile P2, P3, P6 to P9)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from attrs import define, field

from squish_core.api import Limits, Source

from . import tables
from .appendix import Appendix, read_appendix
from .blocks import Block, aligned, parse_run, skip_zeros
from .findings import Findings
from .header import DRAFT_KEY, ENTRY, GLOBAL_KEY, SIZE, Header, Layer, parse_header, parse_index
from .names import Names, check_names, read_names
from .tables import Scales, Table


@define
class Mask:
    """The bitmap of a block: its bytes, its tiles, and how many are kept."""

    offset: int
    length: int
    tiles: int
    kept: int


@define
class Anatomy:
    """A file taken apart; blocks by layer key, in file order."""

    header: Header
    layers: list[Layer]
    blocks: dict[int, list[Block]] = field(factory=dict)
    masks: dict[int, dict[int, Mask]] = field(factory=dict)
    globals: list[Block] = field(factory=list)
    tables: list[Table] = field(factory=list)
    names: Names = field(factory=Names)
    draft: dict[int, list[Block]] | None = None
    scales: dict[int, Scales] = field(factory=dict)
    appendix: Appendix | None = None
    sections: list[dict[str, int | str]] = field(factory=list)

    def add(self, kind: str, offset: int, end: int, holds: str) -> None:
        """Enter a section into the map."""
        self.sections.append({"offset": offset, "size": end - offset, "kind": kind, "holds": holds})

    def named(self, *, draft: bool = False) -> Iterator[tuple[int, str, Block]]:
        """(layer key, name, block) in the order of the tables; the layers and globals, or the draft head."""
        for key, blocks in ((self.draft or {}) if draft else self.blocks).items():
            given = self.names.names.get(key)
            number = key - DRAFT_KEY if draft else key
            for place, block in enumerate(blocks):
                yield key, given[place] if given else f"layers.{number}.w{place}", block
        if not draft:
            for place, block in enumerate(self.globals):
                yield GLOBAL_KEY, self.global_names(block)[0] if self.global_names(block) else f"globals.w{place}", block

    def global_names(self, block: Block) -> list[str]:
        """Names that point at a global block."""
        return [name for name, offset, length in self.names.globals if (offset, length) == (block.start, block.end - block.start)]


def read(source: Source, limits: Limits, found: Findings) -> Anatomy:
    """Take a file apart; raises the first error of what all else depends on, with every finding."""
    header = parse_header(source.read(0, min(SIZE, source.size)), found)
    if header is None:
        found.raise_first()
    assert header is not None
    index_end = SIZE + ENTRY.size * header.layer_count
    if index_end > source.size:
        found.error(
            "P2", "layer index", "runs past the end of the file", kind="truncated", offset=SIZE,
            expected=f"{index_end} bytes for {header.layer_count} layers", found=f"{source.size} bytes",
        )  # fmt: skip
        found.raise_first()
    layers = parse_index(source.read(SIZE, index_end - SIZE), header.layer_count, source.size, found)
    found.raise_first()
    anatomy = Anatomy(header, layers)
    anatomy.add("header", 0, SIZE, ", ".join(sorted(header.flags)) or "no flags")
    if layers:
        anatomy.add("layer index", SIZE, index_end, f"{len(layers)} layers")
    for layer in layers:
        _layer(anatomy, layer, source, limits, found)
    found.raise_first()
    weights_end = max([index_end, *(layer.offset + layer.length for layer in layers if layer.length)])
    _check_gaps(source, index_end, [(layer.offset, layer.length) for layer in layers if layer.length], found)
    end = _after_weights(anatomy, source, weights_end, limits, found)
    found.raise_first()
    _check_scale_offsets(anatomy, found)
    _check_sparsity(anatomy, found)
    draft_end = _draft(anatomy, source, end, limits, found)
    _check_names(anatomy, found)
    _match_scales(anatomy, source, found)
    _tail(anatomy, source, end, draft_end, limits, found)
    found.raise_first()
    return anatomy


def _layer(anatomy: Anatomy, layer: Layer, source: Source, limits: Limits, found: Findings) -> None:
    where, header = f"layer {layer.index}", anatomy.header
    end = layer.offset + layer.length
    masked = bool(layer.length) and "SPARSE" in header.flags and layer.offset <= layer.scale_offset < end
    stop = layer.scale_offset if masked else end
    most = limits.tensors - sum(map(len, anatomy.blocks.values()))
    blocks, position = parse_run(source, layer.offset, stop, header.flags, found, where, most) if layer.length else ([], 0)
    anatomy.blocks[layer.index] = blocks
    if position < stop and layer.length:
        found.error(
            "P2", where, "its weight block holds something that is not a tensor block", offset=position,
            expected="INT4, INT2, NPCL, ASTW or TCAW", found=source.read(position, min(4, stop - position)),
        )  # fmt: skip
        return
    if masked and header.sparsity and header.sparsity[0]:
        _masks(anatomy, layer, blocks, source, found)
    if layer.length:
        anatomy.add("layer", layer.offset, end, f"layer {layer.index}: {_kinds(blocks)}{', masks' if masked else ''}")


def _masks(anatomy: Anatomy, layer: Layer, blocks: list[Block], source: Source, found: Findings) -> None:
    where, position, end = f"layer {layer.index}", layer.scale_offset, layer.offset + layer.length
    assert anatomy.header.sparsity is not None
    side = anatomy.header.sparsity[0]
    if position % 64:
        found.error("P6", where, "its masks do not start at a multiple of 64", offset=layer.at + 20, found=position)
    masks = anatomy.masks[layer.index] = {}
    for block in blocks:
        if len(block.shape) != 2:
            continue
        tiles = -(-block.shape[0] // side) * -(-block.shape[1] // side)
        length = -(-tiles // 8)
        if position + length > end:
            found.error(
                "P6", where, "a mask runs past the weight block", kind="truncated", offset=position,
                expected=f"{length} bytes for {tiles} tiles", found=f"{end - position} bytes",
            )  # fmt: skip
            return
        kept = 0
        for start in range(position, position + length, 1 << 16):
            piece = int.from_bytes(source.read(start, min(1 << 16, position + length - start)), "little")
            kept += (piece & ((1 << min(8 << 16, tiles - 8 * (start - position))) - 1)).bit_count()
        if tiles % 8 and source.read(position + length - 1, 1)[0] >> tiles % 8:
            found.warn("P6", where, "spare bits of a mask are set", offset=position + length - 1)
        masks[block.start] = Mask(position, length, tiles, kept)
        position += length
    rest = skip_zeros(source, position, end)
    if rest < end:
        found.error("P6", where, "something follows the masks", offset=rest, expected="zero padding")


def _after_weights(anatomy: Anatomy, source: Source, start: int, limits: Limits, found: Findings) -> int:
    """Globals, tables and names; returns where they end."""
    end = source.size
    most = limits.tensors - sum(map(len, anatomy.blocks.values()))
    anatomy.globals, _ = parse_run(source, start, end, anatomy.header.flags, found, "globals", most)
    if found.first:
        return end
    weights_end = start
    if anatomy.globals:
        weights_end = anatomy.globals[-1].end
        anatomy.add("globals", anatomy.globals[0].start, weights_end, _kinds(anatomy.globals))
    at = aligned(weights_end)
    anatomy.tables = tables.read_tables(source, at, end, found)
    for number, table in enumerate(anatomy.tables):
        anatomy.add("scale table", table.at, table.end, f"{table.count} entries{', sub-blocks' if number else ''}")
    after = anatomy.tables[-1].end if anatomy.tables else weights_end
    names, stop = read_names(source, aligned(after), end, found)
    if stop > aligned(after):
        anatomy.names = names or Names()
        anatomy.add("names", aligned(after), stop, "SQXT")
        after = stop
    _check_padding(anatomy, source, found)
    return after


def _check_padding(anatomy: Anatomy, source: Source, found: Findings) -> None:
    sections = [section for section in anatomy.sections if section["kind"] != "layer"]
    ends = [(int(section["offset"]), int(section["size"])) for section in sections[1:]]
    last = max([0, *(int(s["offset"]) + int(s["size"]) for s in anatomy.sections if s["kind"] == "layer")])
    for offset, size in ends:
        if last and last < offset and offset - last < 1 << 20 and skip_zeros(source, last, offset) < offset:
            found.warn("P2", "padding", "is not zero", offset=skip_zeros(source, last, offset))
        last = max(last, offset + size)


def _check_gaps(source: Source, start: int, ranges: Iterable[tuple[int, int]], found: Findings) -> None:
    for offset, length in sorted(ranges):
        at = skip_zeros(source, start, offset) if start < offset else offset
        if at < offset:
            found.warn("P2", "padding", "is not zero", offset=at)
        start = max(start, offset + length)


def _check_scale_offsets(anatomy: Anatomy, found: Findings) -> None:
    table = anatomy.tables[0].at if anatomy.tables else None
    for layer in anatomy.layers:
        quantised = any(block.kind in tables.QUANTISED for block in anatomy.blocks[layer.index])
        allowed = ({table} if table else set()) | (set() if quantised else {0})
        if layer.scale_offset not in allowed and layer.index not in anatomy.masks:
            found.error(
                "P3", f"layer {layer.index}", "its scale_offset points neither at the scale table nor at masks",
                offset=layer.at + 20, expected=" or ".join(map(str, sorted(allowed))) or "a scale table in the file",
                found=layer.scale_offset,
            )  # fmt: skip


def _check_sparsity(anatomy: Anatomy, found: Findings) -> None:
    if anatomy.header.sparsity is None:
        return
    _, layers, mean = anatomy.header.sparsity
    masks = [mask for of_layer in anatomy.masks.values() for mask in of_layer.values()]
    tiles, kept = sum(mask.tiles for mask in masks), sum(mask.kept for mask in masks)
    actual = (tiles - kept) / tiles if tiles else 0.0
    if layers != len(anatomy.masks):
        found.warn("P6", "n_sparse_layers", "is not the number of layers with masks", offset=136, expected=len(anatomy.masks), found=layers)
    if not abs(mean - actual) <= 1e-6:
        found.warn("P6", "mean_sparsity", "is not the share of zeroed tiles", offset=140, expected=f"{actual:.7g}", found=f"{mean:.7g}")


def _draft(anatomy: Anatomy, source: Source, end: int, limits: Limits, found: Findings) -> int | None:
    """The draft head; returns where it ends, or None when it is bad (the main tensors stay readable)."""
    if anatomy.header.eagle is None:
        return end
    own = Findings()
    anatomy.draft = _draft_blocks(anatomy.header.eagle, source, end, limits, own)
    found.section(own)
    if anatomy.draft is None:
        return None
    offset, length, layers, vocab = anatomy.header.eagle
    anatomy.add("draft head", offset, offset + length, f"{layers} layers, vocabulary {vocab}")
    return offset + length


def _draft_blocks(
    meta: tuple[int, int, int, int], source: Source, end: int, limits: Limits, found: Findings
) -> dict[int, list[Block]] | None:
    offset, length, layers, vocab = meta
    where = "draft head"
    if offset % 64 or offset < end or length < 8 or offset + length > source.size or not vocab:
        found.error(
            "P7", where, "its metadata names no possible section", offset=160,
            expected=f"a multiple of 64 in {end}..{source.size}, 8 bytes or more, a vocabulary",
            found=f"{offset}, {length} bytes, vocabulary {vocab}",
        )  # fmt: skip
        return None
    magic, stored = source.read(offset, 4), int.from_bytes(source.read(offset + 4, 4), "little")
    if magic != b"EGDH" or stored != layers:
        found.error("P7", where, "its payload contradicts its metadata", offset=offset, expected=f"EGDH, {layers} layers", found=f"{magic!r}, {stored} layers")
        return None
    blocks, position = parse_run(source, offset + 8, offset + length, None, found, where, limits.tensors)
    if position < offset + length:
        found.error("P7", where, "holds something that is not a tensor block", offset=position)
    if len(blocks) % layers if layers else blocks:
        found.error("P7", where, "its blocks do not divide over its layers", offset=offset + 4, expected=f"a multiple of {layers}", found=len(blocks))
    if found.first:
        return None
    each = len(blocks) // layers if layers else 0
    if not each:
        return {}
    return {DRAFT_KEY + number: blocks[number * each : (number + 1) * each] for number in range(layers)}


def _check_names(anatomy: Anatomy, found: Findings) -> None:
    names = anatomy.names
    try:
        # When the draft head is bad, its names cannot be judged.
        keep = {key: listed for key, listed in names.names.items() if key < DRAFT_KEY or anatomy.draft is not None}
        names = Names(names=keep, shapes=names.shapes, globals=names.globals, attrs=names.attrs)
        check_names(names, anatomy.blocks, anatomy.globals, anatomy.draft or {})
        anatomy.names = names
    except ValueError as error:
        found.warn("P9", "SQXT", f"cannot be used, names are synthesised: {error}")
        anatomy.names = Names()


def _match_scales(anatomy: Anatomy, source: Source, found: Findings) -> None:
    wanted = [
        (tables.tensor_id(key, name), name, block)
        for key, name, block in (*anatomy.named(), *anatomy.named(draft=True))
        if block.kind in tables.QUANTISED
    ]
    scales = tables.match(source, anatomy.tables, wanted, found)
    anatomy.scales = {block.start: scale for (_, _, block), scale in zip(wanted, scales)}


def _tail(anatomy: Anatomy, source: Source, end: int, draft_end: int | None, limits: Limits, found: Findings) -> None:
    """The CoreML appendix, or the end of the file."""
    last = draft_end
    if last is None and anatomy.header.eagle is not None:
        declared = anatomy.header.eagle[0] + anatomy.header.eagle[1]
        last = declared if end <= declared <= source.size else None
    if draft_end is not None and draft_end > end:
        assert anatomy.header.eagle is not None
        _check_gaps(source, end, [(anatomy.header.eagle[0], 0)], found)
    if "ANE_COREML" in anatomy.header.flags:
        own = Findings()
        anatomy.appendix = read_appendix(source, aligned(last if last is not None else end), limits, own)
        if anatomy.appendix is not None:
            anatomy.add("CoreML appendix", aligned(last or end), source.size, f"{len(anatomy.appendix.names)} files")
        found.section(own)
        if anatomy.appendix is not None or own.first is not None:
            return
    if last is None:
        return
    rest = skip_zeros(source, last, min(source.size, last + 64))
    if rest < source.size and (source.size - last > 63 or rest < source.size):
        found.error(
            "P2", "end of file", "something follows the last section", offset=last, expected="at most 63 zero bytes",
            found=f"{source.size - last} bytes", hint="Two files joined, or an unknown section?",
        )  # fmt: skip


def _kinds(blocks: list[Block]) -> str:
    counts = {kind: sum(block.kind == kind for block in blocks) for kind in dict.fromkeys(block.kind for block in blocks)}
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "empty"
