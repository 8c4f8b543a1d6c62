"""Declares the GGUF container; imports no implementation."""

from __future__ import annotations

from squish_core.api import ContainerInfo, Signature, hookimpl

from .tables import BLOCK_IDS, DENSE_IDS, MAGIC

READABLE = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q8_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q8_k")


@hookimpl
def squish_containers() -> list[ContainerInfo]:
    """The containers of this plugin."""
    return [
        ContainerInfo(
            id="gguf",
            title="GGUF v2 and v3",
            factory="squish_gguf.container:Gguf",
            suffixes=(".gguf",),
            signatures=(Signature(MAGIC),),
            can_write=True,
            features={"dtype": (*DENSE_IDS, *BLOCK_IDS)},
            codecs=("dense", *(f"ggml.{name}" for name in READABLE)),
        )
    ]
