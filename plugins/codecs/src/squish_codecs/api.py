"""The interface of squish-codecs for other plugins; names are loaded on first use."""

from __future__ import annotations

from squish_core.api import lazy_exports

_NAMES = {
    "squish_codecs.affine.codec": ("Affine",),
    "squish_codecs.affine.decode": ("decode_affine", "read_affine", "unpack_codes"),
    "squish_codecs.affine.encode": ("check_encodable", "is_mlx_layout"),
    "squish_codecs.affine.layout": ("affine_layout",),
    "squish_codecs.affine.repack": ("affine_holds", "affine_parts"),
    "squish_codecs.affine.scheme": ("Scheme",),
    "squish_codecs.bitmask": ("BITMASK_DTYPES", "BITMASK_SCALES", "Bitmask"),
    "squish_codecs.boxes": ("Boxes",),
    "squish_codecs.float8": ("FLOAT8_DTYPES", "FLOAT8_SCALES", "Float8", "float8_table"),
    "squish_codecs.kv.cache": ("Cache",),
    "squish_codecs.hqq.codec": ("HQQ_PACKINGS", "Hqq"),
    "squish_codecs.mx.codec": ("Mx",),
    "squish_codecs.mx.float4": ("float4_codes", "float4_layout", "float4_pairs", "is_float4"),
    "squish_codecs.mx.global_scale": ("convert_global_scale", "split_global_scale"),
    "squish_codecs.mx.layout": ("mx_layout", "mx_params"),
    "squish_codecs.packing.bits": ("BIT_COUNTS", "Packing", "row_major"),
    "squish_codecs.palette.codec": ("Palette",),
    "squish_codecs.palette.tables": ("Tables",),
    "squish_codecs.panels": ("Panels", "panel_scheme"),
    "squish_codecs.squizd.packed": ("SquizdInt2", "SquizdInt4"),
    "squish_codecs.squizd.tca_tbe": ("TcaTbe",),
    "squish_codecs.wrap.awq": ("Awq",),
    "squish_codecs.wrap.correction": ("rows_and_columns",),
    "squish_codecs.wrap.lowrank": ("LowRank",),
}  # fmt: skip

__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
