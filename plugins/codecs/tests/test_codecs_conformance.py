"""The codecs in the core's conformance kit."""

import numpy as np
import pytest
from squish_testing import CodecSuite

from squish_core.api import TensorSpec, dtypes

pytestmark = pytest.mark.alone

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
    "padded": {"bits": 5, "group_size": 32, "word": "i32", "order": "padded", "zero": 16, "scale_dtype": "bf16"},
    "planes6": {"bits": 6, "group_size": 32, "word": "u32", "order": "planes", "zero": 32},
    "planes7": {"bits": 7, "group_size": 32, "axis": -2, "transposed": True, "word": "i32", "order": "planes",
                "offset": "zero_point", "offset_dtype": "packed"},
    "channels": {"bits": 8, "axis": -2},
}  # fmt: skip


class TestAffine(CodecSuite):
    codec = "affine"
    tolerance = 0.15

    def cases(self):
        cases = {}
        for name, params in PARAMS.items():
            for shape in ((32, 96), (2, 16, 64)):
                spec = TensorSpec(name="w", shape=shape, dtype="f32")
                values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
                cases[f"{name}{shape}"] = spec, params, values
        return cases


class TestFloat8(CodecSuite):
    codec = "float8"
    tolerance = 0.2

    def cases(self):
        forms = {
            "one scale": ({}, ()), "channels": ({"block": [1, 0], "scale_dtype": "bf16"}, (3, 5, 1)),
            "blocks": ({"block": [2, 4]}, (3, 3, 5)), "columns": ({"block": [0, 8], "scale_dtype": "f16"}, (3, 1, 3)),
            "e8m0": ({"block": [4, 16], "scale_dtype": "f8_e8m0", "element": "f8_e5m2"}, (3, 2, 2)),
        }  # fmt: skip
        rng, cases = np.random.default_rng(0), {}
        for name, (params, grid) in forms.items():
            spec = TensorSpec(name="w", shape=(3, 5, 17), dtype="f32")
            codes = rng.integers(0, 120, spec.shape).astype(np.uint8)
            scale = rng.uniform(0.1, 2, grid).astype(dtypes.to_numpy(params.get("scale_dtype", "f32")))
            cases[name] = spec, params, {
                "data": codes.view(dtypes.to_numpy(params.get("element", "f8_e4m3"))), "scale": scale,
            }  # fmt: skip
        for element in ("f8_e4m3", "f8_e5m2"):
            cases[f"values as {element}"] = spec, {"element": element}, rng.normal(size=spec.shape).astype(np.float32)
        for name, (params, _) in forms.items():
            cases[f"values in {name}"] = spec, params, rng.normal(size=spec.shape).astype(np.float32)
        cases["zeros"] = spec, {}, np.zeros(spec.shape, np.float32)
        return cases


class TestMx(CodecSuite):
    codec = "mx"
    tolerance = 0.3

    def cases(self):
        cases = {}
        for shape in ((8, 96), (2, 3, 64), (32,)):
            spec = TensorSpec(name="w", shape=shape, dtype="f32")
            cases[str(shape)] = spec, {}, np.random.default_rng(0).normal(size=shape).astype(np.float32)
        values, spec = np.random.default_rng(1).normal(size=(8, 96)).astype(np.float32), cases["(8, 96)"][0]
        for element in ("f8_e4m3", "f8_e5m2"):
            cases[element] = spec, {"element": element}, values
        for factor in ("none", "multiply", "divide"):
            params = {"block_size": 16, "scale_dtype": "f8_e4m3", "global_scale": factor}
            cases[f"nvfp4 {factor}"] = spec, params, values
        return cases


class TestMxForms(CodecSuite):
    """Random parts in the layouts of MLX, compressed-tensors and ModelOpt."""

    codec = "mx"

    def cases(self):
        rng, cases = np.random.default_rng(0), {}
        spec = TensorSpec(name="w", shape=(2, 3, 96), dtype="f32")
        for factor in ("none", "multiply", "divide"):
            params = {"block_size": 16, "scale_dtype": "f8_e4m3", "global_scale": factor}
            parts = {
                "data": rng.integers(0, 256, (2, 3, 48)).astype(np.uint8),
                "scale": rng.integers(1, 120, (2, 3, 6)).astype(np.uint8).view(dtypes.to_numpy("f8_e4m3")),
            }
            cases[factor] = spec, params, parts if factor == "none" else {**parts, "global_scale": np.float32(2.5)}
        codes = rng.integers(0, 120, spec.shape).astype(np.uint8).view(dtypes.to_numpy("f8_e4m3"))
        scale = rng.integers(100, 130, (2, 3, 3)).astype(np.uint8).view(dtypes.to_numpy("f8_e8m0"))
        cases["mxfp8"] = spec, {"element": "f8_e4m3"}, {"data": codes, "scale": scale}
        return cases
