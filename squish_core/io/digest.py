"""Digests of stored bytes as `<algorithm>:<hex>` strings. An unknown algorithm is never reported as valid.

CRC-32C (Castagnoli, RFC 3720) is by google-crc32c if it is installed, else in NumPy, which takes many words at a time,
since CRC is linear over GF(2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from attrs import frozen

from squish_core.codes import ErrorCode
from squish_core.errors import MissingPluginError

if TYPE_CHECKING:
    import numpy as np


_POLYNOMIAL = 0x82F63B78
_WIDTHS = (1 << 14, 1 << 10, 1 << 7)
"""Words per row. All rows are folded into one, which is then split into rows of the next width."""


def crc32c() -> Any:
    """Return a hasher with hashlib's interface; google-crc32c's compiled code is about ten times as fast as NumPy."""
    try:
        import google_crc32c
    except ImportError:
        return Crc32c()
    return CompiledCrc32c(google_crc32c.extend) if google_crc32c.implementation == "c" else Crc32c()


class CompiledCrc32c:
    """A hasher over google-crc32c, whose own hasher accepts no writable buffers."""

    def __init__(self, extend: Callable[[int, Any], int]) -> None:
        self._extend, self._checksum = extend, 0

    def update(self, data: Any) -> None:
        """Add bytes."""
        import numpy as np

        self._checksum = self._extend(self._checksum, np.frombuffer(data, np.uint8))

    def hexdigest(self) -> str:
        """Return the checksum so far."""
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
        """Return the checksum so far."""
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
    """Return the state after four zero bytes."""
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


def _sha256() -> Any:
    from hashlib import sha256  # loads OpenSSL, which takes longer than opening a file

    return sha256()


def _xxh3() -> Any:
    try:
        import xxhash
    except ImportError:
        import shlex

        from squish_core import environment

        raise MissingPluginError(
            "an xxh3 digest needs the package xxhash",
            code=ErrorCode.NOT_INSTALLED,
            hint=f"Run `{' && '.join(map(shlex.join, environment.commands(['xxhash'])))}`.",
        ) from None
    return xxhash.xxh3_64()


ALGORITHMS: dict[str, tuple[Callable[[], Any], str]] = {
    "sha256": (_sha256, ""), "crc32c": (crc32c, "0x"), "xxh3": (_xxh3, ""),
}  # fmt: skip
"""Algorithm -> hasher and prefix of its hex digits."""


@frozen
class Verdict:
    """`state` is "ok", "wrong" or "unverified" (an unknown algorithm)."""

    state: str
    expected: str = ""
    found: str = ""


class Digest:
    """An incremental digest: `update` with buffers, then `str` for `sha256:8f4a...` or `crc32c:0x1A2B3C4D`."""

    def __init__(self, algorithm: str) -> None:
        self.algorithm = algorithm
        make, self._prefix = ALGORITHMS[algorithm]
        self._hasher = make()
        self.update = self._hasher.update

    def __str__(self) -> str:
        digits = self._hasher.hexdigest()
        return f"{self.algorithm}:{self._prefix}{digits.upper() if self._prefix else digits}"


def check_digest(text: str, chunks: Iterable[Any]) -> Verdict:
    """Compare a digest string with the bytes, ignoring the case of hex digits and a leading 0x.

    Parameters
    ----------
    text
        `ALGORITHM:HEX`, such as `sha256:...`, `crc32c:...` or `xxh3:...`.
    chunks
        The bytes in order, as any objects with the buffer protocol.

    Returns
    -------
    Verdict
        State "ok"; "wrong", with both digests; or "unverified" for an unknown algorithm.

    Examples
    --------
    >>> check_digest("crc32c:e3069283", [b"1234", b"56789"]).state
    'ok'
    """
    if not is_supported(text):
        return Verdict("unverified")
    digest = Digest(text.partition(":")[0].lower())
    for chunk in chunks:
        digest.update(chunk)
    return compare_digests(text, digest)


def compare_digests(text: str, digest: Digest) -> Verdict:
    """Compare a digest string with a computed digest of the same algorithm."""
    expected, found = (label.partition(":")[2].lower().removeprefix("0x") for label in (text, str(digest)))
    return Verdict("ok" if found == expected else "wrong", expected, found)


def is_supported(text: str) -> bool:
    """Return whether the algorithm of a digest string is supported."""
    return text.partition(":")[0].lower() in ALGORITHMS
