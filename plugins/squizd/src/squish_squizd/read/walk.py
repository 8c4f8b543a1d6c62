"""Parsing a whole file: the places and contents of its sections (specification 2; profile P2, P3, P6 to P9)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import evolve

from squish_core.api import Limits, Source, counted

from ..findings import Findings
from . import tables
from .anatomy import Anatomy
from .blocks import WINDOW, Block, Prefetched, aligned, find_section, parse_run, skip_zeros
from .coreml import MAGIC as APPENDIX
from .coreml import read_appendix
from .draft import read_draft
from .header import DRAFT_KEY, ENTRY, SIZE, Layer, parse_header, parse_index
from .masks import check_sparsity, read_masks
from .names import MAGIC as NAMES
from .names import Names, check_names, check_shapes, read_names

TABLE = 1 << 20
"""Bytes of the first scale table of a remote file that are read at once."""


def read(source: Source, limits: Limits, findings: Findings) -> Anatomy:
    """Parse a file. An error that affects the tensors is raised with all findings, other errors are collected."""
    anatomy, index_end = begin(source, findings)
    if source.is_remote:
        source = Prefetched(source)
        _prefetch_headers(anatomy, source)
    for layer in anatomy.layers:
        _layer(anatomy, layer, source, limits, findings)
    findings.raise_first()
    end = _after_weights(anatomy, source, weights_end(anatomy, index_end), limits, findings)
    findings.raise_first()
    check_sparsity(anatomy, findings)
    draft_end = read_draft(anatomy, source, end, limits, findings)
    drop_misfit_names(anatomy, findings)
    blocks = quantized(anatomy)
    match_scales(anatomy, source, tables.find_runs(source, anatomy.tables, blocks), blocks, findings)
    check_scale_offsets(anatomy, findings)
    tail(anatomy, source, end, draft_end, limits, findings)
    _check_padding(anatomy, source, findings)
    findings.raise_first()
    return anatomy


def begin(source: Source, findings: Findings) -> tuple[Anatomy, int]:
    """Read the header and the layer index; also returns its end."""
    header = parse_header(source.read(0, min(SIZE, source.size)), findings)
    if header is None:
        findings.raise_first()
    assert header is not None
    index_end = SIZE + ENTRY.size * header.layer_count
    if index_end > source.size:
        findings.error(
            "P2",
            "layer index",
            "extends past the end of the file",
            kind="truncated",
            offset=SIZE,
            expected=f"{index_end} bytes for {counted(header.layer_count, 'layer')}",
            found=f"{source.size} bytes",
        )
        findings.raise_first()
    layers = parse_index(source.read(SIZE, index_end - SIZE), header.layer_count, source.size, findings)
    findings.raise_first()
    anatomy = Anatomy(header, layers)
    anatomy.add("header", 0, SIZE, ", ".join(sorted(header.flags)) or "no flags")
    if layers:
        anatomy.add("layer index", SIZE, index_end, counted(len(layers), "layer"))
    return anatomy, index_end


def _prefetch_headers(anatomy: Anatomy, source: Prefetched) -> None:
    """Read the headers of all layers' blocks: the first ones together, then the second ones, and so on."""
    ends = {layer.number: layer.offset + layer.length for layer in anatomy.layers if layer.length}
    positions = {layer.number: layer.offset for layer in anatomy.layers if layer.length}
    while positions:
        source.prefetch((position, WINDOW) for position in positions.values())
        following = dict[int, int]()
        for number, position in positions.items():
            blocks, _ = parse_run(source, position, ends[number], anatomy.header.flags, Findings(), "", 0)
            if blocks and position < blocks[0].end < ends[number]:
                following[number] = blocks[0].end
        positions = following


def weights_end(anatomy: Anatomy, index_end: int) -> int:
    """Return the end of the last layer, or of the index."""
    return max([index_end, *(layer.offset + layer.length for layer in anatomy.layers if layer.length)])


