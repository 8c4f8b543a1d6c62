"""Damaged copies of a file, each reproducible from the file, a seed and a number."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

EXTREMES = (0, 1, -1, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1, (1 << 31) - 1, (1 << 63) - 1)
TAIL = 64


def mutants(data: bytes, count: int, seed: int = 0, header: int | None = None) -> Iterator[bytes]:
    """Yield damaged copies; number i is `mutant(data, i, seed, header)`.

    Parameters
    ----------
    data, seed, header
        As in `mutant`.
    count
        How many.

    Yields
    ------
    bytes
        A copy.

    Examples
    --------
    >>> len(list(mutants(b"x" * 64, 5)))
    5
    """
    for number in range(count):
        yield mutant(data, number, seed, header)


def mutant(data: bytes, number: int, seed: int = 0, header: int | None = None) -> bytes:
    """Return one damaged copy: one to three changes in the header or in the last 64 bytes.

    Parameters
    ----------
    data
        The bytes of a valid file.
    number, seed
        The same numbers give the same copy.
    header
        Length of the header in bytes; by default all bytes are changed alike.

    Returns
    -------
    bytes
        The copy, which may have another length.

    Examples
    --------
    >>> mutant(b"x" * 64, 3) == mutant(b"x" * 64, 3)
    True
    """
    rng = random.Random(f"{seed}:{number}")
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        limit = min(len(out), len(out) if header is None else header)
        low, high = (max(0, len(out) - TAIL), len(out)) if rng.random() < 0.1 else (0, limit)
        if high > low:
            rng.choice(_CHANGES)(out, rng, low, high)
    return bytes(out)


def truncations(size: int, count: int = 300, header: int | None = None) -> list[int]:
    """Return lengths to cut a file to: all of those near both ends, the rest spread evenly.

    Parameters
    ----------
    size
        Length of the file in bytes.
    count
        About how many lengths.
    header
        Length of the header in bytes; most lengths are below it.

    Returns
    -------
    list of int
        Lengths in bytes below `size`, in ascending order.

    Examples
    --------
    >>> truncations(4)
    [0, 1, 2, 3]
    """
    if size <= count:
        return list(range(size))
    inner = min(size, header or size)
    ends = {*range(min(64, size)), *range(size - 32, size), *range(max(0, inner - 8), min(size, inner + 8))}
    spread = max(1, count - len(ends))
    return sorted({*ends, *(inner * i // spread for i in range(spread)), *(size * i // 32 for i in range(32))})


def _flip(out: bytearray, rng: random.Random, low: int, high: int) -> None:
    out[rng.randrange(low, high)] ^= 1 << rng.randrange(8)


def _set(out: bytearray, rng: random.Random, low: int, high: int) -> None:
    out[rng.randrange(low, high)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _integer(out: bytearray, rng: random.Random, low: int, high: int) -> None:
    """Write an extreme integer of any width and byte order, mostly aligned."""
    width = rng.choice((1, 2, 4, 8))
    at = rng.randrange(low, high)
    if rng.random() < 0.7:
        at -= at % width
    value = rng.choice(EXTREMES) % (1 << 8 * width)
    order = "little" if rng.random() < 0.9 else "big"
    out[at : at + width] = value.to_bytes(width, order)[: len(out) - at]  # type: ignore[arg-type]


def _nudge(out: bytearray, rng: random.Random, low: int, high: int) -> None:
    """Change a little-endian integer slightly, to test bounds checks."""
    width = rng.choice((2, 4, 8))
    at = rng.randrange(low, high)
    at -= at % width
    field = out[at : at + width]
    value = int.from_bytes(field, "little") + rng.choice((-8, -2, -1, 1, 2, 8))
    out[at : at + width] = (value % (1 << 8 * len(field))).to_bytes(len(field), "little")


def _digit(out: bytearray, rng: random.Random, low: int, high: int) -> None:
    """Change a digit, quote or bracket of a text header, which leaves JSON valid more often than a random byte."""
    places = [at for at in range(low, high) if out[at] in b'0123456789"[]{},:']
    if places:
        out[rng.choice(places)] = rng.choice(b'0123456789-"[]{},:')


def _insert(out: bytearray, rng: random.Random, low: int, high: int) -> None:
    at = rng.randrange(low, high)
    out[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8, 32)))


def _delete(out: bytearray, rng: random.Random, low: int, high: int) -> None:
    at = rng.randrange(low, high)
    del out[at : at + rng.choice((1, 2, 4, 8, 32))]


def _truncate(out: bytearray, rng: random.Random, low: int, high: int) -> None:
    del out[rng.randrange(low, high) :]


def _repeat(out: bytearray, rng: random.Random, low: int, high: int) -> None:
    """Duplicate a slice, such as a record or a key."""
    at = rng.randrange(low, high)
    piece = out[at : min(high, at + rng.choice((4, 8, 16, 64)))]
    out[at:at] = piece


def _move(out: bytearray, rng: random.Random, low: int, high: int) -> None:
    """Copy a slice over another one, such as the offsets of a record."""
    length = rng.choice((1, 2, 4, 8))
    source, target = rng.randrange(low, high), rng.randrange(low, high)
    piece = out[source : source + length]
    out[target : target + len(piece)] = piece


_CHANGES: tuple[Callable[[bytearray, random.Random, int, int], None], ...] = (
    _flip, _flip, _set, _set, _integer, _integer, _nudge, _digit, _insert, _delete, _truncate, _repeat, _move,
)  # fmt: skip
