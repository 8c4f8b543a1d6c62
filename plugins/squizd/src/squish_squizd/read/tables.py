"""Scale tables: which entries belong to which quantized block (specification 8; profile P3)."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Sequence

from attrs import evolve, field, frozen

from squish_core.api import Source, counted

from ..findings import Findings
from .blocks import Block, Prefetched, find_section
from .header import fnv1a64

MAGIC, ENTRY, SUB_BLOCK = b"SCZT", struct.Struct("<Qff"), 1 << 63
QUANTIZED = ("INT4", "INT2", "ASTW")
Run = tuple[int, int, int]
"""Adjacent entries with the same id: the id, their offset and their number."""
_MAX_EXTRA_RUNS = 1 << 16
"""Runs of entries allowed beyond four per tensor: in a hostile table, every entry may be a run."""


@frozen
class Table:
    """A table: its offset and number of entries."""

    at: int
    count: int

    @property
    def end(self) -> int:
        """First byte after the table."""
        return self.at + 8 + ENTRY.size * self.count

    def offset(self, number: int) -> int:
        """Return offset of an entry."""
        return self.at + 8 + ENTRY.size * number


@frozen(kw_only=True)
class Scales:
    """The entries of one block: `runs` of (offset, count) for its sub-blocks, or one for the tensor."""

    runs: tuple[tuple[int, int], ...] = ()
    group_size: int | None = None
    scale: float = 0.0
    zero: float = 0.0
    problem: str | None = None
    level: int | None = None
    """Offset of the tensor-level entry."""

    @property
    def count(self) -> int:
        """Number of entries."""
        return sum(count for _, count in self.runs)


def tensor_id(key: int, name: str) -> int:
    """Return the id of a tensor in the tables: FNV-1a-64 of the u32 layer key and the name, top bit cleared."""
    return fnv1a64(struct.pack("<I", key) + name.encode()) & ~SUB_BLOCK


def read_tables(source: Source, start: int, end: int, findings: Findings) -> list[Table]:
    """Read one or two tables; the first begins at `start`."""
    tables: list[Table] = []
    at = start
    while len(tables) < 2 and at + 4 <= end and source.read(at, 4) == MAGIC:
        if at + 8 > end:
            findings.error("P3", "scale table", "truncated before its number of entries", kind="truncated", offset=at)
            break
        (count,) = struct.unpack("<I", source.read(at + 4, 4))
        table = Table(at, count)
        if table.end > end:
            findings.error(
                "P3",
                "scale table",
                "its entries extend past the end of the file",
                kind="truncated",
                offset=at + 4,
                expected=f"at most {(end - at - 8) // ENTRY.size} entries",
                found=count,
            )
            break
        tables.append(table)
        at = find_section(source, MAGIC, table.end, end)
    return tables


def match(
    source: Source, runs: Iterable[Run], blocks: Sequence[tuple[int, str, Block]], findings: Findings
) -> list[Scales]:
    """Match entries with quantized blocks, given as (id, name, block) in table order."""
    entries = _Entries()
    for number, run in enumerate(runs):
        entries.add(*run, findings)
        if number > _MAX_EXTRA_RUNS + 4 * len(blocks):
            findings.error("P3", "scale table", "too many separate runs of entries", offset=run[1])
            return [
                Scales(
                    problem="its scales are ambiguous: the entries of the scale table are not grouped by tensor [P3]"
                )
                for _ in blocks
            ]
    stored = _stored_ids(blocks, entries, findings)
    levels = [None if own is None else entries.level[own] for own in stored]
    scales = [
        evolve(_scales(source, level, entries.sub.get(own or 0, []), block), level=level)
        for own, level, (_, _, block) in zip(stored, levels, blocks)
    ]
    _check_order(entries, stored, findings)
    return scales


@frozen
class _Entries:
    """Tensor-level entries (id -> offset) and runs of sub-block entries (id without its top bit -> runs)."""

    level: dict[int, int] = field(factory=dict)
    sub: dict[int, list[tuple[int, int]]] = field(factory=dict)

    def add(self, own: int, offset: int, count: int, findings: Findings) -> None:
        """Add a run of entries with the same id."""
        if own & SUB_BLOCK:
            self.sub.setdefault(own & ~SUB_BLOCK, []).append((offset, count))
            return
        if count > 1 or own in self.level:
            findings.error(
                "P3", "scale table", "two entries have the same tensor_id", offset=offset, found=f"{own:#018x}"
            )
        self.level[own] = offset


def find_runs(source: Source, tables: Sequence[Table], blocks: Sequence[tuple[int, str, Block]]) -> Iterator[Run]:
    """Yield the runs of the tables; an end is where other runs suggest it, or is searched for in steps.

    Only the ends of a run are compared; the ids between are checked when the entries are read.
    """
    by_id = {own: block for own, _, block in blocks}
    for table in tables:
        start, length = 0, 0
        while start < table.count:
            own = _id(source, table, start)
            block = by_id.get(own & ~SUB_BLOCK)
            count = _suggested(block, length) if block is not None and own & SUB_BLOCK else 1
            if isinstance(source, Prefetched) and own & SUB_BLOCK and start + count < table.count:
                source.prefetch([(table.offset(start + count - 1), 2 * ENTRY.size)])  # this end and the next start
            if start + count <= table.count and _ends(source, table, start + count - 1, own):
                yield own, table.offset(start), count
                start += count
                continue
            low, step = start, 1
            while low + step < table.count and _id(source, table, low + step) == own:
                low, step = low + step, 2 * step
            high = min(low + step, table.count)
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if _id(source, table, middle) == own else (low, middle)
            yield own, table.offset(start), high - start
            length = -(-block.elements // (high - start)) if block is not None else 0
            start = high


def _suggested(block: Block, length: int) -> int:
    """Return the number of entries of a block whose sub-blocks have the stated length, or that of the block before."""
    length = block.facts.get("sub_block_len", length)
    return max(-(-block.elements // length), 1) if length else 1


def _ends(source: Source, table: Table, last: int, own: int) -> bool:
    """Return whether a run of this id ends with the entry `last`."""
    data = source.read(table.offset(last), 8 if last + 1 == table.count else 8 + ENTRY.size)
    return int.from_bytes(data[:8], "little") == own != int.from_bytes(data[ENTRY.size :], "little")


def _id(source: Source, table: Table, number: int) -> int:
    return int.from_bytes(source.read(table.offset(number), 8), "little")


def _stored_ids(blocks: Sequence[tuple[int, str, Block]], entries: _Entries, findings: Findings) -> list[int | None]:
    """Return the id under which each block's entry is stored: its own id, else the one at its place in the order."""
    ours = {own for own, _, _ in blocks}
    by_order = list(entries.level) if len(entries.level) == len(blocks) else []
    stored: list[int | None] = []
    for place, (own, name, _) in enumerate(blocks):
        if own in entries.level:
            stored.append(own)
        elif by_order and by_order[place] not in ours:
            # the specification names no hash (section 8)
            findings.note(
                "P3",
                name,
                "another tensor_id in its scale entry, which was matched by order",
                expected=f"{own:#018x}",
                found=f"{by_order[place]:#018x}",
            )
            stored.append(by_order[place])
        else:
            stored.append(None)
    return stored