def is_masked(anatomy: Anatomy, layer: Layer) -> bool:
    """Return whether masks follow the blocks of a layer."""
    inside = layer.offset <= layer.scale_offset < layer.offset + layer.length
    return bool(layer.length) and "SPARSE" in anatomy.header.flags and inside


def add_layer(anatomy: Anatomy, layer: Layer, masked: bool) -> None:
    """Add a layer to the map."""
    content = f"layer {layer.number}: {kinds(anatomy.blocks[layer.number])}{', masks' if masked else ''}"
    anatomy.add("layer", layer.offset, layer.offset + layer.length, content)


def add_tables(anatomy: Anatomy) -> None:
    """Add the scale tables to the map."""
    for number, table in enumerate(anatomy.tables):
        entries = counted(table.count, "entry", "entries")
        anatomy.add("scale table", table.at, table.end, f"{entries}{', sub-blocks' if number else ''}")


def _layer(anatomy: Anatomy, layer: Layer, source: Source, limits: Limits, findings: Findings) -> None:
    where, header = f"layer {layer.number}", anatomy.header
    end = layer.offset + layer.length
    masked = is_masked(anatomy, layer)
    stop = layer.scale_offset if masked else end
    most = limits.tensors - anatomy.count
    blocks, position = (
        parse_run(source, layer.offset, stop, header.flags, findings, where, most) if layer.length else ([], 0)
    )
    anatomy.blocks[layer.number] = blocks
    anatomy.count += len(blocks)
    last = blocks[-1].end if blocks else layer.offset
    if masked and position < stop <= aligned(last):
        findings.warn("P2", where, "the padding before its masks is not zero", offset=position)
    elif position < stop and layer.length:
        findings.error(
            "P2",
            where,
            "unexpected data in its weight block",
            offset=position,
            expected="INT4, INT2, NPCL, ASTW or TCAW",
            found=source.read(position, min(4, stop - position)),
        )
        return
    if masked and header.sparsity and header.sparsity[0]:
        if isinstance(source, Prefetched):
            source.prefetch([(stop, min(end - stop, 1 << 16))])
        read_masks(anatomy, layer, blocks, source, findings)
    if layer.length:
        add_layer(anatomy, layer, masked)


def _after_weights(anatomy: Anatomy, source: Source, start: int, limits: Limits, findings: Findings) -> int:
    """Read globals, tables and names; returns their end."""
    end = source.size
    most = limits.tensors - anatomy.count
    anatomy.globals, _ = parse_run(source, start, end, anatomy.header.flags, findings, "globals", most)
    if findings.first:
        return end
    weights_end = start
    if anatomy.globals:
        weights_end = anatomy.globals[-1].end
        anatomy.add("globals", anatomy.globals[0].start, weights_end, kinds(anatomy.globals))
    at = find_section(source, tables.MAGIC, weights_end, end, {layer.scale_offset for layer in anatomy.layers})
    anatomy.tables = tables.read_tables(source, at, end, findings)
    if isinstance(source, Prefetched):
        source.prefetch((table.at, min(table.end - table.at, TABLE)) for table in anatomy.tables[:1])
    add_tables(anatomy)
    after = anatomy.tables[-1].end if anatomy.tables else weights_end
    at = find_section(source, NAMES, after, end)
    names, stop = read_names(source, at, end, limits, findings)
    if stop > at:
        anatomy.names = names or Names()
        anatomy.add("names", at, stop, "SQXT")
        after = stop
    return after


def _check_padding(anatomy: Anatomy, source: Source, findings: Findings) -> None:
    """Warn about padding between sections that is not zero; what follows an invalid draft head is unknown."""
    end = 0
    for section in anatomy.ordered_sections():
        if section.kind == "CoreML appendix" and anatomy.header.eagle and anatomy.draft is None:
            continue
        at = skip_zeros(source, end, section.offset)
        if at < section.offset:
            findings.warn("P2", "padding", "not zero", offset=at)
        end = max(end, section.offset + section.size)


