"""Declares the zstd byte codec; imports neither it nor zstandard."""

from __future__ import annotations

from squish_core.api import CodecInfo, hookimpl


@hookimpl
def squish_codecs() -> list[CodecInfo]:
    """Return the codecs of this plugin."""
    return [
        CodecInfo(
            id="zstd",
            title="Zstandard",
            factory="squish_zstd.codec:Zstd",
            kind="bytes",
            lossless=True,
            signature=b"\x28\xb5\x2f\xfd",
            skippable=tuple(bytes((0x50 + number,)) + b"\x2a\x4d\x18" for number in range(16)),
            suffix=".zst",
        )
    ]
