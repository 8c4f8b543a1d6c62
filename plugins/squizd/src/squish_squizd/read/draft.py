"""The draft head: a section whose errors leave the main tensors readable (specification 7; profile P7)."""

from __future__ import annotations

from squish_core.api import Limits, Source, counted

from ..findings import Findings
from .anatomy import Anatomy
from .blocks import Block, parse_run
from .header import DRAFT_KEY

MAGIC = b"EGDH"


def read_draft(anatomy: Anatomy, source: Source, end: int, limits: Limits, findings: Findings) -> int | None:
    """Read the draft head; returns its end, or None if it is invalid (the main tensors stay readable)."""
    if anatomy.header.eagle is None:
        return end
    own = Findings()
    flags = anatomy.header.flags | {"INT4"}  # always allowed in a draft head; other kinds need the file's flag
    anatomy.draft = _draft_blocks(anatomy.header.eagle, flags, source, end, limits, own)
    findings.extend(own)
    return None if anatomy.draft is None else add_draft(anatomy, anatomy.header.eagle)


def add_draft(anatomy: Anatomy, meta: tuple[int, int, int, int]) -> int:
    """Add the section to the map; returns its end."""
    offset, length, layers, vocab = meta
    anatomy.add("draft head", offset, offset + length, f"{counted(layers, 'layer')}, vocabulary {vocab}")
    return offset + length


def _draft_blocks(
    meta: tuple[int, int, int, int], flags: frozenset[str], source: Source, end: int, limits: Limits, findings: Findings
) -> dict[int, list[Block]] | None:
    offset, length, layers, vocab = meta
    where = "draft head"
    if offset < end or length < 8 or offset + length > source.size or not vocab:
        findings.error(
            "P7",
            where,
            "invalid section in its metadata",
            offset=160,
            expected=f"an offset in {end}..{source.size}, at least 8 bytes, a vocabulary of at least 1",
            found=f"offset {offset}, {length} bytes, vocabulary {vocab}",
        )
        return None
    magic, stored = source.read(offset, 4), int.from_bytes(source.read(offset + 4, 4), "little")
    if magic != MAGIC or stored != layers:
        findings.error(
            "P7",
            where,
            "its section differs from its metadata in the header",
            offset=offset,
            expected=f"EGDH, {counted(layers, 'layer')}",
            found=f"{magic!r}, {counted(stored, 'layer')}",
        )
        return None
    blocks, position = parse_run(source, offset + 8, offset + length, flags, findings, where, limits.tensors)
    if position < offset + length:
        findings.error("P7", where, "unexpected data between its tensor blocks", offset=position)
    if len(blocks) % layers if layers else blocks:
        findings.error(
            "P7",
            where,
            "its number of blocks is not a multiple of its number of layers",
            offset=offset + 4,
            expected=f"a multiple of {layers}",
            found=len(blocks),
        )
    if findings.first:
        return None
    return by_layer(blocks, layers)


def by_layer(blocks: list[Block], layers: int) -> dict[int, list[Block]]:
    """Divide the blocks among the layers."""
    per_layer = len(blocks) // layers if layers else 0
    if not per_layer:
        return {}
    return {DRAFT_KEY + number: blocks[number * per_layer : (number + 1) * per_layer] for number in range(layers)}
