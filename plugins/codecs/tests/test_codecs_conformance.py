"""The affine codec in the core's conformance kit."""

import numpy as np

from squish_core.api import TensorSpec, dtypes
from squish_core.testing import CodecSuite

PARAMS = {
    "int8_row": {"bits": 8, "word": "i8"},
    "int8_tensor": {"bits": 8, "word": "i8", "axis": "flat"},
    "int4": {"bits": 4, "group_size": 32, "scale_dtype": "f16"},
    "int4_flat": {"bits": 4, "group_size": 40, "axis": "flat", "offset": "bias", "signed": True},
    "mlx6": {"bits": 6, "group_size": 32, "word": "u32", "offset": "bias", "scale_dtype": "bf16"},
    "gptq": {
        "bits": 4, "group_size": 32, "axis": -2, "transposed": True, "word": "i32", "offset": "zero_point",
        "offset_dtype": "packed", "scale_dtype": "f16",
    },
    "columns": {"bits": 4, "group_size": 16, "axis": -2, "word": "u32", "offset": "zero_point"},
    "channels": {"bits": 8, "axis": -2},
}  # fmt: skip


class TestAffine(CodecSuite):
    codec = "affine"
    tolerance = 0.15

    def cases(self):
        found = {}
        for name, params in PARAMS.items():
            for shape in ((32, 96), (2, 16, 64)):
                spec = TensorSpec(name="w", shape=shape, dtype="f32")
                values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
                found[f"{name}{shape}"] = spec, params, values
        return found


class TestFloat8(CodecSuite):
    codec = "float8"
    tolerance = 0.2

    def cases(self):
        spec = TensorSpec(name="w", shape=(3, 5, 17), dtype="f32")
        codes = np.random.default_rng(0).integers(0, 127, spec.shape).astype(np.uint8)
        stored = {"data": codes.view(dtypes.to_numpy("f8_e4m3")), "scale": np.array(0.1, np.float32)}
        values = np.random.default_rng(0).normal(size=spec.shape).astype(np.float32)
        return {"e4m3": (spec, {}, stored), "values": (spec, {}, values), "zeros": (spec, {}, 0 * values)}


class TestMx(CodecSuite):
    codec = "mx"
    tolerance = 0.3

    def cases(self):
        found = {}
        for shape in ((8, 96), (2, 3, 64), (32,)):
            spec = TensorSpec(name="w", shape=shape, dtype="f32")
            found[str(shape)] = spec, {}, np.random.default_rng(0).normal(size=shape).astype(np.float32)
        return found
