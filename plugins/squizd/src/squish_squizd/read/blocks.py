"""Tensor blocks: each has a magic and a header that gives its length (specification 5; profile P2, P3, P4, P5)."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import NamedTuple

from attrs import field, frozen

from squish_core.api import Source, align_up

from ..findings import Findings

ALIGNMENT = 64
WINDOW = 256
"""Size of a read that covers a block's header and the padding before it, for remote files."""
_ZEROS = bytes(1 << 20)
TCAW = struct.Struct("<4sIIIBBBBQQ")
NPCL_DTYPES = {0: "f32", 1: "f16", 2: "bf16"}
NPCL_RANK = 8

FOOTPRINTS = {
    x << 4 | y: (x, y)
    for x, y in (
        (4, 4),
        (5, 4),
        (5, 5),
        (6, 5),
        (6, 6),
        (8, 5),
        (8, 6),
        (8, 8),
        (10, 5),
        (10, 6),
        (10, 8),
        (10, 10),
        (12, 10),
        (12, 12),
    )
} | {0x04: (4, 4), 0x05: (5, 5), 0x06: (6, 6), 0x08: (8, 5), 0x0A: (10, 10), 0x0C: (12, 12)}
"""ASTC footprint codes: every footprint as `x << 4 | y`, and six short codes, which are written where they exist."""
FOOTPRINT_CODES = {footprint: code for code, footprint in FOOTPRINTS.items()}


@frozen(kw_only=True)
class Block:
    """One tensor block: its start, the place of its data, and the fields of its header."""

    kind: str
    start: int
    data: int
    length: int
    shape: tuple[int, ...]
    facts: dict[str, int] = field(factory=dict)
    problem: str | None = None

    @property
    def end(self) -> int:
        """First byte after the block."""
        return self.data + self.length

    @property
    def elements(self) -> int:
        """Number of weights."""
        count = 1
        for size in self.shape:
            count *= size
        return count


class _At(NamedTuple):
    """The position at which a block header is read."""

    source: Source
    start: int
    end: int
    findings: Findings
    where: str

    def words(self, count: int, offset: int = 4) -> tuple[int, ...] | None:
        """Read u32 words after the magic; None, with a finding, if the section ends before them."""
        if self.start + offset + 4 * count > self.end:
            self.findings.error(
                "P2",
                self.where,
                "a block header extends past the end of its section",
                kind="truncated",
                offset=self.start,
                expected=f"{offset + 4 * count} bytes",
                found=f"{self.end - self.start} bytes",
            )
            return None
        return struct.unpack(f"<{count}I", self.source.read(self.start + offset, 4 * count))


