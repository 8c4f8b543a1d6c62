"""The options of `--to ztensor:...`, checked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from attrs import frozen

from squish_core.api import ByteCodec, ErrorCode, FormatError, MissingPluginError, install_command

_VALUES = {
    "wire": ("1.1", "2"), "encoding": ("raw", "zstd"), "digest": ("none", "sha256", "crc32c", "xxh3"),
    "flavour": ("canonical", "aligned", "literal", "compatible"),
}  # fmt: skip


@frozen
class WriteOptions:
    """How to write: `wire` 1.1 or 2; `encoding` raw or zstd with its `level`; `digest` none, sha256, and crc32c (1.1)
    or xxh3 (2, the default there); `flavour` of 1.1: literal (the default) or compatible (as the released 1.x packages
    read it), of 2: canonical (the default without zstd) or aligned."""

    wire: str = "1.1"
    encoding: str = "raw"
    level: str | None = None
    digest: str | None = None
    flavour: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> WriteOptions:
        """From the command line's words; FormatError for a value that is none of the known ones."""
        return cls._checked(tuple(options.items()))

    @classmethod
    @lru_cache(16)
    def _checked(cls, items: tuple[tuple[str, str], ...]) -> WriteOptions:
        options = dict(items)
        for key, values in _VALUES.items():
            if options.get(key, values[0]) not in values:
                raise FormatError(
                    f"the option {key!r} has no such value", expected=", ".join(values), found=repr(options[key]),
                    code=ErrorCode.OPTION,
                )  # fmt: skip
        result = cls(**options)
        second = result.wire == "2"
        rules = [
            (result.level is None or result.encoding == "zstd", "the option 'level' goes with encoding=zstd"),
            (second or result.digest != "xxh3", "xxh3 digests go with wire=2"),
            (not second or result.digest != "crc32c", "crc32c digests go with wire=1.1"),
            (result.flavour not in ("canonical", "aligned") or second, f"flavour={result.flavour} goes with wire=2"),
            (result.flavour not in ("literal", "compatible") or not second,
             f"flavour={result.flavour} goes with wire=1.1"),
            (result.flavour != "canonical" or result.encoding == "raw",
             "a canonical file is raw; ask for flavour=aligned"),
            (result.flavour != "canonical" or result.digests == "xxh3", "a canonical file has xxh3 digests"),
        ]  # fmt: skip
        for holds, why in rules:
            if not holds:
                raise FormatError(why, code=ErrorCode.OPTION)
        return result

    @property
    def compatible(self) -> bool:
        """Whether 1.1 is written in the words of 1.2 that the released packages know."""
        return self.flavour == "compatible"

    @property
    def canonical(self) -> bool:
        """Whether two files of the same content are the same bytes (v2)."""
        return self.flavour != "aligned" and self.encoding == "raw" and self.digests == "xxh3"

    @property
    def alignment(self) -> int:
        """Of blobs in v2."""
        return 65536 if self.canonical else 4096

    @property
    def digests(self) -> str:
        """Kind of digest that each part gets, or "none"."""
        return self.digest or ("xxh3" if self.wire == "2" else "none")

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the zstd filter."""
        return {} if self.level is None else {"level": self.level}


def zstd_codec() -> tuple[ByteCodec, Any]:
    """The zstd codec and its check of a level; MissingPluginError when squish-zstd is not installed."""
    try:
        from squish_zstd.api import Zstd, compression_level
    except ImportError as error:
        raise MissingPluginError(
            f"encoding=zstd needs squish-zstd: {error}", code=ErrorCode.NOT_INSTALLED,
            hint=f"Run `{install_command('squish-zstd')}`.",
        ) from None  # fmt: skip
    return Zstd(), compression_level