def check_scale_offsets(anatomy: Anatomy, findings: Findings) -> None:
    """Check that each offset is that of the first table, of the layer's first entry, of its masks, or 0."""
    for layer in anatomy.layers:
        quantized = [block for block in anatomy.blocks[layer.number] if block.kind in tables.QUANTIZED]
        allowed = {table.at for table in anatomy.tables[:1]} | (set() if quantized else {0})
        if quantized and (level := anatomy.scales[quantized[0].start].level) is not None:
            allowed.add(level)
        if layer.scale_offset not in allowed and layer.number not in anatomy.masks:
            findings.error(
                "P3",
                f"layer {layer.number}",
                "its scale_offset points neither to the scale table nor to masks",
                offset=layer.at + 20,
                expected=" or ".join(map(str, sorted(allowed))) or "a scale table in the file",
                found=layer.scale_offset,
            )


def drop_misfit_names(anatomy: Anatomy, findings: Findings) -> None:
    """Drop names that do not fit the blocks."""
    names = anatomy.names
    try:
        # The names of an invalid draft head cannot be checked.
        checkable = {key: listed for key, listed in names.names.items() if key < DRAFT_KEY or anatomy.draft is not None}
        names = evolve(names, names=checkable)
        check_names(names, anatomy.blocks, anatomy.globals, anatomy.draft or {})
        anatomy.names = names
    except ValueError as error:
        findings.warn("P9", "SQXT", f"ignored, so tensors get names such as layers.0.w0: {error}")
        anatomy.names = Names()
    pairs = [(name, block) for _, name, block in (*anatomy.named(), *anatomy.named(draft=True))]
    pairs += [(alias, block) for block in anatomy.globals for alias in anatomy.global_names(block)[1:]]
    check_shapes(anatomy.names, pairs, findings)


def quantized(anatomy: Anatomy) -> list[tuple[int, str, Block]]:
    """Return the blocks with entries in the tables, as (id, name, block), in table order."""
    return [
        (tables.tensor_id(key, name), name, block)
        for key, name, block in (*anatomy.named(), *anatomy.named(draft=True))
        if block.kind in tables.QUANTIZED
    ]


def match_scales(
    anatomy: Anatomy,
    source: Source,
    runs: Iterable[tables.Run],
    blocks: Sequence[tuple[int, str, Block]],
    findings: Findings,
) -> None:
    """Find the scales of the quantized blocks."""
    scales = tables.match(source, runs, blocks, findings)
    anatomy.scales = {block.start: scale for (_, _, block), scale in zip(blocks, scales)}


def tail(
    anatomy: Anatomy,
    source: Source,
    end: int,
    draft_end: int | None,
    limits: Limits,
    findings: Findings,
    *,
    all_headers: bool = True,
) -> None:
    """Read the CoreML appendix, or check the end of the file."""
    last = draft_end
    if last is None and anatomy.header.eagle is not None:
        declared = anatomy.header.eagle[0] + anatomy.header.eagle[1]
        last = declared if end <= declared <= source.size else None
    if "ANE_COREML" in anatomy.header.flags:
        own = Findings()
        at = find_section(source, APPENDIX, last if last is not None else end, source.size)
        anatomy.appendix = read_appendix(source, at, limits, own, all_headers=all_headers)
        if anatomy.appendix is not None:
            stop = anatomy.appendix.offset + anatomy.appendix.length
            anatomy.add("CoreML appendix", at, stop, counted(len(anatomy.appendix.names), "file"))
        findings.extend(own)
        if anatomy.appendix is not None or own.first is not None:
            return
    if draft_end is None or last is None:  # the end of an invalid draft head is unknown
        return
    rest = skip_zeros(source, last, min(source.size, last + 64))
    if rest < source.size or source.size - last > 63:
        findings.error(
            "P2",
            "end of file",
            "unexpected data after the last section",
            offset=last,
            expected="at most 63 zero bytes",
            found=f"{source.size - last} bytes",
            hint="Perhaps two files were joined, or the file has an unknown section.",
        )


def kinds(blocks: list[Block]) -> str:
    """Count blocks by kind."""
    counts = {
        kind: sum(block.kind == kind for block in blocks) for kind in dict.fromkeys(block.kind for block in blocks)
    }
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "empty"
