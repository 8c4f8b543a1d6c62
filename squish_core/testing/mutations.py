"""Damaged copies of a file: each is a function of the file, a seed and a number, so any of them can be made again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

EXTREMES = (0, 1, -1, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1, (1 << 31) - 1, (1 << 63) - 1)
TAIL = 64


def mutants(data: bytes, count: int, seed: int = 0, header: int | None = None) -> Iterator[bytes]:
    """`count` damaged copies; number i is `mutant(data, i, seed, header)`."""
    for number in range(count):
        yield mutant(data, number, seed, header)


def mutant(data: bytes, number: int, seed: int = 0, header: int | None = None) -> bytes:
    """One damaged copy: one to three changes in the first `header` bytes (all by default) or in the last 64."""
    chance = random.Random(f"{seed}:{number}")
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        limit = min(len(out), len(out) if header is None else header)
        low, high = (max(0, len(out) - TAIL), len(out)) if chance.random() < 0.1 else (0, limit)
        if high > low:
            chance.choice(_CHANGES)(out, chance, low, high)
    return bytes(out)


def truncations(size: int, count: int = 300, header: int | None = None) -> list[int]:
    """At most about `count` lengths shorter than `size`: every one near both ends, the rest spread evenly.

    Most lie inside the first `header` bytes.
    """
    if size <= count:
        return list(range(size))
    inner = min(size, header or size)
    ends = {*range(min(64, size)), *range(size - 32, size), *range(max(0, inner - 8), min(size, inner + 8))}
    spread = max(1, count - len(ends))
    return sorted({*ends, *(inner * i // spread for i in range(spread)), *(size * i // 32 for i in range(32))})


def _flip(out: bytearray, chance: random.Random, low: int, high: int) -> None:
    out[chance.randrange(low, high)] ^= 1 << chance.randrange(8)


def _set(out: bytearray, chance: random.Random, low: int, high: int) -> None:
    out[chance.randrange(low, high)] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))


def _integer(out: bytearray, chance: random.Random, low: int, high: int) -> None:
    """An extreme where an integer may lie: any width, mostly aligned, in both byte orders."""
    width = chance.choice((1, 2, 4, 8))
    at = chance.randrange(low, high)
    if chance.random() < 0.7:
        at -= at % width
    value = chance.choice(EXTREMES) % (1 << 8 * width)
    order = "little" if chance.random() < 0.9 else "big"
    out[at : at + width] = value.to_bytes(width, order)[: len(out) - at]  # type: ignore[arg-type]


def _nudge(out: bytearray, chance: random.Random, low: int, high: int) -> None:
    """A little-endian integer off by a little: what bounds checks get wrong."""
    width = chance.choice((2, 4, 8))
    at = chance.randrange(low, high)
    at -= at % width
    field = out[at : at + width]
    value = int.from_bytes(field, "little") + chance.choice((-8, -2, -1, 1, 2, 8))
    out[at : at + width] = (value % (1 << 8 * len(field))).to_bytes(len(field), "little")


def _digit(out: bytearray, chance: random.Random, low: int, high: int) -> None:
    """A text header's number, quote or bracket: JSON keeps parsing more often than after a random byte."""
    places = [at for at in range(low, high) if out[at] in b'0123456789"[]{},:']
    if places:
        out[chance.choice(places)] = chance.choice(b'0123456789-"[]{},:')


def _insert(out: bytearray, chance: random.Random, low: int, high: int) -> None:
    at = chance.randrange(low, high)
    out[at:at] = chance.randbytes(chance.choice((1, 2, 4, 8, 32)))


def _delete(out: bytearray, chance: random.Random, low: int, high: int) -> None:
    at = chance.randrange(low, high)
    del out[at : at + chance.choice((1, 2, 4, 8, 32))]


def _truncate(out: bytearray, chance: random.Random, low: int, high: int) -> None:
    del out[chance.randrange(low, high) :]


def _repeat(out: bytearray, chance: random.Random, low: int, high: int) -> None:
    """A slice twice: a record or a key given two times."""
    at = chance.randrange(low, high)
    piece = out[at : min(high, at + chance.choice((4, 8, 16, 64)))]
    out[at:at] = piece


def _move(out: bytearray, chance: random.Random, low: int, high: int) -> None:
    """A slice over another place: offsets of one record in another."""
    length = chance.choice((1, 2, 4, 8))
    source, target = chance.randrange(low, high), chance.randrange(low, high)
    piece = out[source : source + length]
    out[target : target + len(piece)] = piece


_CHANGES: tuple[Callable[[bytearray, random.Random, int, int], None], ...] = (
    _flip, _flip, _set, _set, _integer, _integer, _nudge, _digit, _insert, _delete, _truncate, _repeat, _move,
)  # fmt: skip
