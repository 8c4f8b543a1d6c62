"""Declares the GGUF container; imports no implementation."""

from __future__ import annotations

from squish_core.api import AllocatorInfo, ContainerInfo, Signature, hookimpl

from .presets import NAMED
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


@hookimpl
def squish_allocators() -> list[AllocatorInfo]:
    """llama.cpp's presets: those whose names are no codec's, and one that takes the name of any."""
    titles = {name: f"llama.cpp's preset {name.upper()}" for name in NAMED}
    titles["llama-quantize"] = "any preset of llama.cpp's quantizer, type=q6_k"
    return [
        AllocatorInfo(id=name, title=title, factory="squish_gguf.quantize:LlamaQuantize")
        for name, title in titles.items()
    ]
