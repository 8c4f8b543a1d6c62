"""The conformance kit on what ACME brings."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from squish_core.api import CodecSpec, Digest, TensorSpec, dtypes
from squish_core.testing import BackendSuite, ByteCodecSuite, CodecSuite, ContainerSuite, RefinementSuite

WEIGHTS = np.arange(12, dtype="<f4").reshape(3, 4) - 5
NORM = np.linspace(0.5, 2, 6).astype("<f2")
CODES = np.array([[-127, 1, 0], [5, 127, -5]], np.int8)
SCALE = np.array([0.5, 0.25], "<f4")
EVERY = {
    "f32": WEIGHTS, "f16": NORM, "bf16": NORM.astype(dtypes.to_numpy("bf16")), "i64": np.array([-(1 << 40), 7], "<i8"),
    "i32": np.array([-70000, 3], "<i4"), "i8": CODES, "u8": np.array([200, 1], np.uint8),
}  # fmt: skip
MARK = ("acme.pairs", 6, np.zeros(0, np.uint8))


def packed(*tensors: tuple[str, int, np.ndarray]) -> bytes:
    """A file of ACME from (name, dtype code, array)."""
    offset = 8 + sum(12 + len(name) + 8 * values.ndim for name, _, values in tensors)
    header, data, checksums = b"ACME" + struct.pack("<I", len(tensors)), b"", b""
    for name, code, values in tensors:
        header += struct.pack("<HBB", len(name), code, values.ndim) + name.encode()
        header += struct.pack(f"<{values.ndim + 1}Q", *values.shape, offset + len(data))
        data += values.tobytes()
        digest = Digest("crc32c")
        digest.update(values.tobytes())
        checksums += int(str(digest).partition(":")[2], 16).to_bytes(4, "little")
    return header + data + checksums


class TestFoo(ContainerSuite):
    container = "acme.foo"

    def samples(self) -> dict[str, bytes]:
        return {
            "small": packed(("weights", 0, WEIGHTS), ("norm", 1, NORM)),
            "every dtype": packed(*((name, code, values) for code, (name, values) in enumerate(EVERY.items()))),
            "scalar and empty": packed(("scale", 0, np.float32(2).reshape(())), ("none", 3, np.zeros((0, 4), "<i8"))),
            "no tensors": packed(),
        }

    def values(self) -> dict[str, Any]:
        scalar = {"scale": np.array(2, "<f4"), "none": np.zeros((0, 4), "<i8")}
        return {"small": {"weights": WEIGHTS, "norm": NORM}, "every dtype": EVERY, "scalar and empty": scalar}

    def damaged(self) -> dict[str, bytes]:
        whole = self.samples()["small"]
        return {
            "another magic": b"ACMA" + whole[4:],
            "cut in the values": whole[:-20],
            "a flipped value": whole.replace(WEIGHTS.tobytes(), (WEIGHTS + 1).tobytes()),
            "an unknown dtype": whole.replace(b"\7\0\0\2weights", b"\7\0\xff\2weights"),
            "two tensors of one name": packed(("norm", 1, NORM), ("norm", 1, NORM)),
        }


class TestPairs(RefinementSuite):
    container = "acme.pairs"

    def samples(self) -> dict[str, bytes]:
        stray = packed(MARK, ("w.codes", 5, CODES), ("w.scale", 0, SCALE[:1]), ("norm", 1, NORM))
        return {"pair": packed(("w.codes", 5, CODES), ("w.scale", 0, SCALE), ("norm", 1, NORM), MARK), "stray": stray}

    def values(self) -> dict[str, Any]:
        return {"pair": {"w": CODES * SCALE[:, None], "norm": NORM}, "stray": {"norm": NORM}}

    def unreadable(self) -> dict[str, Any]:
        return {"stray": {"w"}}

    def damaged(self) -> dict[str, bytes]:
        return {"codes without a scale": packed(MARK, ("w.codes", 5, CODES))}

    def undeclared(self) -> dict[str, bytes]:
        return {"no mark": packed(("w.codes", 5, CODES), ("w.scale", 0, SCALE))}


class TestRows(CodecSuite):
    codec = "acme.rows"
    tolerance = 0.01

    def cases(self) -> dict[str, Any]:
        values = np.random.default_rng(0).standard_normal((6, 10), np.float32)
        spec = TensorSpec(name="w", shape=values.shape, dtype="f32")
        pair = (TensorSpec(name="w", shape=CODES.shape, dtype="f32"), {}, {"codes": CODES, "scale": SCALE})
        return {"normal": (spec, {}, values), "zeros": (spec, {}, 0 * values), "stored": pair}


class TestRuns(ByteCodecSuite):
    codec = "acme.runs"

    def cases(self) -> dict[str, Any]:
        contents = {"runs": b"aaab" * 20, "long runs": bytes(1000) + b"\1" * 257, "one byte": b"x", "empty": b""}
        return {name: (content, {}) for name, content in contents.items()}


class TestMemory(BackendSuite):
    backend = "acme.memory"


class TestMemoryOfRows(BackendSuite):
    backend = "acme.memory"

    def cases(self) -> dict[str, Any]:
        return {"rows": (CodecSpec("acme.rows"), np.random.default_rng(0).standard_normal((24, 64), np.float32))}
