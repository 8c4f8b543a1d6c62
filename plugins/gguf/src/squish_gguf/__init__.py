"""Declares the GGUF container; imports no implementation."""

from __future__ import annotations

from squish_core.api import AllocatorInfo, ContainerInfo, Signature, hookimpl

from .types import BLOCK_CODES, DENSE_CODES, PRESET_NAMES


@hookimpl
def squish_containers() -> list[ContainerInfo]:
    """Return the containers of this plugin."""
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
            options={
                "keep": "yes (default); no drops checkpoint files without a GGUF key (squish.hf.*)",
                "max_shard_size": "write NAME-00001-of-00004.gguf ..., each with at most this many tensor bytes (2GB)",
                "max_shard_tensors": "write such files with at most this many tensors each",
                "empty_first_shard": "yes: the first file of such a set has only the metadata",
                "alignment": "alignment of the tensors, a power of two (32)",
            },
            features={"dtype": (*dense, *blocks)},
            aliases={**{name: dense[name] for name in ("f32", "f16", "bf16")}, **blocks},
            codecs=("dense", *BLOCK_CODES, "ggml.big_endian"),
        )
    ]


@hookimpl
def squish_allocators() -> list[AllocatorInfo]:
    """Return llama.cpp's presets: those that share no name with a codec, and one that takes any preset by name."""
    titles = {name: f"llama.cpp's preset {name.upper()}" for name in PRESET_NAMES}
    titles["llama-quantize"] = "any preset of llama.cpp's quantizer, type=q6_k"
    return [
        AllocatorInfo(id=name, title=title, factory="squish_gguf.quantize:LlamaQuantize")
        for name, title in titles.items()
    ]
