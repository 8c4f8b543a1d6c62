"""The options of `--to ztensor:...`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from attrs import frozen

from squish_core.api import ByteCodec, ErrorCode, FormatError, MissingPluginError, install_command

from .v2 import footer

ALIGNMENT, MOST = 64, 1 << 20
"""Alignment of blobs in 1.x, and the largest that can be asked for."""
_VALUES = {
    "wire": ("1.1", "2"), "encoding": ("raw", "zstd"), "digest": ("none", "sha256", "crc32c", "xxh3"),
    "flavor": ("canonical", "aligned", "literal", "compatible"),
}  # fmt: skip


@frozen
class WriteOptions:
    """How to write a file.

    `wire`: 1.1 or 2. `encoding`: raw or zstd, with its `level`. `digest`: none, sha256, crc32c (1.1) or xxh3 (2, the
    default there). `flavor` of 1.1: literal (the default) or compatible (readable by the released 1.x packages); of 2:
    canonical (the default without zstd) or aligned. `alignment`: that of blobs, in bytes, if not the usual one.
    """

    wire: str = "1.1"
    encoding: str = "raw"
    level: str | None = None
    digest: str | None = None
    flavor: str | None = None
    alignment: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> WriteOptions:
        """Parse the options; FormatError for an invalid value or combination."""
        return cls._checked(tuple(options.items()))

    @classmethod
    @lru_cache(16)
    def _checked(cls, items: tuple[tuple[str, str], ...]) -> WriteOptions:
        options = dict(items)
        for key, values in _VALUES.items():
            if options.get(key, values[0]) not in values:
                raise FormatError(
                    f"invalid value of the zTensor option {key}",
                    expected=", ".join(values),
                    found=repr(options[key]),
                    code=ErrorCode.OPTION,
                )
        result = cls(**options)
        is_v2 = result.wire == "2"
        rules = [
            (result.level is None or result.encoding == "zstd", "the option level requires encoding=zstd"),
            (is_v2 or result.digest != "xxh3", "digest=xxh3 requires wire=2"),
            (not is_v2 or result.digest != "crc32c", "digest=crc32c requires wire=1.1"),
            (result.flavor not in ("canonical", "aligned") or is_v2, f"flavor={result.flavor} requires wire=2"),
            (result.flavor not in ("literal", "compatible") or not is_v2,
             f"flavor={result.flavor} requires wire=1.1"),
            (result.flavor != "canonical" or result.encoding == "raw",
             "flavor=canonical does not allow compression; use flavor=aligned"),
            (result.flavor != "canonical" or result.digests == "xxh3", "flavor=canonical requires digest=xxh3"),
            (_is_alignment(result.alignment, footer.ALIGNMENT if is_v2 else ALIGNMENT),
             f"alignment is a power of two from {footer.ALIGNMENT if is_v2 else ALIGNMENT} to {MOST}"),
            (not result.canonical or result.alignment in (None, str(footer.CANONICAL)),
             f"flavor=canonical aligns to {footer.CANONICAL} bytes; use flavor=aligned"),
        ]  # fmt: skip
        for allowed, why in rules:
            if not allowed:
                raise FormatError(why, code=ErrorCode.OPTION)
        return result

    @property
    def compatible(self) -> bool:
        """Whether 1.x is written as version 1.2, which the released packages read."""
        return self.flavor == "compatible"

    @property
    def canonical(self) -> bool:
        """Whether equal content produces equal files (v2)."""
        return self.flavor != "aligned" and self.encoding == "raw" and self.digests == "xxh3"

    @property
    def step(self) -> int:
        """Alignment of blobs, in bytes."""
        usual = ALIGNMENT if self.wire != "2" else footer.CANONICAL if self.canonical else footer.ALIGNMENT
        return usual if self.alignment is None else int(self.alignment)

    @property
    def digests(self) -> str:
        """Kind of digest of each part, or "none"."""
        return self.digest or ("xxh3" if self.wire == "2" else "none")

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the zstd filter."""
        return {} if self.level is None else {"level": self.level}


def _is_alignment(text: str | None, least: int) -> bool:
    """Return whether an alignment is one that readers accept."""
    if text is None:
        return True
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    return least <= value <= MOST and not value & (value - 1)


def zstd_codec() -> tuple[ByteCodec, Any]:
    """Return the zstd codec and its check of a level; MissingPluginError if squish-zstd is not installed."""
    try:
        from squish_zstd.api import Zstd, compression_level
    except ImportError as error:
        raise MissingPluginError(
            f"encoding=zstd requires the package squish-zstd: {error}",
            code=ErrorCode.NOT_INSTALLED,
            hint=f"Run `{install_command('squish-zstd')}`.",
        ) from None
    return Zstd(), compression_level
