"""The conformance kit on the container and its codecs."""

from __future__ import annotations

import importlib.util
import io
import random
import sys
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from squish_testing import CodecSuite, ContainerSuite

from squish_core.api import TensorSpec

pytestmark = pytest.mark.alone


def _samples(sq: Any) -> dict[str, tuple[bytes, dict[str, np.ndarray]]]:
    """Sample -> the file, and the values of tensors by name."""
    rng = random.Random(1)
    spool = io.BytesIO()
    with zipfile.ZipFile(spool, "w") as archive:
        archive.writestr(zipfile.ZipInfo("Manifest.json"), b"{}")
    mixed = [
        sq.int4(rng, 6, 8, 8, name="model.layers.0.a"), sq.int2(rng, 6, 8, 8, name="model.layers.0.b"),
        sq.tcaw(rng, 5, 70, name="model.layers.0.c"), sq.npcl(rng, (6,), 2, name="model.layers.0.d"),
    ]  # fmt: skip
    masked = [sq.int4(rng, 8, 8, 4, keep=[1, 0, 0, 1]), sq.npcl(rng, (8, 8), keep=[0, 1, 1, 1]), sq.npcl(rng, (8,))]
    outside = [sq.npcl(rng, (10, 4), name="embed")]
    large = [sq.npcl(rng, (64, 64), name="model.layers.0.a"), sq.int4(rng, 64, 64, name="model.layers.0.b")]
    files = {
        "mixed": sq.build([mixed], outside, names=True),
        "masked": sq.build([masked], side=4),
        "draft": sq.build([[sq.int4(rng, 4, 4)]], draft=[[sq.int4(rng, 4, 4, 4)]]),
        "coreml": sq.build([[sq.npcl(rng, (4, 4))]], archive=spool.getvalue()),
        "plain": sq.build([[sq.int4(rng, 3, 5)], [], [sq.npcl(rng, ())]]),
        "large": sq.build([large], names=True),
    }
    values = {
        "mixed": {tensor.name: tensor.values() for tensor in (*mixed, *outside)},
        "large": {tensor.name: tensor.values() for tensor in large},
    }
    return {name: (data, values.get(name, {})) for name, data in files.items()}


class TestSquizd(ContainerSuite):
    container = "squizd"
    read_ahead = 2048  # table entries and masks are read at open: ids, tensor-level pairs, sums of the header

    def samples(self) -> dict[str, bytes]:
        return {name: data for name, (data, _) in _built().items()}

    def values(self) -> dict[str, Any]:
        return {name: values for name, (_, values) in _built().items() if values}

    def damaged(self) -> dict[str, bytes]:
        whole = self.samples()["mixed"]
        return {
            "cut": whole[: len(whole) // 2],
            "another magic": b"SQZE" + whole[4:],
            "a block of another kind": whole.replace(b"TCAW", b"TCAX"),
        }


@cache
def _built() -> dict[str, tuple[bytes, dict[str, np.ndarray]]]:
    return _samples(_builder())


def _builder() -> Any:
    """The builder of conftest.py, which samples need before there are fixtures."""
    spec = importlib.util.spec_from_file_location("squizd_builder", Path(__file__).with_name("conftest.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["squizd_builder"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _values(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


class TestInt4(CodecSuite):
    codec = "squizd.int4"
    bits = 4
    tolerance = 0.2

    def cases(self) -> dict[str, Any]:
        cases: dict[str, Any] = {}
        for shape, group in (((6, 64), 32), ((6, 10), 4), ((5, 7), 3), ((5, 7), 35), ((2, 3, 8), 8), ((0, 4), 4)):
            spec = TensorSpec(name="w", shape=shape, dtype="f32")
            cases[f"{shape}/{group}"] = (spec, {"group_size": group}, _values(shape))
        spec = TensorSpec(name="w", shape=(5, 7), dtype="f32")
        cases["searched"] = (spec, {"group_size": 5, "search": "mse"}, _values((5, 7)))
        codes = np.arange(-(-35 * self.bits // 8), dtype=np.uint8)
        entry = np.array([[7, 9, *np.array([0.5, -1], np.float32).view(np.uint32)]], np.uint32)
        cases["whole"] = (spec, {}, {"codes": codes, "table": entry})
        return cases


class TestInt2(TestInt4):
    codec = "squizd.int2"
    bits = 2
    tolerance = 0.7


class TestTcaTbe(CodecSuite):
    codec = "tca_tbe"

    def cases(self) -> dict[str, Any]:
        patterns = np.arange(1 << 12, dtype=np.uint16) * 16 + 5
        patterns[(patterns >> 7 & 255) == 255] = 5  # NaN: compared bit by bit in the tests of reading
        cases: dict[str, Any] = {}
        for shape in ((64, 64), (32, 128), (4, 8, 128)):
            values = patterns.view(ml_dtypes.bfloat16).reshape(shape)
            spec = TensorSpec(name="w", shape=shape, dtype="bf16")
            codec = self.registry.codec_type("tca_tbe")
            cases[str(shape)] = (
                spec,
                codec.from_params({}).fit_params(lambda values=values: iter([values]), spec),
                values,
            )
        return cases
