"""Tables: the types of GGML tensors and of GGUF metadata values. Source: ggml.h, gguf.md."""

from __future__ import annotations

from struct import Struct
from typing import Any, NamedTuple

from squish_core.api import BLOCK_TYPES


class GgmlType(NamedTuple):
    """A tensor type: blocks of `elements` weights in `nbytes` bytes. A dense type has a `dtype`.

    `row_nbytes`: size of what precedes the blocks of each row.
    """

    name: str
    elements: int
    nbytes: int
    dtype: str | None = None
    row_nbytes: int = 0

    def row_size(self, columns: int) -> int:
        """Return the size of a row in bytes."""
        return self.row_nbytes + columns // self.elements * self.nbytes


_DENSE = {
    0: GgmlType("F32", 1, 4, "f32"),
    1: GgmlType("F16", 1, 2, "f16"),
    24: GgmlType("I8", 1, 1, "i8"),
    25: GgmlType("I16", 1, 2, "i16"),
    26: GgmlType("I32", 1, 4, "i32"),
    27: GgmlType("I64", 1, 8, "i64"),
    28: GgmlType("F64", 1, 8, "f64"),
    30: GgmlType("BF16", 1, 2, "bf16"),
}
_BLOCKS = {code: GgmlType(name.upper(), elements, nbytes) for name, code, elements, nbytes in BLOCK_TYPES.values()}
TYPES: dict[int, GgmlType] = dict(sorted({**_DENSE, **_BLOCKS}.items()))
REMOVED = {5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8"}
BITNET = ("bitnet-b1.58", "bitnet-25")
"""Architectures that exist only in the llama.cpp fork of Microsoft's BitNet."""
BITNET_TL2 = {39: -39, 42: -42}
"""Code of that fork's type TL2 -> its code here, since GGML uses the numbers for other types."""

_IK_LLAMA_SIZES: dict[int, tuple[Any, ...]] = {
    97: ("Q8_0_X4", 32, 34), 98: ("Q8_1_X4", 32, 36), 99: ("Q8_2_X4", 32, 36), 133: ("Q6_0", 32, 26),
    134: ("IQ1_BN", 64, 13, 2), 135: ("IQ2_BN", 64, 16, 4), 136: ("Q8_K64", 64, 68), 137: ("IQ2_K", 256, 76),
    138: ("IQ3_K", 256, 110), 139: ("IQ4_K", 256, 144), 140: ("IQ5_K", 256, 176), 141: ("IQ6_K", 256, 212),
    144: ("IQ4_KS", 256, 136, 4), 145: ("IQ2_KS", 256, 70, 2), 146: ("IQ4_KSS", 256, 128, 4),
    147: ("Q8_K16", 64, 64, 20), 148: ("Q8_K32", 256, 296), 149: ("Q8_KR8", 256, 296), 150: ("Q8_K128", 128, 140),
    151: ("Q8_KV", 32, 32, 8), 152: ("IQ5_KS", 256, 168, 4), 153: ("IQ2_KT", 256, 68, 4),
    154: ("IQ3_KT", 256, 100, 4), 155: ("IQ4_KT", 256, 128, 4), 156: ("IQ3_KS", 256, 102, 2),
    157: ("IQ2_KL", 256, 86, 2), 158: ("IQ1_KT", 256, 56, 4), 202: ("Q4_0_R8", 32, 18), 206: ("Q5_0_R4", 32, 22),
    208: ("Q8_0_R8", 32, 34), 210: ("Q2_K_R4", 256, 84), 211: ("Q3_K_R4", 256, 110), 212: ("Q4_K_R4", 256, 144),
    213: ("Q5_K_R4", 256, 176), 214: ("Q6_K_R4", 256, 210), 216: ("IQ2_XXS_R4", 256, 66), 217: ("IQ2_XS_R4", 256, 74),
    218: ("IQ3_XXS_R4", 256, 98), 219: ("IQ1_S_R4", 32, 6, 2), 220: ("IQ4_NL_R4", 32, 18),
    221: ("IQ3_S_R4", 256, 110), 222: ("IQ2_S_R4", 256, 82), 223: ("IQ4_XS_R8", 256, 136),
    229: ("IQ1_M_R4", 32, 7, 2), 230: ("BF16_R16", 1, 2), 233: ("Q6_0_R4", 32, 26), 335: ("IQ2_BN_R4", 64, 16, 4),
    337: ("IQ2_K_R4", 256, 76), 338: ("IQ3_K_R4", 256, 110), 339: ("IQ4_K_R4", 256, 144), 340: ("IQ5_K_R4", 256, 176),
    344: ("IQ4_KS_R4", 256, 136, 4), 352: ("IQ5_KS_R4", 256, 168, 4), 353: ("MXFP4_R8", 32, 17),
    397: ("Q8_K_R16", 256, 258), 398: ("Q8_KV_R8", 32, 32, 4), 399: ("Q8_K_R8", 256, 258),
}  # fmt: skip
"""Code -> name, elements and bytes per block, bytes before the blocks of a row.

Source: ggml.c and ggml-common.h of ik_llama.cpp, commit 8337e4c of August 2026.
"""
IK_LLAMA = {
    code: GgmlType(name, elements, nbytes, None, *row)
    for code, (name, elements, nbytes, *row) in _IK_LLAMA_SIZES.items()
}
"""Types of known size without a decoder: GGUF keeps their bytes."""
FORKS = {
    **{code: f"{kind.name} of ik_llama.cpp" for code, kind in IK_LLAMA.items()},
    142: "PQ2_0 of PrismML's llama.cpp", 143: "PTQ1_0 of PrismML's llama.cpp",
    4: "MXFP4 in Ollama's order, or Q4_2, which GGML removed", 36: "I2_S of BitNet's llama.cpp",
    37: "I8_S of BitNet's llama.cpp", 38: "TL1 of BitNet's llama.cpp",
    **dict.fromkeys(BITNET_TL2.values(), "TL2 of BitNet's llama.cpp"),
}  # fmt: skip
"""Types that exist only in a llama.cpp fork. GGML removed its own types 36 to 38 before files had them."""
INSTEAD = {
    4: "Use the model's GGUF from the Hugging Face Hub, whose MXFP4 is GGML's",
    **dict.fromkeys((36, 37, 38, *BITNET_TL2.values()), "Convert the original checkpoint (to tq2_0)"),
}
"""Alternatives to types that cannot be read."""
PRESET_NAMES = (
    "q2_k_s", "q3_k_s", "q3_k_m", "q3_k_l", "q4_k_s", "q4_k_m", "q5_k_s", "q5_k_m", "iq2_m", "iq3_xs", "iq3_m",
    "mxfp4_moe",
)  # fmt: skip
"""Presets that share no name with a codec: `--encode q4_k_m`."""
Q2_0, PQ2_0 = 42, 142
WIDE_Q2_0 = 36, 34
"""Bytes per 128 elements of Q2_0 and of PQ2_0, which early files store under the code of Q2_0."""

DENSE_CODES: dict[str, int] = {kind.dtype: code for code, kind in TYPES.items() if kind.dtype}
BLOCK_CODES = {f"ggml.{kind.name.lower()}": code for code, kind in TYPES.items() if not kind.dtype}
SCALED_NVFP4 = "ggml.scaled_nvfp4"
"""The codec of NVFP4 blocks with a global scale, which is a tensor of its own."""
BLOCK_CODES[SCALED_NVFP4] = BLOCK_CODES["ggml.nvfp4"]
TYPE_CODES = {**BLOCK_CODES, **{f"ik_llama.{kind.name.lower()}": code for code, kind in IK_LLAMA.items()}}
"""Type code of each codec that GGUF stores as blocks; no package provides those of ik_llama.cpp."""
LAYOUTS = {**TYPES, **IK_LLAMA}
"""All types whose size is defined."""
WEIGHT, SCALE, GLOBAL_SCALE = ".weight", ".scale", "global_scale"
"""Name suffixes of such a tensor and its scale, and the role of the scale."""
VALUES = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "array", "u64", "i64", "f64")
"""Metadata types by their code."""

SCALARS: dict[str, Struct] = {
    "u8": Struct("<B"), "i8": Struct("<b"), "u16": Struct("<H"), "i16": Struct("<h"), "u32": Struct("<I"),
    "i32": Struct("<i"), "f32": Struct("<f"), "bool": Struct("<?"), "u64": Struct("<Q"), "i64": Struct("<q"),
    "f64": Struct("<d"),
}  # fmt: skip
"""Storage of fixed-size metadata types."""

ARRAY_HEAD = Struct("<IQ")
MAX_DEPTH = 8
MAX_PAIRS = MAX_INNER = 1 << 16
"""Limits on metadata keys and on nested arrays: real files have hundreds of keys and no nested arrays."""
MAX_KEY = 65535
DEFAULT_ALIGNMENT, MAX_ALIGNMENT = 32, 1 << 20
