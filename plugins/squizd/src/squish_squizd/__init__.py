"""Declares the SQUIZD container; imports no implementation."""

from __future__ import annotations

from squish_core.api import ContainerInfo, Signature, hookimpl

FLAGS = ("ASTC", "TCA_TBE", "INT4", "SPARSE", "EAGLE", "INT2", "ANE_COREML")
"""Flags from bit 0 of the header's word on."""


@hookimpl
def squish_containers() -> list[ContainerInfo]:
    """Return the container of this plugin."""
    return [
        ContainerInfo(
            id="squizd",
            title="SQUIZD 1.0",
            factory="squish_squizd.container:Squizd",
            suffixes=(".squizd",),
            signatures=(Signature(b"SQZD"),),
            can_write=True,
            features={
                "flags": FLAGS,
                "dtype": ("f32", "f16", "bf16"),
            },
            bits={"flags": {name: 1 << bit for bit, name in enumerate(FLAGS)}},
            options={
                "sparsity": "share of tiles to zero in FFN matrices, 0 to 1 (none by default)",
                "block_size": "side of a tile, 64 by default",
                "arch": "architecture in the header: a name (llama, qwen, ...) or a number",
                "draft": "path of a model that becomes the draft head",
                "coreml": "path of an .mlpackage folder that becomes the CoreML appendix",
            },
            aliases={
                "int4": "squizd.int4",
                "int2": "squizd.int2",
                "f32": "dense:dtype=f32",
                "f16": "dense:dtype=f16",
                "bf16": "dense:dtype=bf16",
            },
            codecs=("dense", "squizd.int4", "squizd.int2", "tca_tbe", "masked", "reshaped", "astc", "ane.mlpackage"),
        )
    ]
