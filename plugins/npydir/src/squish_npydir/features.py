"""The encodings of dialects and tiers, as written by Squish itself."""

from __future__ import annotations

INT3_FAMILIES = ("qwen3",)
"""Prefixes of `model_type` of the families that tolerate three bits.

Source: Squish architecture document, section 2, tier 0c.
"""
MLX_GROUPS = (32, 64, 128)
FOUR_BITS = "affine:bits=4,group_size=32,offset=bias"
DIALECTS = {
    "int4": FOUR_BITS,
    "int4 q4": FOUR_BITS,
    "int4 awq": f"awq({FOUR_BITS})",
    "int4 symmetric": "affine:bits=4,group_size=32,zero=7",
    "nf4": "palette:bits=4,table=nf4,group_size=32,scale_dtype=f32",
    "int3 milo": "affine:bits=3,group_size=64,axis=flat,offset=zero_point,offset_dtype=f32",
    "int3": "npydir.int3:group_size=64",
    "int2": "affine:bits=2,group_size=64,offset=bias",
    "sqint2": "npydir.sqint2:group_size=32,rank=0,nonzero=0,left_start=-1,right_start=-1",
    "passthrough": "dense:dtype=f16",
    "int8": "affine:bits=8,word=i8,group_size=64",
}
"""Label of a dialect -> its encoding; in the order of `read.dialects.DIALECTS`."""

TIERS = {
    "squish_panels": "panels:group_size=32,offset=bias,scale_dtype=f32",
    "squish_4bit": "affine:bits=4,group_size=32,word=u32,offset=bias,scale_dtype=f16",
    "squish_3bit": "affine:bits=3,group_size=32,word=u32,offset=bias,scale_dtype=f16",
    "squish_weights": "dense:dtype=bf16",
    "finalized": "dense:dtype=f16",
}
"""Label of a tier -> its encoding; best first, as in `tiers.read.TIERS`."""

TIER_NAMES = {"panels": "squish_panels", "4bit": "squish_4bit", "3bit": "squish_3bit", "mlx": "squish_weights"}
"""Name of a tier for `squish cache build --tier` -> its label."""

LISTING = "squish.files.json"
"""The list of files of a directory; see `read.listing`."""
