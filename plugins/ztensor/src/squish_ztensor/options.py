"""The options of `--to ztensor:...`, checked."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from squish_core.api import ByteCodec, FormatError, MissingPluginError

_VALUES = {"encoding": ("raw", "zstd"), "digest": ("none", "sha256", "crc32c")}


@frozen
class Wanted:
    """How to write: `encoding` raw or zstd with its `level`; `digest` none, sha256 or crc32c."""

    encoding: str = "raw"
    level: str | None = None
    digest: str = "none"

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Wanted:
        """From the command line's words; FormatError for a value that is none of the known ones."""
        for key, values in _VALUES.items():
            if options.get(key, values[0]) not in values:
                raise FormatError(
                    f"the option {key!r} has no such value", expected=", ".join(values), found=repr(options[key]),
                    code="option",
                )  # fmt: skip
        wanted = cls(**options)
        if wanted.level is not None and wanted.encoding != "zstd":
            raise FormatError("the option 'level' goes with encoding=zstd", code="option")
        return wanted

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the zstd filter."""
        return {} if self.level is None else {"level": self.level}


def zstd_codec() -> tuple[ByteCodec, Any]:
    """The zstd codec and its check of a level; MissingPluginError when squish-zstd is not installed."""
    try:
        module = importlib.import_module("squish_zstd.codec")
    except ImportError as error:
        raise MissingPluginError(
            f"encoding=zstd needs squish-zstd: {error}", code="not-installed",
            hint="Run `pip install 'squish-ztensor[zstd]'`.",
        ) from None  # fmt: skip
    return module.Zstd(), module.level
