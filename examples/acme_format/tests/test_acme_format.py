"""The conformance kit on the ACME container, codec and backend."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from squish_core.api import CodecSpec, TensorSpec
from squish_core.testing import BackendSuite, CodecSuite, ContainerSuite


def acme(*tensors: tuple[str, int, np.ndarray]) -> bytes:
    """An ACME file from (name, dtype code, array)."""
    offset = 8 + sum(12 + len(name) + 8 * values.ndim for name, _, values in tensors)
    header, data = b"ACME" + struct.pack("<I", len(tensors)), b""
    for name, code, values in tensors:
        header += struct.pack("<HBB", len(name), code, values.ndim) + name.encode()
        header += struct.pack(f"<{values.ndim + 1}Q", *values.shape, offset + len(data))
        data += values.tobytes()
    return header + data


class TestFoo(ContainerSuite):
    container = "acme.foo"

    def samples(self) -> dict[str, bytes]:
        weights = np.arange(12, dtype="<f4").reshape(3, 4)
        return {
            "small": acme(("weights", 0, weights), ("norm", 1, np.ones(6, "<f2"))),
            "scalar and empty": acme(("scale", 0, np.float32(2).reshape(())), ("none", 3, np.zeros((0, 4), "<i8"))),
            "no tensors": acme(),
        }


class TestRows(CodecSuite):
    codec = "acme.rows"
    tolerance = 0.01

    def cases(self) -> dict[str, Any]:
        values = np.random.default_rng(0).standard_normal((6, 10), np.float32)
        spec = TensorSpec(name="w", shape=values.shape, dtype="f32")
        return {"normal": (spec, {}, values), "zeros": (spec, {}, 0 * values)}


class TestMemory(BackendSuite):
    backend = "acme.memory"

    def cases(self) -> dict[str, Any]:
        values = np.random.default_rng(0).standard_normal((24, 64), np.float32)
        return {**super().cases(), "rows": (CodecSpec("acme.rows"), values)}
