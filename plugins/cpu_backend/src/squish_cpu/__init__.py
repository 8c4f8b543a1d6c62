"""Declares the compiled CPU backend; does not load the library."""

from __future__ import annotations

from squish_core.api import BackendInfo, EncoderInfo, hookimpl

ENCODED = (
    "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "iq4_xs", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k",
    "mxfp4", "nvfp4",
)  # fmt: skip
AMBIGUOUS = ("mxfp4", "nvfp4")
"""Block types whose names are short names of other codecs, too."""


@hookimpl
def squish_backends() -> list[BackendInfo]:
    """Return the backend of this plugin."""
    return [
        BackendInfo(
            id="cpu", title="compiled kernels on the CPU", factory="squish_cpu.backend:CpuBackend", preference=10
        )
    ]


@hookimpl
def squish_encoders() -> list[EncoderInfo]:
    """Return the encoders of this plugin."""
    return [
        EncoderInfo(
            id=f"ggml.{name}",
            title=f"GGML {name.upper()} blocks, compiled",
            factory="squish_cpu.encoders:GgmlEncoder",
            aliases={} if name in AMBIGUOUS else {name: f"ggml.{name}"},
        )
        for name in ENCODED
    ] + [
        EncoderInfo(id=name, title=f"{name}, compiled", factory=f"squish_cpu.{encoder}")
        for name, encoder in (
            ("dense", "encoders:DenseEncoder"),
            ("affine", "code_encoders:AffineEncoder"),
            ("squizd.int4", "code_encoders:SquizdInt4Encoder"),
            ("squizd.int2", "code_encoders:SquizdInt2Encoder"),
            ("mx", "code_encoders:MxEncoder"),
            ("ggml.scaled_nvfp4", "code_encoders:ScaledNvfp4Encoder"),
            ("tca_tbe", "code_encoders:TcaTbeEncoder"),
        )
    ]
