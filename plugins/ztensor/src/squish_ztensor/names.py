"""The names that zTensor stores, as tables."""

DTYPES = (
    "f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "complex64", "complex128",
    "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool",
)  # fmt: skip
"""Component dtypes of 1.1 (spec II.4); the core calls them the same. `f8_e4m3` is the variant without infinities."""

FORMATS = (
    "dense", "quantized_group", "sparse_csr", "sparse_coo", "zt.quant_group/1", "zt.sparse_csr/1", "zt.sparse_coo/1",
    "zt.mx/1",
)  # fmt: skip
"""What an object's `format` (v2: layout) may say, apart from GGML's block types, which `dtype` names."""

LONG_NAMES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16",
    "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8",
    "uint64": "u64", "uint32": "u32", "uint16": "u16", "uint8": "u8", "bool": "bool",
}  # fmt: skip
"""dtypes of 0.1 and 1.0."""

STORAGE = ("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8")
"""Part dtypes of v2; everything else is a logical `type` over one of them."""

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
"""Wire generation -> (`dtype`, `type`) -> element type. 1.x types are open, so it takes those of v2 too."""

BLOCKS: dict[str, tuple[int, int]] = {
    "q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24), "q8_0": (32, 34), "q8_1": (32, 36),
    "q2_k": (256, 84), "q3_k": (256, 110), "q4_k": (256, 144), "q5_k": (256, 176), "q6_k": (256, 210),
    "q8_k": (256, 292), "iq1_s": (256, 50), "iq1_m": (256, 56), "iq2_xxs": (256, 66), "iq2_xs": (256, 74),
    "iq2_s": (256, 82), "iq3_xxs": (256, 98), "iq3_s": (256, 110), "iq4_nl": (32, 18), "iq4_xs": (256, 136),
    "mxfp4": (32, 17),
}  # fmt: skip
"""GGML block type -> (elements, bytes) of a block. Object `format` is `gguf.<type>`, in v2 `gguf.<type>/1`."""
