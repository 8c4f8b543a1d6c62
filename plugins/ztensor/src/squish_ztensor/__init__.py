"""Declares the zTensor container; imports no implementation."""

from __future__ import annotations

from squish_core.api import ContainerInfo, Signature, hookimpl

from .names import BLOCKS, DTYPES


@hookimpl
def squish_containers() -> list[ContainerInfo]:
    """The containers of this plugin."""
    return [
        ContainerInfo(
            id="ztensor",
            title="zTensor 1.1",
            factory="squish_ztensor.container:Ztensor",
            suffixes=(".zt",),
            signatures=(
                Signature(b"ZTEN1000"),
                Signature(b"ZTEN1000", where="tail", offset=-8),
                # Recognised so that they are refused by name.
                Signature(b"ZTEN0001"),
                Signature(b"\x89ZT2\r\n\x1a\n"),
            ),
            can_write=True,
            features={"dtype": (*DTYPES, *(f"gguf.{name}" for name in BLOCKS)), "encoding": ("raw", "zstd")},
            options={
                "encoding": "raw (default) or zstd",
                "level": "zstd level, 3 by default",
                "digest": "none (default), sha256 or crc32c",
            },
            codecs=("dense", "zstd"),
        )
    ]
