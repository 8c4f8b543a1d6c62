"""The conformance kit on directories, and on the codecs that only they use."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache as once
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from npydir_samples import int8, make
from squish_npydir.tiers import cache
from squish_testing import CodecSuite, ContainerSuite

from squish_core.api import TensorSpec

pytestmark = pytest.mark.alone


@once
def small() -> Path:
    rng = np.random.default_rng(0)
    four = {
        "q4a": rng.integers(0, 256, (4, 32)).astype(np.uint8), "shape": (2, 2, 64),
        **{suffix: rng.random((4, 2), np.float32) for suffix in ("s4a", "z4a")},
    }  # fmt: skip
    passed = {"pt": np.ones((3, 5), np.float16), "shape": (3, 5)}
    scalar = {"pt": np.ones((), np.float16), "shape": ()}
    return make(Path(tempfile.mkdtemp()) / "m", {"a": int8(), "b.four": four, "norm": passed, "scalar": scalar})


@once
def with_panels() -> Path:
    files = {"q4": np.zeros((18, 32), np.uint8), "s4": np.ones((18, 1), np.float32), "shape": (18, 64)}
    folder = make(Path(tempfile.mkdtemp()) / "m", {"a": files, "norm": {"pt": np.ones(8, np.float16), "shape": (8,)}})
    cache.build(folder, "panels")
    return folder


@once
def damaged(how: str) -> Path:
    folder = Path(tempfile.mkdtemp()) / "m"
    shutil.copytree(small(), folder)
    array = folder / "tensors" / "a__q.npy"
    array.unlink() if how == "missing" else array.write_bytes(array.read_bytes()[:-5])
    return folder


class TestNpyDir(ContainerSuite):
    container = "npydir"
    listed = True

    def samples(self) -> dict[str, Path]:
        return {"small": small(), "panels": with_panels()}

    def values(self) -> dict[str, Any]:
        files = int8()
        ones = np.ones((3, 5), np.float16)
        return {
            "small": {"a": files["q"] * files["s"][:, None], "norm": ones, "scalar": np.ones((), np.float16)},
            "panels": {"norm": np.ones(8, np.float16)},
        }

    def damaged(self) -> dict[str, Path]:
        return {"an array is missing": damaged("missing"), "an array is cut short": damaged("cut")}


class TestInt3(CodecSuite):
    codec = "npydir.int3"

    def cases(self) -> dict[str, Any]:
        rng = np.random.default_rng(0)
        cases: dict[str, Any] = {}
        for label, shape, group_size in (("groups", (8, 64), 16), ("rows", (4, 32), 0), ("stack", (2, 4, 32), 8)):
            grid = (*shape[:-1], shape[-1] // (group_size or shape[-1]))
            parts = {
                "data": rng.integers(0, 256, shape).astype(np.uint8), "scale": rng.random(grid, np.float32),
                "offset": rng.standard_normal(grid, np.float32),
            }  # fmt: skip
            cases[label] = (TensorSpec(name="w", shape=shape, dtype="f32"), {"group_size": group_size}, parts)
        return cases


class TestSqint2(CodecSuite):
    codec = "npydir.sqint2"

    def cases(self) -> dict[str, Any]:
        rng, spec = np.random.default_rng(0), TensorSpec(name="w", shape=(8, 32), dtype="f32")
        parts = {
            "data": rng.integers(0, 256, (8, 8)).astype(np.uint8),
            "scale": rng.random((8, 2), np.float32), "offset": rng.random((8, 2), np.float32), "meta": np.zeros(16),
        }  # fmt: skip
        unrotated = {"group_size": 16, "rank": 0, "nonzero": 0, "left_start": -1, "right_start": -1}
        rotated = {**unrotated, "rank": 2, "nonzero": 3, "left_start": 1, "right_start": 2}
        more = {
            "left": rng.random((8, 2)).astype(np.float16), "right": rng.random((2, 32)).astype(np.float16),
            "rows": np.array([0, 7, 7], np.int32), "columns": np.array([1, 31, 31], np.int32),
            "values": np.ones(3, np.float16),
        }  # fmt: skip
        return {"plain": (spec, unrotated, parts), "rotated": (spec, rotated, {**parts, **more})}
