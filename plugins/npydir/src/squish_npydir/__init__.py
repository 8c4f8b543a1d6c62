"""Declares Squish's npy directories and the codec that only they use; imports no implementation."""

from __future__ import annotations

from squish_core.api import CodecInfo, ContainerInfo, Signature, hookimpl


@hookimpl
def squish_containers() -> list[ContainerInfo]:
    """The container of this plugin."""
    return [
        ContainerInfo(
            id="npydir",
            title="Squish npy directory with its cache tiers",
            factory="squish_npydir.container:NpyDir",
            signatures=(
                Signature(b"manifest.json", where="member"),
                Signature(b"_compress_progress.json", where="member"),
                Signature(b".squish_4bit_ready", where="member"),
                Signature(b".squish_ready", where="member"),
                Signature(b"awq_index.json", where="member"),
            ),
            codecs=("affine", "palette", "lowrank", "dense", "npydir.sqint2"),
        )
    ]


@hookimpl
def squish_codecs() -> list[CodecInfo]:
    """The codec of this plugin."""
    return [
        CodecInfo(id="npydir.sqint2", title="Squish's rotated two-bit weights", factory="squish_npydir.sqint2:Sqint2")
    ]
