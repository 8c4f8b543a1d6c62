"""The draft head: a section whose faults leave the main tensors readable (specification 7; profile P7)."""

from __future__ import annotations

from squish_core.api import Limits, Source

from ..findings import Findings
from .blocks import Block, parse_run
from .header import DRAFT_KEY
from .parsed import Anatomy


def read_draft(anatomy: Anatomy, source: Source, end: int, limits: Limits, findings: Findings) -> int | None:
    """The draft head; returns where it ends, or None when it is bad (the main tensors stay readable)."""
    if anatomy.header.eagle is None:
        return end
    own = Findings()
    flags = anatomy.header.flags | {"INT4"}  # always allowed here, the others where the file's flag is set
    anatomy.draft = _draft_blocks(anatomy.header.eagle, flags, source, end, limits, own)
    findings.section(own)
    if anatomy.draft is None:
        return None
    offset, length, layers, vocab = anatomy.header.eagle
    anatomy.add("draft head", offset, offset + length, f"{layers} layers, vocabulary {vocab}")
    return offset + length


def _draft_blocks(
    meta: tuple[int, int, int, int], flags: frozenset[str], source: Source, end: int, limits: Limits, findings: Findings
) -> dict[int, list[Block]] | None:
    offset, length, layers, vocab = meta
    where = "draft head"
    if offset < end or length < 8 or offset + length > source.size or not vocab:
        findings.error(
            "P7", where, "its metadata names no possible section", offset=160,
            expected=f"an offset in {end}..{source.size}, 8 bytes or more, a vocabulary",
            found=f"{offset}, {length} bytes, vocabulary {vocab}",
        )  # fmt: skip
        return None
    magic, stored = source.read(offset, 4), int.from_bytes(source.read(offset + 4, 4), "little")
    if magic != b"EGDH" or stored != layers:
        findings.error(
            "P7",
            where,
            "its payload contradicts its metadata",
            offset=offset,
            expected=f"EGDH, {layers} layers",
            found=f"{magic!r}, {stored} layers",
        )
        return None
    blocks, position = parse_run(source, offset + 8, offset + length, flags, findings, where, limits.tensors)
    if position < offset + length:
        findings.error("P7", where, "holds something that is not a tensor block", offset=position)
    if len(blocks) % layers if layers else blocks:
        findings.error(
            "P7",
            where,
            "its blocks do not divide over its layers",
            offset=offset + 4,
            expected=f"a multiple of {layers}",
            found=len(blocks),
        )
    if findings.first:
        return None
    each = len(blocks) // layers if layers else 0
    if not each:
        return {}
    return {DRAFT_KEY + number: blocks[number * each : (number + 1) * each] for number in range(layers)}
