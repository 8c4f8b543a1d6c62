"""Declares MLX checkpoints, a refinement of safetensors; imports no implementation."""

from __future__ import annotations

from squish_core.api import ContainerInfo, hookimpl


@hookimpl
def squish_containers() -> list[ContainerInfo]:
    """Return the containers of this plugin."""
    return [
        ContainerInfo(
            id="mlx",
            title="MLX checkpoints (mlx-lm): quantized layers in safetensors",
            factory="squish_mlx.container:Mlx",
            refines="safetensors",
            can_write=True,
            options={"max_shard_size": "maximum tensor bytes per shard (5GB)"},
            reading={
                "bits": "bits of codes that no config.json declares (4)",
                "group_size": "columns of a group of such codes (64)",
                "mode": "their mode: affine, mxfp4, mxfp8 or nvfp4 (affine)",
            },
            aliases={
                **{
                    f"q{bits}": f"affine:bits={bits},group_size=64,word=u32,offset=bias,scale_dtype=f16"
                    for bits in (2, 3, 4, 5, 6, 8)
                },
                "mxfp4": "mx",
                "mxfp8": "mx:element=f8_e4m3",
                "nvfp4": "mx:block_size=16,scale_dtype=f8_e4m3",
            },
            features={
                "mode": ("affine", "mxfp4", "mxfp8", "nvfp4"),
                "bits": ("1", "2", "3", "4", "5", "6", "8"),
                "group_size": ("16", "32", "64", "128"),
            },
            codecs=("dense", "affine", "mx"),
        )
    ]
