"""The conformance kit on the ACME format."""

from __future__ import annotations

import struct

import numpy as np

from squish_core.testing import ContainerSuite


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
