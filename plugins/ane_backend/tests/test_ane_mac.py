"""Packages run by Core ML, which needs a Mac; on other systems coremltools checks them (`test_ane_oracle.py`)."""

import importlib.util
import sys

import numpy as np
import pytest
from ane_samples import FORMS
from squish_ane.ane.runtime import Model

import squish_core as squish

HERE = sys.platform == "darwin" and importlib.util.find_spec("coremltools") is not None
pytestmark = pytest.mark.skipif(not HERE, reason="needs macOS and coremltools")


NAMES = ["int4 blocks", "int8 channel", "palette", "sparse", "sparse palette", "sparse int8", "dense"]


@pytest.mark.parametrize("name", NAMES)
def test_core_ml_computes_with_our_packages(file_of, tmp_path, name):
    file, path = file_of(w=(*FORMS[name], (64, 64))), tmp_path / "made.mlpackage"
    squish.convert(file, path)
    x = np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32)
    with Model(path) as model:
        (result,) = model.predict({f"x_64_{'f32' if name == 'dense' else 'f16'}": x}).values()
    expected = x @ file["w"].numpy().astype(np.float32).T
    assert np.abs(result - expected).max() <= 1e-2 * np.abs(expected).max()
