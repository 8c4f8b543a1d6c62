"""The names that zTensor 1.1 stores, as tables."""

DTYPES = (
    "f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "complex64", "complex128",
    "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool",
)  # fmt: skip
"""Component dtypes (spec II.4); the core calls them the same. `f8_e4m3` is the variant without infinities."""

ELEMENTS: dict[tuple[str, str | None], str] = {
    **{(name, None): name for name in DTYPES},
    ("u8", "f8_e4m3fn"): "f8_e4m3", ("u8", "f8_e5m2"): "f8_e5m2",
    ("u8", "f8_e4m3fnuz"): "f8_e4m3fnuz", ("u8", "f8_e5m2fnuz"): "f8_e5m2fnuz",
    ("f32", "complex64"): "complex64", ("f64", "complex128"): "complex128",
}  # fmt: skip
"""(`dtype`, `type`) -> element type. `type` is the logical type that zTensor 1.2 added."""

BLOCKS: dict[str, tuple[int, int]] = {
    "q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24), "q8_0": (32, 34), "q8_1": (32, 36),
    "q2_k": (256, 84), "q3_k": (256, 110), "q4_k": (256, 144), "q5_k": (256, 176), "q6_k": (256, 210),
    "q8_k": (256, 292), "iq1_s": (256, 50), "iq1_m": (256, 56), "iq2_xxs": (256, 66), "iq2_xs": (256, 74),
    "iq2_s": (256, 82), "iq3_xxs": (256, 98), "iq3_s": (256, 110), "iq4_nl": (32, 18), "iq4_xs": (256, 136),
    "mxfp4": (32, 17),
}  # fmt: skip
"""GGML block type -> (elements, bytes) of a block. Object `format` is `gguf.<type>`; `/1` after it is accepted."""
