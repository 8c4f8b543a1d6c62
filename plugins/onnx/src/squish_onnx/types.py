"""Element types and field numbers of onnx.proto (IR version 3 to 13)."""

from __future__ import annotations

DTYPES = {
    1: "f32", 2: "u8", 3: "i8", 4: "u16", 5: "i16", 6: "i32", 7: "i64", 9: "bool", 10: "f16", 11: "f64", 12: "u32",
    13: "u64", 14: "complex64", 15: "complex128", 16: "bf16", 17: "f8_e4m3", 18: "f8_e4m3fnuz", 19: "f8_e5m2",
    20: "f8_e5m2fnuz", 21: "u4", 22: "i4", 23: "f4_e2m1", 24: "f8_e8m0", 25: "u2", 26: "i2",
}  # fmt: skip
"""TensorProto.DataType -> dtype; there is none for strings (8)."""
STRING = 8

FLOATS, INT32S, INT64S, DOUBLES, UINT64S = 4, 5, 7, 10, 11
"""Numeric fields of TensorProto."""
VALUES = {
    FLOATS: ("f32", "complex64"),
    INT32S: (
        "i32", "i16", "i8", "i4", "i2", "u16", "u8", "u4", "u2", "bool", "f16", "bf16", "f8_e4m3", "f8_e4m3fnuz",
        "f8_e5m2", "f8_e5m2fnuz", "f8_e8m0", "f4_e2m1",
    ),
    INT64S: ("i64",),
    DOUBLES: ("f64", "complex128"),
    UINT64S: ("u32", "u64"),
}  # fmt: skip
"""Numeric field -> dtypes that it stores."""
VALUE_NAMES = {
    FLOATS: "float_data", INT32S: "int32_data", INT64S: "int64_data", DOUBLES: "double_data", UINT64S: "uint64_data",
}  # fmt: skip
FIXED = {FLOATS: 4, DOUBLES: 8}
"""Bytes per number in the fields that are not varints."""

GRAPH, METADATA = 7, 14
"""Fields of ModelProto."""
NODE, INITIALIZER, SPARSE_INITIALIZER = 1, 5, 15
GRAPH_INPUT, GRAPH_OUTPUT, VALUE_INFO = 11, 12, 13
"""Fields of GraphProto."""
NODE_NAME, NODE_TYPE, NODE_ATTRIBUTE = 3, 4, 5
"""Fields of NodeProto."""
ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS = 6, 11
"""Fields of AttributeProto."""
