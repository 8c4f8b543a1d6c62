"""The core's kit: what every backend must do, with NumPy arrays that are copied to the device and back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from squish_testing import BackendSuite
from stored_tensors import DEVICE, every_layout, stored

from squish_core.api import CodecSpec, UsageError

SHAPE = (24, 256)


class TestCuda(BackendSuite):
    backend = "cuda"
    tolerance = 1e-4
    resident_rows = 64

    def cases(self) -> Mapping[str, tuple[CodecSpec, np.ndarray]]:
        """Codecs that encode."""
        matrix = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
        affine = {"bits": 4, "group_size": 64, "offset": "bias"}
        codecs = {"q4_0": CodecSpec("ggml.q4_0"), "affine": CodecSpec("affine", affine), "mxfp4": CodecSpec("mx")}
        return {name: (codec, matrix) for name, codec in codecs.items()}


def test_regions_are_those_of_the_codec() -> None:
    for shape in (SHAPE, (3, 8, 256)):
        tensor = stored(every_layout()["q4_k"], shape)
        weight, values = tensor.load("cuda", op="dense"), tensor.numpy()
        for region in (np.s_[2:5], np.s_[1:2, 3:7], np.s_[:, 4:4]):
            assert np.array_equal(weight.dense(region=region), values[region])
        assert weight.dense(dtype="f16").dtype == np.float16


def test_tensors_of_the_device_stay_there() -> None:
    weight = stored(every_layout()["q4_0"], SHAPE).load("cuda")
    x, ids = torch.randn(2, 256, device=DEVICE), torch.tensor([3, 1], device=DEVICE)
    assert torch.equal(weight.linear(x).cpu(), torch.from_numpy(weight.linear(x.cpu().numpy())))
    assert torch.equal(weight.embed(ids).cpu(), torch.from_numpy(weight.embed(ids.cpu().numpy())))
    stack = stored(every_layout()["q4_0"], (4, *SHAPE)).load("cuda")
    assert torch.equal(stack.experts(x, ids).cpu(), torch.from_numpy(stack.experts(x.cpu().numpy(), ids.cpu().numpy())))
    with pytest.raises(UsageError):
        weight.experts(x, ids)


@pytest.mark.parametrize("activations", ["int8", "f32"])
def test_options_prepare_x(activations: str) -> None:
    tensor = stored(every_layout()["q4_0"], SHAPE)
    x = np.random.default_rng(0).standard_normal((1, 256), np.float32)
    exact = x @ tensor.numpy().T
    y = tensor.load(f"cuda:activations={activations}").linear(x)
    assert np.abs(y - exact).max() < {"int8": 2e-2, "f32": 1e-5}[activations] * np.abs(exact).max()
