"""The constants of UQFF. Source: uqff-formats, sections 2 and 3."""

from __future__ import annotations

from squish_core.api import BLOCK_TYPES

GGUF, UNQUANT, HQQ, FP8, AFQ, F8Q8, MXFP4 = range(7)
ISQ_NAMES = ("gguf", "unquant", "hqq", "fp8", "afq", "f8q8", "mxfp4")

# dtype code of a legacy tensor -> dtype; tensors with codes 10 to 13 cannot be serialized
DTYPES = {0: "u8", 1: "u32", 2: "i32", 3: "i64", 4: "f16", 5: "bf16", 6: "f32", 7: "f64", 8: "i16", 9: "f8_e4m3"}
E4M3 = 9

GGML_DENSE = {0: "f32", 1: "f16", 30: "bf16"}
GGML_BLOCKS = {
    BLOCK_TYPES[name].code: name
    for name in (
        "q4_0",
        "q4_1",
        "q5_0",
        "q5_1",
        "q8_0",
        "q8_1",
        "q2_k",
        "q3_k",
        "q4_k",
        "q5_k",
        "q6_k",
        "q8_k",
    )
}

AFQ_BITS, AFQ_GROUPS, AFQ_SCALES = (2, 3, 4, 6, 8), (32, 64, 128), ("f32", "f16", "bf16")

OLDEST_LEGACY, NEWEST_LEGACY, NEWEST = (0, 1), (0, 2), (1, 2)
FIRST_SHARDED = (0, 1, 3)
WRITER_LEGACY = ((0, 1, 3), (0, 1, 0))
"""0.x versions that are written: the blobs of mistral.rs 0.6, and the published layout."""
CHECKED_LENGTHS = (0, 2, 0)  # earlier versions store lengths modulo 2**32
# ISQ type -> legacy version that introduced it; an older blob with this type gets a warning
SINCE = {AFQ: (0, 1, 3), F8Q8: (0, 2, 0), MXFP4: (0, 2, 0)}

# format -> fields under `<key>.weight.`, besides `format`
SUFFIXES: dict[int, tuple[str, ...]] = {
    GGUF: ("dtype", "shape"),
    UNQUANT: (),
    HQQ: (
        "scales", "zeros", "shape", "bits", "group_size", "axis", "optimization_steps", "round_zeros", "channel_wise",
    ),
    FP8: ("dequant_w_scale", "dequant_x_scale", "quant_scale", "dtype"),
    AFQ: ("scales", "biases", "bits", "group_size"),
    F8Q8: ("num_blocks", "shape"),
    MXFP4: ("scales",),
}  # fmt: skip

# mistral.rs's promotions for lm_head and embeddings, its fallbacks for rows that do not divide, and its bias dtype
# by codec (default: the model's dtype).
AFQ_PROMOTED = {2: 6, 3: 6, 4: 6, 6: 8, 8: 8}
GGML_PROMOTED = {
    **dict.fromkeys(("q2_k", "q3_k", "q4_k", "q4_0", "q4_1"), "q6_k"),
    **dict.fromkeys(("q5_k", "q6_k", "q8_k", "q5_0", "q5_1", "q8_0", "q8_1"), "q8_0"),
}
GGML_FALLBACK = {"q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q4_1", "q5_k": "q5_0", "q6_k": "q5_1", "q8_k": "q8_1"}
BIAS_DTYPES = {"ggml": "f32", "hqq": "f32", "uqff.f8q8": "f32"}
