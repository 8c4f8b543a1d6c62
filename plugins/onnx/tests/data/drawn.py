"""The values of types.onnx, for the script that wrote it and for the tests."""

import ml_dtypes
import numpy as np

NUMPY = {
    "f32": np.float32, "f16": np.float16, "f64": np.float64, "bf16": ml_dtypes.bfloat16, "i8": np.int8,
    "i16": np.int16, "i32": np.int32, "i64": np.int64, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32,
    "u64": np.uint64, "complex64": np.complex64, "complex128": np.complex128, "f8_e4m3": ml_dtypes.float8_e4m3fn,
    "f8_e5m2": ml_dtypes.float8_e5m2, "i4": ml_dtypes.int4, "u4": ml_dtypes.uint4, "f4_e2m1": ml_dtypes.float4_e2m1fn,
    "bool": np.bool_,
}  # fmt: skip

NUMBERS = (
    "f32", "f16", "f64", "bf16", "i8", "i32", "i64", "u8", "u32", "u64", "complex64", "i4", "u4", "bool",
)  # fmt: skip
"""Dtypes that onnx writes as numbers; as raw bytes it writes all but bool."""
RAW = tuple(dtype for dtype in NUMPY if dtype != "bool")


def values(dtype: str) -> np.ndarray:
    """Small integers of both signs, where the dtype has them."""
    low = 0 if dtype.startswith(("u", "bool")) else -4
    return np.random.default_rng(0).integers(low, 2 if dtype == "bool" else 4, (3, 5)).astype(NUMPY[dtype])
