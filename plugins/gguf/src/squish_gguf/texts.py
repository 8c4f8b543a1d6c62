"""Arrays of texts: each is its length, a u64, and UTF-8. Vocabularies have hundreds of thousands, so texts without
zeros are located, decoded and encoded as one array."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from .types import SCALARS

if TYPE_CHECKING:
    import numpy as np

_U64, _ZEROS = SCALARS["u64"], "\0" * 8


def text_starts(raw: bytes, count: int) -> array[int] | None:
    """Return the start of each text and the end of the last one; None if texts contain zeros.

    Starts are found where the zeros of a length end, and then checked.
    """
    import numpy as np

    if not count:
        return None
    zero = np.frombuffer(raw + b"\1", np.uint8) == 0
    ends = np.flatnonzero(zero[:-1] & ~zero[1:]) + 1
    starts = ends[zero[ends - 4]] - 8  # a length such as 512 has a zero before its other byte
    if len(starts) != count or starts[0] != 0:
        return None
    bounds = np.append(starts, len(raw)).astype(np.uint64)
    is_chain = np.array_equal(bounds[:-1] + 8 + _lengths(raw)[starts], bounds[1:])
    return array("Q", bounds.tobytes()) if is_chain else None


def split(raw: bytes, starts: array[int]) -> Sequence[str | bytes] | None:
    """Return the texts at these places, decoded as one; None if they contain zeros or are not UTF-8."""
    texts = zero_ended(raw, starts)
    try:
        return None if texts is None else texts.decode().split("\0")[:-1]
    except UnicodeDecodeError:
        return None


def zero_ended(raw: bytes, starts: array[int]) -> bytes | None:
    """Return the texts at these places with a zero after each; None if texts contain zeros."""
    import numpy as np

    content, places = np.frombuffer(bytearray(raw), np.uint8), np.asarray(starts)[:-1]
    _lengths(content)[places] = 0
    kept = content != 0
    if len(content) - np.count_nonzero(kept) > 8 * len(places):
        return None
    kept[places] = True  # one zero of each length
    return content[kept][1:].tobytes() + b"\0"


def join(texts: Sequence[str | bytes]) -> bytes:
    """Return the array of these texts; bytes, which stand for texts that are not UTF-8, stay the same."""
    joined = _join_at_once(texts)
    if joined is not None:
        return joined
    encoded = [value if isinstance(value, bytes) else value.encode() for value in texts]
    return b"".join(chain.from_iterable((_U64.pack(len(raw)), raw) for raw in encoded))


def _join_at_once(texts: Sequence[Any]) -> bytes | None:
    """Invert `split`; None for texts with zeros, and for bytes."""
    try:
        data = bytearray(_ZEROS.join(["", *texts]).encode())
    except (TypeError, UnicodeEncodeError):
        return None
    return _with_lengths(data) if texts and data.count(0) == 8 * len(texts) else None


def _with_lengths(data: bytearray) -> bytes:
    """Return the array for texts with 8 zeros before each, which are replaced by its length."""
    import numpy as np

    starts = np.flatnonzero(np.frombuffer(data, np.uint8) == 0)[::8]
    _lengths(data)[starts] = np.diff(starts, append=len(data)) - 8
    return bytes(data)


def _lengths(raw: bytes | bytearray | np.ndarray) -> np.ndarray:
    """Return the 8 bytes from each place on as a number."""
    import numpy as np

    return np.ndarray(len(raw) - 7, "<u8", raw, strides=1)
