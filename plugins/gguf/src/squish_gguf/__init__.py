"""Declares the GGUF container; imports no implementation."""

from __future__ import annotations

from squish_core.api import ContainerInfo, Signature, hookimpl

from .types import BLOCK_CODES, DENSE_CODES


@hookimpl
def squish_containers() -> list[ContainerInfo]:
    """The containers of this plugin."""
    blocks = {codec.removeprefix("ggml."): codec for codec in BLOCK_CODES}
    dense = {dtype: f"dense:dtype={dtype}" for dtype in DENSE_CODES}
    return [
        ContainerInfo(
            id="gguf",
            title="GGUF v2 and v3",
            factory="squish_gguf.container:Gguf",
            suffixes=(".gguf",),
            signatures=(Signature(b"GGUF"),),
            can_write=True,
            options={"keep": "no leaves out the files of a checkpoint that GGUF has no keys for (squish.hf.*)"},
            features={"dtype": (*dense, *blocks)},
            aliases={**{name: dense[name] for name in ("f32", "f16", "bf16")}, **blocks},
            codecs=("dense", *BLOCK_CODES),
        )
    ]
