"""Tables of the names that zTensor stores."""

from squish_core.api import BLOCK_TYPES

DTYPES = (
    "f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "complex64", "complex128",
    "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool",
)  # fmt: skip
"""Component dtypes of 1.1 (spec II.4), equal to Squish's ids. `f8_e4m3` is the variant without infinities."""

FORMATS = (
    "dense", "quantized_group", "sparse_csr", "sparse_coo", "zt.quant_group/1", "zt.sparse_csr/1", "zt.sparse_coo/1",
    "zt.mx/1",
)  # fmt: skip
"""Values of an object's `format` (v2: layout), except GGML's block types, which `dtype` names."""

LONG_NAMES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16",
    "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8",
    "uint64": "u64", "uint32": "u32", "uint16": "u16", "uint8": "u8", "bool": "bool",
}  # fmt: skip
"""Dtypes of 0.1 and 1.0."""

STORAGE = ("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8")
"""Part dtypes of v2; all others are a logical `type` stored as one of them."""

TYPES = {
    "bool": ("u8", "bool"),
    "f8_e4m3": ("u8", "f8_e4m3fn"), "f8_e5m2": ("u8", "f8_e5m2"),
    "f8_e4m3fnuz": ("u8", "f8_e4m3fnuz"), "f8_e5m2fnuz": ("u8", "f8_e5m2fnuz"),
    "f8_e8m0": ("u8", "f8_e8m0"), "f4_e2m1": ("u8", "f4_e2m1"),
    "complex64": ("f32", "complex64"), "complex128": ("f64", "complex128"),
}  # fmt: skip
"""Element type -> (`dtype`, `type`) in v2; 1.2 has all but bool, f8_e8m0 and f4_e2m1."""

_LOGICAL: dict[tuple[str, str | None], str] = {stored: name for name, stored in TYPES.items()}
ELEMENTS: dict[int, dict[tuple[str, str | None], str]] = {
    1: {**{(name, None): name for name in DTYPES}, **_LOGICAL},
    2: {**{(name, None): name for name in STORAGE}, **_LOGICAL},
}
"""Major version -> (`dtype`, `type`) -> element type. The list of 1.x is open, so it accepts the types of v2."""

_BLOCK_NAMES = (
    "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q8_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q8_k", "iq1_s", "iq1_m",
    "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs", "mxfp4",
)  # fmt: skip
BLOCKS = {name: (BLOCK_TYPES[name].elements, BLOCK_TYPES[name].nbytes) for name in _BLOCK_NAMES}
"""GGML block type -> (elements, bytes) of a block. Object `format` is `gguf.<type>`, in v2 `gguf.<type>/1`."""
