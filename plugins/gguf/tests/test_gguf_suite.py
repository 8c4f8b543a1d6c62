"""The conformance kit on files that gguf-py wrote (tests/data/README.md)."""

from __future__ import annotations

import struct
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from squish_testing import ContainerSuite

import squish_core as squish

pytestmark = pytest.mark.alone

DATA = Path(__file__).parent / "data"


LARGE = np.arange(2048, dtype=np.float32).reshape(32, 64)


def gguf(tensors, numbers=()):
    """A GGUF file with f32 matrices and (key, u16) metadata."""
    out, offset = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(numbers)), 0
    for key, number in numbers:
        out += struct.pack("<Q", len(key)) + key.encode() + struct.pack("<IH", 2, number)
    for name, values in tensors.items():
        out += struct.pack("<Q", len(name)) + name.encode()
        out += struct.pack("<IQQIQ", 2, *values.shape[::-1], 0, offset)
        offset += values.nbytes
    return out + bytes(-len(out) % 32) + b"".join(values.tobytes() for values in tensors.values())


@cache
def large_set():
    """A set of two parts, each larger than the read-ahead."""
    folder = Path(tempfile.mkdtemp())
    for number, tensors in enumerate(({"one": LARGE}, {"two": -LARGE})):
        keys = (("split.no", number), ("split.count", 2), ("split.tensors.count", 2))
        (folder / f"large-{number + 1:05}-of-00002.gguf").write_bytes(gguf(tensors, keys))
    return folder


class TestGguf(ContainerSuite):
    container = "gguf"
    # GGUF does not state the length of its head; it is read in windows of at least 4 KiB.
    read_ahead = 4096
    mutations = 1500

    def samples(self):
        # Without the block codecs, a deep verify reports that it cannot decode.
        names = ["types", *(["blocks"] if "ggml.q4_k" in squish.registry().codecs else [])]
        large = gguf({"w": LARGE})  # more bytes than are read ahead
        return {**{name: (DATA / f"{name}.gguf").read_bytes() for name in names}, "large": large}

    def values(self):
        """The values make_golden.py drew for gguf-py."""
        rng = np.random.default_rng(0)
        kinds = {"f32": "float32", "f16": "float16", "f64": "float64", "i8": "int8", "i32": "int32"}
        types = {f"dense.{name}": rng.integers(-9, 9, (2, 3)).astype(kind) for name, kind in kinds.items()}
        return {"types": types, "large": {"w": LARGE}}

    def damaged(self):
        whole = (DATA / "types.gguf").read_bytes()
        return {
            "cut in the values": whole[:-40],
            "another version": whole[:4] + b"\x63" + whole[5:],
            "an unknown type": whole.replace(b"dense.i8\2\0\0\0", b"dense.i8\x09\0\0\0"),
            "too many tensors": whole[:8] + (6).to_bytes(8, "little") + whole[16:],
        }


class TestSplitSet(ContainerSuite):
    container = "gguf"
    read_ahead = 2 * 4096  # in each part
    mutations = 500

    def samples(self):
        return {"split": DATA / "split-00001-of-00002.gguf", "large": large_set() / "large-00001-of-00002.gguf"}

    def values(self):
        return {"split": {"one": np.arange(8, dtype=np.float32)}, "large": {"one": LARGE, "two": -LARGE}}

    def damaged(self):
        return {"a part alone": (DATA / "split-00001-of-00002.gguf").read_bytes()}


@pytest.mark.parametrize("name", ["types", "blocks"])
def test_golden_files_round_trip_byte_for_byte(name, tmp_path):
    squish.convert(DATA / f"{name}.gguf", tmp_path / "ours.gguf")
    assert (tmp_path / "ours.gguf").read_bytes() == (DATA / f"{name}.gguf").read_bytes()
