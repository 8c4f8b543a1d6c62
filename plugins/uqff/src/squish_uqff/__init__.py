"""Declares UQFF, a refinement of safetensors, and its codecs; imports no implementation."""

from __future__ import annotations

from squish_core.api import CodecInfo, ContainerInfo, hookimpl


@hookimpl
def squish_containers() -> list[ContainerInfo]:
    """The containers of this plugin."""
    return [
        ContainerInfo(
            id="uqff",
            title="UQFF 0.x and 1.x, the quantised models of mistral.rs",
            factory="squish_uqff.container:Uqff",
            suffixes=(".uqff",),
            refines="safetensors",
            codecs=("dense", "affine", "hqq", "float8", "mx", "uqff.f8q8"),
        )
    ]


@hookimpl
def squish_codecs() -> list[CodecInfo]:
    """The codecs of this plugin; `float8` and `mx` know nothing of UQFF."""
    return [
        CodecInfo(id="hqq", title="half-quadratic quantisation", factory="squish_uqff.hqq:Hqq"),
        CodecInfo(id="float8", title="float8 with one scale", factory="squish_uqff.float8:Float8"),
        CodecInfo(id="mx", title="microscaling: float4 with a power-of-two scale", factory="squish_uqff.mx:Mx"),
        CodecInfo(id="uqff.f8q8", title="int8 with a float8 scale for 32 values", factory="squish_uqff.f8q8:F8Q8"),
    ]
