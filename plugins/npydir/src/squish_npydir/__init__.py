"""Declares Squish's npy directories and their codec; imports no implementation."""

from __future__ import annotations

from typing import Any

from squish_core.api import CodecInfo, ContainerInfo, Signature, hookimpl

from .features import DIALECTS, TIER_NAMES, TIERS


@hookimpl
def squish_containers() -> list[ContainerInfo]:
    """Return the container of this plugin."""
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
            can_write=True,
            options={
                "passthrough": "f16: store dense tensors that no rule changes as float16 (default: unchanged)",
                "scales": "f16 or f32 (default): dtype of scales and biases; Squish itself reads f32",
            },
            reading={"tiers": "build: while the model loads, build the tier that the next load will use"},
            features={"dialect": tuple(DIALECTS), "tier": tuple(TIERS)},
            synonyms={"tier": TIER_NAMES},
            aliases={
                "int8": "affine:bits=8,word=i8",
                "int4": "affine:bits=4,group_size=32,offset=bias",
                "int3": "affine:bits=3,group_size=64,axis=flat,offset=zero_point,offset_dtype=f32",
                "int2": "affine:bits=2,group_size=64,offset=bias",
                "nf4": "palette:bits=4,table=nf4,group_size=32,scale_dtype=f32",
                "f16": "dense:dtype=f16",
                "f32": "dense:dtype=f32",
            },
            codecs=("affine", "palette", "lowrank", "awq", "dense", "npydir.int3", "npydir.sqint2", "panels", "zstd"),
        )
    ]


@hookimpl
def squish_codecs() -> list[CodecInfo]:
    """Return the codecs of this plugin."""
    return [
        CodecInfo(
            id="npydir.int3", title="Squish's 3-bit weights, a byte per code", factory="squish_npydir.codecs.int3:Int3"
        ),
        CodecInfo(
            id="npydir.sqint2", title="Squish's rotated 2-bit weights", factory="squish_npydir.codecs.sqint2:Sqint2"
        ),
    ]


@hookimpl
def squish_commands(app: Any) -> None:
    """`squish cache build`."""
    from .command import add_to

    add_to(app)
