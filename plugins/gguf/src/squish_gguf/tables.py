"""The numbers of GGUF as tables: value types, tensor types. Source: the GGUF specification and ggml's type list."""

from __future__ import annotations

import struct

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAX_ALIGNMENT = "general.alignment", 32, 1 << 20
MAX_RANK, MAX_ARRAY_DEPTH, MAX_NAME = 4, 8, 64

# metadata value type -> its name here and how a scalar is packed; strings and arrays have a length instead
SCALARS: dict[int, tuple[str, struct.Struct]] = {
    0: ("u8", struct.Struct("<B")), 1: ("i8", struct.Struct("<b")), 2: ("u16", struct.Struct("<H")),
    3: ("i16", struct.Struct("<h")), 4: ("u32", struct.Struct("<I")), 5: ("i32", struct.Struct("<i")),
    6: ("f32", struct.Struct("<f")), 7: ("bool", struct.Struct("<B")), 10: ("u64", struct.Struct("<Q")),
    11: ("i64", struct.Struct("<q")), 12: ("f64", struct.Struct("<d")),
}  # fmt: skip
STRING, ARRAY = 8, 9
SCALAR_IDS = {name: number for number, (name, _) in SCALARS.items()}

# tensor type -> dtype of dense ones
DENSE_TYPES = {0: "f32", 1: "f16", 24: "i8", 25: "i16", 26: "i32", 27: "i64", 28: "f64", 30: "bf16"}
# tensor type -> (name, elements per block, bytes per block). Q8_1 has 36 bytes: its sum is f16 since 2023.
BLOCK_TYPES = {
    2: ("q4_0", 32, 18), 3: ("q4_1", 32, 20), 6: ("q5_0", 32, 22), 7: ("q5_1", 32, 24), 8: ("q8_0", 32, 34),
    9: ("q8_1", 32, 36), 10: ("q2_k", 256, 84), 11: ("q3_k", 256, 110), 12: ("q4_k", 256, 144), 13: ("q5_k", 256, 176),
    14: ("q6_k", 256, 210), 15: ("q8_k", 256, 292), 16: ("iq2_xxs", 256, 66), 17: ("iq2_xs", 256, 74),
    18: ("iq3_xxs", 256, 98), 19: ("iq1_s", 256, 50), 20: ("iq4_nl", 32, 18), 21: ("iq3_s", 256, 110),
    22: ("iq2_s", 256, 82), 23: ("iq4_xs", 256, 136), 29: ("iq1_m", 256, 56), 34: ("tq1_0", 256, 54),
    35: ("tq2_0", 256, 66), 39: ("mxfp4", 32, 17), 40: ("nvfp4", 64, 36), 41: ("q1_0", 128, 18),
}  # fmt: skip
REMOVED_TYPES = {
    4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}  # fmt: skip
DENSE_IDS = {dtype: number for number, dtype in DENSE_TYPES.items()}
BLOCK_IDS = {name: number for number, (name, _, _) in BLOCK_TYPES.items()}
