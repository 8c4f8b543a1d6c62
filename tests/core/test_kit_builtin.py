"""The core's own codec and backend pass the kit that plugins are held to."""

from __future__ import annotations

from typing import Any

import numpy as np
from squish_testing import BackendSuite, CodecSuite

from squish_core.api import TensorSpec, dtypes


class TestDense(CodecSuite):
    codec = "dense"
    tolerance = 0.1

    def cases(self) -> dict[str, Any]:
        values = np.random.default_rng(0).standard_normal((6, 10), np.float32)
        cases: dict[str, Any] = {}
        for dtype in ("f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2"):
            spec = TensorSpec(name="w", shape=values.shape, dtype=dtype)
            cases[dtype] = (spec, {"dtype": dtype}, values)
        for dtype, shape in (("i4", (3, 5)), ("u2", (3, 5)), ("f4_e2m1", (4, 4)), ("u1", (9,)), ("f6_e2m3", (3, 3))):
            raw = np.arange(dtypes.nbytes(dtype, shape), dtype="u1") * 37 + 11
            raw[-1] &= 0xFF >> -dtypes.count(shape) * dtypes.bits(dtype) % 8  # spare bits are zero
            cases[dtype] = (TensorSpec(name="w", shape=shape, dtype=dtype), {}, {"data": raw})
        cases["scalar"] = (TensorSpec(name="w", shape=(), dtype="i32"), {}, {"data": np.array(7, "<i4")})
        cases["empty"] = (TensorSpec(name="w", shape=(0, 4), dtype="i32"), {}, {"data": np.empty((0, 4), "<i4")})
        cases["bool"] = (TensorSpec(name="w", shape=(3,), dtype="bool"), {}, {"data": np.array([1, 0, 1], "?")})
        return cases


class TestNumpyBackend(BackendSuite):
    backend = "numpy"