def _check_order(entries: _Entries, stored: Sequence[int | None], findings: Findings) -> None:
    in_order = [own for own in stored if own is not None]
    tensor_ids = set(in_order)
    for label, ids in (("scale", entries.level), ("sub-block scale", entries.sub)):
        orphans = [own for own in ids if own not in tensor_ids]
        if orphans:
            count = counted(len(orphans), f"{label} entry", f"{label} entries")
            findings.warn("P3", "scale table", f"{count} without a tensor", found=f"{orphans[0]:#018x}")
        if [own for own in in_order if own in ids] != [own for own in ids if own in tensor_ids]:
            findings.warn("P3", "scale table", f"{label} entries are not in tensor order")


def _scales(source: Source, level: int | None, runs: list[tuple[int, int]], block: Block) -> Scales:
    if level is None:
        return Scales(problem="no entry in the scale table [P3]")
    _, scale, zero = ENTRY.unpack(source.read(level, ENTRY.size))
    if not (math.isfinite(scale) and math.isfinite(zero)):
        return Scales(problem=f"its scale or zero point is NaN or infinite: {scale}, {zero} (at byte {level + 8}) [P3]")
    if not runs or block.kind == "ASTW":
        return Scales(runs=((level, 1),), scale=scale, zero=zero)
    count = sum(number for _, number in runs)
    length = block.facts.get("sub_block_len") or -(-block.elements // count) or 1
    if count != -(-block.elements // length):
        return Scales(
            problem=f"{count} sub-block entries do not fit {block.elements} elements"
            f" (expected {-(-block.elements // length)} of {length} elements each) [P3]"
        )
    return Scales(runs=tuple(runs), group_size=length, scale=scale, zero=zero)
