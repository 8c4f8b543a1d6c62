"""Declares the Neural Engine backend, Core ML packages, and the whole-model encoding in SQUIZD's appendix."""

from __future__ import annotations

from squish_core.api import BackendInfo, CodecInfo, ContainerInfo, Signature, hookimpl

FEATURES: dict[str, tuple[str, ...]] = {
    "compression": (
        "constexpr_affine_dequantize", "constexpr_blockwise_shift_scale", "constexpr_lut_to_dense",
        "constexpr_sparse_to_dense", "constexpr_lut_to_sparse", "constexpr_sparse_blockwise_shift_scale",
    ),
    "bits": ("1", "2", "3", "4", "6", "8"),
    "zero_points": ("false", "true"),
    "granularity": ("per_tensor", "per_channel", "per_block", "per_grouped_channel"),
    "vector": ("1", "2", "4", "5"),
    "codebooks": ("1", "2", "4", "8", "16", "32"),
}  # fmt: skip
"""Features of a query without a file: a compile-time operation and its stored tensor (`coreml.features`)."""

FACTS: dict[str, str] = {
    "kernel formats": "1 to 31: palettes 7 to 27 (f - 7 < 0x15), unity 28 to 30 (f - 0x1c < 3)",
    "bit depth": "16 dense and unity, 8 int8 and E4M3, 1 2 3 4 6 8 palettes (index)",
    "palette format": "lut{1,2,3,4,6,8}_f16, lut{1,2,3,4,6}_{i8,u8,f8_e4m3}",
    "underlying type": "i8, u8, f8_e4m3, f16",
    "palette LUT size": "2^bits * vector * 2 bytes for each codebook: 32 for 4 bits, 512 for 8",
    "type numbers": "i8=2 u8=3 f16=5 lut=8 u4=9 f8_e4m3=16 i4=23",
    "descriptor": "lut (typeno, bitdepth, lut_bytes), pal (palette_format, bitdepth, num_luts, lut_bytes), ocgs, scale,"
    " bias, weights",
    "group record": "14 words: offset, channels, ten addresses (-1), two flags (0)",
    "activation table": "43 half-precision entries with 33 knots, 86 bytes of the palettes' budget",
}
"""The tables of compiled weights that plans show (chapter 25); `squish plan FILE --backend ane:device=M1 --json`."""


@hookimpl
def squish_backends() -> list[BackendInfo]:
    """Return the backend of this plugin."""
    title = "Apple Neural Engine, through Core ML"
    return [
        BackendInfo(
            id="ane",
            title=title,
            factory="squish_ane.ane.backend:Ane",
            preference=20,
            unverified="not yet tried on a Mac",
        )
    ]


@hookimpl
def squish_containers() -> list[ContainerInfo]:
    """Return the container of Core ML packages."""
    return [
        ContainerInfo(
            id="mlpackage",
            title="Core ML package",
            factory="squish_ane.coreml.container:Mlpackage",
            suffixes=(".mlpackage",),
            signatures=(Signature(b"Manifest.json", where="member"),),
            can_write=True,
            options={"target": "iOS18 (default) or iOS16"},
            features=FEATURES,
            facts=FACTS,
            aliases={
                "int8": "affine:bits=8,scale_dtype=f16",
                "int4": "affine:bits=4,group_size=32,scale_dtype=f16",
                "f16": "dense:dtype=f16",
                "sparse": "bitmask:dtype=f16,sparsity=0.5",
                "sparse_lut4": "bitmask:dtype=f16,bits=4,sparsity=0.5",
                "sparse_int8": "bitmask:dtype=i8,scale=f16,sparsity=0.5",
                **{f"lut{bits}": f"palette:bits={bits},axis=flat,codebook_dtype=f16" for bits in (1, 2, 3, 4, 6, 8)},
            },
            codecs=("affine", "bitmask", "boxes", "palette"),
        )
    ]


@hookimpl
def squish_codecs() -> list[CodecInfo]:
    """Return the codec of a Core ML package inside another file; it does not decode to tensors."""
    return [
        CodecInfo(
            id="ane.mlpackage",
            title="a whole Core ML package",
            factory="squish_ane.coreml.archive:Archive",
            kind="whole",
        )
    ]