def _packed(bits: int) -> Callable[[_At], Block | None]:
    header = 3 if bits == 2 else 2
    kind = f"INT{bits}"

    def parse(at: _At) -> Block | None:
        words = at.words(header)
        if words is None:
            return None
        rows, columns, *rest = words
        facts = {"sub_block_len": rest[0]} if rest else {}
        if rest and rest[0] == 0:
            at.findings.error("P3", at.where, "sub_block_len is 0", offset=at.start + 12, expected="1 or more", found=0)
            return None
        length = -(-rows * columns * bits // 8)
        return Block(
            kind=kind, start=at.start, data=at.start + 4 + 4 * header, length=length, shape=(rows, columns), facts=facts
        )

    return parse


def _npcl(at: _At) -> Block | None:
    words = at.words(2)
    if words is None:
        return None
    code, rank = words
    if rank > NPCL_RANK:
        at.findings.error(
            "P4", at.where, "too many dimensions", offset=at.start + 8, expected=f"at most {NPCL_RANK}", found=rank
        )
        return None
    shape = at.words(rank, 12)
    if shape is None:
        return None
    dtype = NPCL_DTYPES.get(code)
    data = at.start + 12 + 4 * rank
    width = {"f32": 4, "f16": 2, "bf16": 2, None: 0}[dtype]
    length = width
    for size in shape:
        length *= size
    if dtype is None:
        # The size of an unknown type is unknown: the block is assumed to fill the rest of its section.
        return Block(
            kind="NPCL",
            start=at.start,
            data=data,
            length=at.end - data,
            shape=shape,
            facts={"dtype_code": code},
            problem=f"unknown dtype_code {code} (expected 0 for f32, 1 for f16, 2 for bf16) [P4]",
        )
    return Block(kind="NPCL", start=at.start, data=data, length=length, shape=shape, facts={"dtype_code": code})


def _astw(at: _At) -> Block | None:
    words = at.words(3)
    if words is None:
        return None
    width, height, code = words
    footprint = FOOTPRINTS.get(code)
    if footprint is None:
        codes = ", ".join(f"{own:#04x} for {x}x{y}" for (x, y), own in FOOTPRINT_CODES.items())
        at.findings.error(
            "P5", at.where, "unknown ASTC footprint code", offset=at.start + 12, expected=codes, found=f"{code:#04x}"
        )
        return None
    if not width or not height:
        at.findings.error(
            "P5", at.where, "an ASTC texture has no texels", offset=at.start + 4, found=f"{width}x{height}"
        )
        return None
    if code != FOOTPRINT_CODES[footprint]:
        at.findings.note(
            "P5",
            at.where,
            "an ASTC footprint by its sizes instead of its code",
            offset=at.start + 12,
            expected=f"{FOOTPRINT_CODES[footprint]:#04x} for {footprint[0]}x{footprint[1]}",
            found=f"{code:#04x}",
        )
    length = -(-width // footprint[0]) * -(-height // footprint[1]) * 16
    return Block(
        kind="ASTW",
        start=at.start,
        data=at.start + 16,
        length=length,
        shape=(height, width),
        facts={"x": footprint[0], "y": footprint[1]},
    )


def _tcaw(at: _At) -> Block | None:
    if at.words(TCAW.size // 4 - 1) is None:
        return None
    _, rows, word_width, columns, dtype, base, planes, zero, high, full = TCAW.unpack(
        at.source.read(at.start, TCAW.size)
    )
    planes_at = aligned(at.start + TCAW.size)
    plane = rows * -(-columns // 64) * 8
    high_at = planes_at + 3 * plane
    full_at = high_at + high + high % 2
    problem = None
    if (word_width, dtype, planes) != (64, 2, 3):
        problem = (
            f"unsupported TCA-TBE block: word width {word_width}, dtype {dtype}, {planes} planes"
            " (expected 64, 2, 3) [P5]"
        )
    if base > 248:
        at.findings.error(
            "P5", at.where, "base_exponent too large", offset=at.start + 17, expected="at most 248", found=base
        )
        return None
    if high + full != rows * columns:
        at.findings.error(
            "P5",
            at.where,
            "the numbers of short and full values do not add up to the shape",
            offset=at.start + 20,
            expected=rows * columns,
            found=high + full,
        )
        return None
    if zero:
        at.findings.warn("P5", at.where, "a reserved byte is not zero", offset=at.start + 19, expected=0, found=zero)
    return Block(
        kind="TCAW",
        start=at.start,
        data=planes_at,
        length=full_at + 2 * full - planes_at,
        shape=(rows, columns),
        facts={
            "base_exponent": base,
            "plane": plane,
            "high_at": high_at,
            "high": high,
            "full_at": full_at,
            "full": full,
        },
        problem=problem,
    )


KINDS: dict[bytes, Callable[[_At], Block | None]] = {
    b"INT4": _packed(4), b"INT2": _packed(2), b"NPCL": _npcl, b"ASTW": _astw, b"TCAW": _tcaw,
}  # fmt: skip
BITS = {"INT4": 4, "INT2": 2}
FLAG_OF = {"INT4": "INT4", "INT2": "INT2", "ASTW": "ASTC", "TCAW": "TCA_TBE", "NPCL": None}


def aligned(position: int) -> int:
    """Return the next multiple of 64."""
    return align_up(position, ALIGNMENT)


def parse_run(
    source: Source, start: int, end: int, flags: frozenset[str], findings: Findings, where: str, most: int
) -> tuple[list[Block], int]:
    """Parse blocks from `start`, with zero padding between, to `end` or to the first other data; returns them and that
    position. `flags` are those whose blocks are allowed, `most` is the maximum number of blocks.
    """
    blocks: list[Block] = []
    position = start
    while position < end:
        if isinstance(source, Prefetched) and not source.holds(position, WINDOW):
            source.prefetch([(position, WINDOW)])
        position = skip_zeros(source, position, end)
        if position == end:
            break
        magic = source.read(position, min(4, end - position))
        parse = KINDS.get(magic)
        if parse is None:
            break
        block = parse(_At(source, position, end, findings, where))
        if block is None:
            return blocks, end
        if block.end > end:
            findings.error(
                "P2",
                where,
                f"a block of kind {block.kind} extends past the end of its section",
                kind="truncated",
                offset=block.start,
                expected=f"{block.end - block.start} bytes",
                found=f"{end - block.start} bytes",
            )
            return blocks, end
        flag = FLAG_OF[block.kind]
        if flag and flag not in flags:
            findings.error(
                "P2",
                where,
                f"a block of kind {block.kind}, but the flag {flag} is not set",
                offset=block.start,
                expected=f"flag {flag}",
                found=", ".join(sorted(flags)) or "no flags",
            )
        _check_spare(source, block, findings, where)
        blocks.append(block)
        position = block.end
        if len(blocks) > most:
            findings.error("P2", where, "too many tensor blocks", offset=position, expected=f"at most {most}")
            return blocks, end
    return blocks, position


class Prefetched(Source):
    """A source with some ranges prefetched together; other ranges are read on demand."""

    def __init__(self, inner: Source, ranges: Iterable[tuple[int, int]] = ()) -> None:
        super().__init__(inner.name, inner.size)
        self._inner = inner
        self._starts: list[int] = []
        self._views: list[memoryview] = []
        self.prefetch(ranges)

    def prefetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Read ranges (offset, length), as far as the file reaches."""
        inside = sorted((offset, min(length, self.size - offset)) for offset, length in ranges if offset < self.size)
        for (offset, _), view in zip(inside, self._inner.read_ranges(inside)):
            self.keep(offset, view)

    def keep(self, offset: int, view: memoryview) -> None:
        """Serve reads of this range from these bytes."""
        place = bisect_right(self._starts, offset)
        self._starts.insert(place, offset)
        self._views.insert(place, view)

    def holds(self, offset: int, length: int) -> bool:
        """Return whether a range was read, as far as the file reaches."""
        return self._kept(offset, min(length, self.size - offset)) is not None

    def _view(self, offset: int, length: int) -> memoryview:
        view = self._kept(offset, length)
        return self._inner.view(offset, length) if view is None else view

    def _kept(self, offset: int, length: int) -> memoryview | None:
        place = bisect_right(self._starts, offset) - 1
        if place >= 0 and offset + length <= self._starts[place] + len(self._views[place]):
            start = offset - self._starts[place]
            return self._views[place][start : start + length]
        return None


def parse_header(source: Source, start: int, header: bytes, end: int, flags: frozenset[str]) -> Block | None:
    """Parse a copy of a block's header; None if the block cannot begin at `start`."""
    parse, copied = KINDS.get(header[:4]), Prefetched(source)
    copied.keep(start, memoryview(header))
    block = parse(_At(copied, start, min(end, start + len(header)), Findings(), "")) if parse else None
    if block is None or block.data != start + len(header) or block.end > end:
        return None
    flag = FLAG_OF[block.kind]
    return None if flag and flag not in flags else block


def _check_spare(source: Source, block: Block, findings: Findings, where: str) -> None:
    """Warn about unused bits and padding of a block that are not zero."""
    bits = block.elements * BITS.get(block.kind, 0) % 8
    if bits and source.read(block.end - 1, 1)[0] >> bits:
        findings.warn("P3", where, f"unused bits of an {block.kind} block are set", offset=block.end - 1)
    if block.kind == "TCAW" and block.problem is None:
        facts = block.facts
        for start, end in ((block.start + TCAW.size, block.data), (facts["high_at"] + facts["high"], facts["full_at"])):
            at = skip_zeros(source, start, end)
            if at < end:
                findings.warn("P5", where, "the padding inside a TCAW block is not zero", offset=at)


def find_section(source: Source, magic: bytes, position: int, end: int, offsets: Iterable[int] = ()) -> int:
    """Find the section with this magic after zero padding of any length (P2); returns `position` if there is none.

    Padding that is not zero does not hide a section: the targets of `offsets` and the next multiple of 64 are tried.
    """
    pointed = [offset for offset in offsets if offset >= position]
    candidates = (skip_zeros(source, position, end), *([min(pointed)] if pointed else ()), aligned(position))
    return next((at for at in candidates if at + 4 <= end and source.read(at, 4) == magic), position)


def skip_zeros(source: Source, start: int, end: int) -> int:
    """Return the position of the first nonzero byte, or `end`; reads in small steps first."""
    step = 64
    while start < end:
        piece = source.read(start, min(step, end - start))
        if piece != _ZEROS[: len(piece)]:  # much faster than stripping, and padding may have any length
            return start + len(piece) - len(piece.lstrip(b"\0"))
        start, step = start + len(piece), min(step * 4, len(_ZEROS))
    return end
