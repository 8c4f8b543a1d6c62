"""Declares UQFF, a refinement of safetensors, and its codecs; imports no implementation."""

from __future__ import annotations

from squish_core.api import CodecInfo, ContainerInfo, hookimpl

AFQ = "affine:group_size=64,word=u32,offset=bias,bits="
ALIASES = {
    **{f"afq{bits}": f"{AFQ}{bits}" for bits in (2, 3, 4, 6, 8)},
    **{f"hqq{bits}": f"hqq:bits={bits}" for bits in (1, 2, 3, 4, 8)},
    **{f"q{bits}k": f"ggml.q{bits}_k" for bits in (2, 3, 4, 5, 6, 8)},
    **{f"q{kind}": f"ggml.q{kind}" for kind in ("4_0", "4_1", "5_0", "5_1", "8_0", "8_1")},
    "fp8": "float8",
    "f8q8": "uqff.f8q8",
    "mxfp4": "mx:scaling=saturating",
}
"""mistral.rs type names -> encodings."""
BITS = {
    "2": ("q2k", "afq2"), "3": ("q3k", "afq3"), "4": ("q4k", "afq4"), "5": ("q5k",), "6": ("q6k", "afq6"),
    "8": ("q8_0", "afq8"),
}  # fmt: skip
"""Number of bits, as an option of mistral.rs -> its types: K quants, or AFQ on Metal."""
BLOCKS = sorted({codec for codec in ALIASES.values() if codec.startswith("ggml.")} | {"ggml.q8_k"})


@hookimpl
def squish_containers() -> list[ContainerInfo]:
    """Return the containers of this plugin."""
    return [
        ContainerInfo(
            id="uqff",
            title="UQFF 0.x and 1.x, the quantized models of mistral.rs",
            factory="squish_uqff.container:Uqff",
            suffixes=(".uqff",),
            refines="safetensors",
            can_write=True,
            options={
                "name": "stem of the shards: name-0.uqff, name-1.uqff, ...",
                "version": "1.2.0; 0.1.3, the blobs of mistral.rs 0.6; or 0.1.0, the published layout (1.2.0)",
                "max_shard_size": "maximum tensor bytes per shard (10GiB)",
            },
            reading={
                "arch": "architecture that names the layers of 0.x, instead of the config's model_type",
                "allow_newer_minor": "true reads a minor version after 1.2 as 1.2",
            },
            features={"isq": (*ALIASES, *BITS)},
            aliases=ALIASES,
            codecs=("dense", "affine", "hqq", "float8", "mx", "uqff.f8q8", *BLOCKS),
        )
    ]


@hookimpl
def squish_codecs() -> list[CodecInfo]:
    """Return the codecs of this plugin."""
    return [
        CodecInfo(
            id="uqff.f8q8", title="int8 with a float8 scale per 32 values", factory="squish_uqff.codecs.f8q8:F8Q8"
        ),
    ]
