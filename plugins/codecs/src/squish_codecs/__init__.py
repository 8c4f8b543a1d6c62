"""Declares the codecs of this package; imports none of them."""

from __future__ import annotations

from squish_core.api import AllocatorInfo, CodecInfo, hookimpl


@hookimpl
def squish_codecs() -> list[CodecInfo]:
    """Return the codecs of this plugin."""
    return [
        CodecInfo(
            id="affine",
            title="group-affine quantization",
            factory="squish_codecs.affine.codec:Affine",
            aliases={
                "int8": "affine:bits=8,word=i8",
                "int4": "affine:bits=4,group_size=32,scale_dtype=f16",
                "int3": "affine:bits=3,group_size=64,offset=bias,scale_dtype=f16",
                "int2": "affine:bits=2,group_size=64,offset=bias,scale_dtype=f16",
            },
        ),
        CodecInfo(id="panels", title="4-bit codes in panels of 16 rows", factory="squish_codecs.panels:Panels"),
        CodecInfo(
            id="palette",
            title="indices into a codebook",
            factory="squish_codecs.palette.codec:Palette",
            aliases={"nf4": "palette:bits=4,table=nf4,scale_dtype=f32,group_size=64"},
        ),
        CodecInfo(id="masked", title="block sparsity over another codec", factory="squish_codecs.wrap.masked:Masked"),
        CodecInfo(id="reshaped", title="another codec in a new shape", factory="squish_codecs.wrap.reshaped:Reshaped"),
        CodecInfo(id="lowrank", title="low-rank correction", factory="squish_codecs.wrap.lowrank:LowRank"),
        CodecInfo(id="awq", title="activation-aware column scaling (AWQ)", factory="squish_codecs.wrap.awq:Awq"),
        CodecInfo(id="float8", title="float8 with one scale or block scales", factory="squish_codecs.float8:Float8"),
        CodecInfo(id="bitmask", title="nonzero values and a bitmask", factory="squish_codecs.bitmask:Bitmask"),
        CodecInfo(id="hqq", title="half-quadratic quantization", factory="squish_codecs.hqq.codec:Hqq"),
        CodecInfo(id="boxes", title="integers with scales per box", factory="squish_codecs.boxes:Boxes"),
        CodecInfo(
            id="mx",
            title="microscaling: float4 or float8 in blocks",
            factory="squish_codecs.mx.codec:Mx",
            aliases={
                "mxfp4": "mx",
                "mxfp8": "mx:element=f8_e4m3",
                "nvfp4": "mx:block_size=16,scale_dtype=f8_e4m3,global_scale=divide",
            },
        ),
        CodecInfo(id="squizd.int4", title="SQUIZD INT4 blocks", factory="squish_codecs.squizd.packed:SquizdInt4"),
        CodecInfo(id="squizd.int2", title="SQUIZD INT2 blocks", factory="squish_codecs.squizd.packed:SquizdInt2"),
        CodecInfo(
            id="tca_tbe",
            title="TCA-TBE triple bitmaps, lossless bf16",
            factory="squish_codecs.squizd.tca_tbe:TcaTbe",
            lossless=True,
        ),
    ]


@hookimpl
def squish_allocators() -> list[AllocatorInfo]:
    """Return the allocators of this plugin."""
    return [AllocatorInfo(id="mixed", title="mixed precision by quality", factory="squish_codecs.allocate.mixed:Mixed")]
