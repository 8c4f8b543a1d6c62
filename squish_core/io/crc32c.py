"""CRC-32C (Castagnoli, RFC 3720): by google-crc32c if it is installed, else in NumPy.

NumPy takes many words at a time, since CRC is linear over GF(2).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

_POLYNOMIAL = 0x82F63B78
_WIDTHS = (1 << 14, 1 << 10, 1 << 7)
"""Words per row. All rows are folded into one, which is then split into rows of the next width."""


def crc32c() -> Any:
    """A hasher with hashlib's interface; google-crc32c's compiled code is about ten times as fast as NumPy."""
    try:
        import google_crc32c
    except ImportError:
        return Crc32c()
    return CompiledCrc32c(google_crc32c.extend) if google_crc32c.implementation == "c" else Crc32c()


class CompiledCrc32c:
    """A hasher over google-crc32c, whose own one takes no writable buffers."""

    def __init__(self, extend: Callable[[int, Any], int]) -> None:
        self._extend, self._checksum = extend, 0

    def update(self, data: Any) -> None:
        """Add bytes."""
        import numpy as np

        self._checksum = self._extend(self._checksum, np.frombuffer(data, np.uint8))

    def hexdigest(self) -> str:
        """The checksum so far."""
        return f"{self._checksum:08x}"


class Crc32c:
    """A hasher with hashlib's interface: `update`, then `hexdigest` (8 hex digits)."""

    def __init__(self) -> None:
        self._state = 0xFFFFFFFF

    def update(self, data: Any) -> None:
        """Add bytes."""
        import numpy as np

        rest = np.frombuffer(data, np.uint8)
        for position, width in enumerate(_WIDTHS):
            end = rest.size - rest.size % (4 * width)
            if end:
                words = rest[:end].view("<u4")
                for inner in _WIDTHS[position:]:
                    words = _fold(words, inner, self._state)
                    self._state = 0
                self._update_bytes(words.astype("<u4").tobytes())
            rest = rest[end:]
        self._update_bytes(rest.tobytes())

    def _update_bytes(self, data: bytes) -> None:
        """Add bytes one at a time."""
        state = self._state
        for byte in data:
            state = _BYTES[(state ^ byte) & 0xFF] ^ state >> 8
        self._state = state

    def hexdigest(self) -> str:
        """The checksum so far."""
        return f"{self._state ^ 0xFFFFFFFF:08x}"


def _fold(words: np.ndarray, width: int, state: int) -> np.ndarray:
    """Fold all words into one row of `width` words with the same CRC, beginning from `state`."""
    import numpy as np

    rows = words.reshape(-1, width)
    low, high = _tables(width)
    folded = rows[0].astype(np.uint32)
    folded[0] ^= np.uint32(state)
    for row in rows[1:]:
        folded = low[folded & 0xFFFF] ^ high[folded >> 16]
        folded ^= row
    return folded


def _advance(state: int) -> int:
    """The state after four zero bytes."""
    for _ in range(4):
        state = _BYTES[state & 0xFF] ^ state >> 8
    return state


@cache
def _tables(words: int) -> tuple[np.ndarray, np.ndarray]:
    """Tables for the low and high half of a state: its value after `words` zero words (a power of two)."""
    columns = [_advance(1 << bit) for bit in range(32)]
    while words > 1:
        columns = [_apply(columns, column) for column in columns]
        words //= 2
    return _spread(columns[:16]), _spread(columns[16:])


def _apply(columns: list[int], state: int) -> int:
    result = 0
    for bit, column in enumerate(columns):
        if state >> bit & 1:
            result ^= column
    return result


def _spread(columns: list[int]) -> np.ndarray:
    """Table of the XOR of every subset of 16 columns."""
    import numpy as np

    table = np.zeros(1 << 16, np.uint32)
    for bit, column in enumerate(columns):
        table[1 << bit : 2 << bit] = table[: 1 << bit] ^ np.uint32(column)
    return table


def _byte_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_BYTES = _byte_table()
