"""The interface of squish-codecs for other plugins; names are loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    "squish_codecs.wrap.base": ("Wrapper", "rows_and_columns"),
    "squish_codecs.wrap.lowrank": ("LowRank",),
}  # fmt: skip

if TYPE_CHECKING:
    from .affine.codec import Affine as Affine
    from .affine.decode import decode_affine as decode_affine
    from .affine.decode import read_affine as read_affine
    from .affine.decode import unpack_codes as unpack_codes
    from .affine.encode import check_encodable as check_encodable
    from .affine.encode import is_mlx_layout as is_mlx_layout
    from .affine.layout import affine_layout as affine_layout
    from .affine.repack import affine_holds as affine_holds
    from .affine.repack import affine_parts as affine_parts
    from .affine.scheme import Scheme as Scheme
    from .bitmask import BITMASK_DTYPES as BITMASK_DTYPES
    from .bitmask import BITMASK_SCALES as BITMASK_SCALES
    from .bitmask import Bitmask as Bitmask
    from .boxes import Boxes as Boxes
    from .float8 import FLOAT8_DTYPES as FLOAT8_DTYPES
    from .float8 import FLOAT8_SCALES as FLOAT8_SCALES
    from .float8 import Float8 as Float8
    from .float8 import float8_table as float8_table
    from .hqq.codec import HQQ_PACKINGS as HQQ_PACKINGS
    from .hqq.codec import Hqq as Hqq
    from .kv.cache import Cache as Cache
    from .mx.codec import Mx as Mx
    from .mx.float4 import float4_codes as float4_codes
    from .mx.float4 import float4_layout as float4_layout
    from .mx.float4 import float4_pairs as float4_pairs
    from .mx.float4 import is_float4 as is_float4
    from .mx.global_scale import convert_global_scale as convert_global_scale
    from .mx.global_scale import split_global_scale as split_global_scale
    from .mx.layout import mx_layout as mx_layout
    from .mx.layout import mx_params as mx_params
    from .packing.bits import BIT_COUNTS as BIT_COUNTS
    from .packing.bits import Packing as Packing
    from .packing.bits import row_major as row_major
    from .palette.codec import Palette as Palette
    from .palette.tables import Tables as Tables
    from .panels import Panels as Panels
    from .panels import panel_scheme as panel_scheme
    from .squizd.packed import SquizdInt2 as SquizdInt2
    from .squizd.packed import SquizdInt4 as SquizdInt4
    from .squizd.tca_tbe import TcaTbe as TcaTbe
    from .wrap.awq import Awq as Awq
    from .wrap.base import Wrapper as Wrapper
    from .wrap.base import rows_and_columns as rows_and_columns
    from .wrap.lowrank import LowRank as LowRank
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
