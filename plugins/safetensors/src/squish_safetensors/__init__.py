"""Declares the safetensors container; imports no implementation."""

from __future__ import annotations

from squish_core.api import ContainerInfo, Signature, hookimpl

DTYPES = (
    "bool", "u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f16", "bf16", "f32", "f64", "complex64",
    "f8_e4m3", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz", "f8_e8m0", "f6_e2m3", "f6_e3m2", "f4_e2m1",
)  # fmt: skip


@hookimpl
def squish_containers() -> list[ContainerInfo]:
    """Return the containers of this plugin."""
    return [
        ContainerInfo(
            id="safetensors",
            title="safetensors, single files and sharded sets",
            factory="squish_safetensors.container:Safetensors",
            suffixes=(".safetensors", ".safetensors.index.json"),
            signatures=(
                Signature(b"{", offset=8),
                Signature(b".safetensors", where="member"),
                Signature(b".safetensors.index.json", where="member"),
                Signature(b".uqff", where="member"),
            ),
            can_write=True,
            features={"dtype": DTYPES},
            options={"max_shard_size": "write a folder of shards, each at most this large (5GB, 500MiB), and assets"},
            reading={"scales": "ignore: take codes for the values, although they have undeclared scales"},
            aliases={name: f"dense:dtype={name}" for name in ("f32", "f16", "bf16", "f64", "f8_e4m3")},
            codecs=("dense",),
        )
    ]
