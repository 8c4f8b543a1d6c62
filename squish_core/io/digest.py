"""Digests of stored bytes as `<algorithm>:<hex>` strings. An unknown algorithm is never reported as valid."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from attrs import frozen

from squish_core.codes import ErrorCode
from squish_core.errors import MissingPluginError


def _sha256() -> Any:
    from hashlib import sha256  # loads OpenSSL, which takes longer than opening a file

    return sha256()


def _crc32c() -> Any:
    from squish_core.io.crc32c import crc32c

    return crc32c()


def _xxh3() -> Any:
    try:
        import xxhash
    except ImportError:
        from squish_core import environment

        raise MissingPluginError(
            "an xxh3 digest needs the package xxhash", code=ErrorCode.NOT_INSTALLED,
            hint=f"Run `{environment.command(['xxhash'])}`.",
        ) from None  # fmt: skip
    return xxhash.xxh3_64()


ALGORITHMS: dict[str, tuple[Callable[[], Any], str]] = {
    "sha256": (_sha256, ""), "crc32c": (_crc32c, "0x"), "xxh3": (_xxh3, ""),
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
        `matches`, `differs` with the true digest, or `unverified` for an unknown algorithm.

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
    expected, found = (_digits(label.partition(":")[2]) for label in (text, str(digest)))
    return Verdict("ok" if found == expected else "wrong", expected, found)


def is_supported(text: str) -> bool:
    """Whether the algorithm of a digest string is supported."""
    return text.partition(":")[0].lower() in ALGORITHMS


def _digits(value: str) -> str:
    return value.lower().removeprefix("0x")
