"""The affine codec in the core's conformance kit."""

import numpy as np

from squish_core.api import TensorSpec
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
