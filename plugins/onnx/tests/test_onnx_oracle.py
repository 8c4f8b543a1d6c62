"""onnx reads the same values from the same files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import squish_core as squish

pytestmark = pytest.mark.oracle
oracles = pytest.importorskip("oracles", reason="the peers of the repository are not on the path")
DATA = Path(__file__).parent / "data"


def initializers(path):
    import onnx
    from onnx import numpy_helper

    model = onnx.load(path)
    return {each.name: numpy_helper.to_array(each).tobytes() for each in model.graph.initializer}


@pytest.mark.parametrize("name", ["types", "external"])
def test_onnx_reads_the_same_values(name):
    expected = oracles.peer("onnxruntime").run(initializers, path=str(DATA / f"{name}.onnx"))
    with squish.open(DATA / f"{name}.onnx") as file:
        assert set(expected) == set(file)
        for tensor, data in expected.items():
            assert np.ascontiguousarray(file[tensor].numpy()).tobytes() == data, tensor
