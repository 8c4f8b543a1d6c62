"""Torch's own decoding: bit-equal to the codecs, on the CPU and, where there is one, on a GPU."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import squish_torch
import torch
from squish_torch import device_ops
from squish_torch.torch_decoder import GGML, decode_rows, is_decodable

import squish_core as squish

AFFINE = (
    "int4", "int8", "int4:group_size=64,offset=bias", "int2", "int4:offset=none,signed=true,group_size=32",
    "affine:bits=4,group_size=32,word=u32,offset=bias,scale_dtype=f32,offset_dtype=f32",
)  # fmt: skip


def module_of(folder: Path, encode: str, scale: float = 1.0) -> tuple[Any, torch.Tensor]:
    """A compressed module, and the values that the codec decodes."""
    values = np.random.default_rng(0).standard_normal((40, 512), np.float32) * np.float32(scale)
    squish.save(folder / "w.zt", {"w": values}, encode=encode)
    tensor = squish.open(folder / "w.zt")["w"]
    return squish_torch.CompressedLinear.of(tensor), torch.from_numpy(tensor.numpy(copy=True))


@pytest.mark.parametrize("encode", [*GGML, *AFFINE])
def test_values_are_those_of_the_codec_bit_by_bit(tmp_path: Path, encode: str) -> None:
    module, values = module_of(tmp_path, encode)
    assert is_decodable(module.description)
    assert torch.equal(decode_rows(module.parts, module.description, 0, 40), values)
    assert torch.equal(decode_rows(module.parts, module.description, 7, 9), values[7:9])
    half = device_ops.dequantize(module.parts, module.description, "", torch.bfloat16)
    assert torch.equal(half, values.to(torch.bfloat16))


@pytest.mark.parametrize("encode", ["q4_k", "int4", "iq4_nl"])
@pytest.mark.filterwarnings("ignore:.*decoded on the CPU")
def test_operations_without_kernels_agree_with_those_that_have_them(tmp_path: Path, encode: str) -> None:
    module, values = module_of(tmp_path, encode)
    about = (module.parts, module.description, "")
    x = torch.randn(2, 3, 512, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[5, 0], [39, 5]])
    assert torch.allclose(device_ops.linear(x, *about), module(x), atol=1e-3)
    assert torch.equal(device_ops.embed(ids, *about, torch.float32), values[ids])
    gradient = torch.randn(4, 40)
    assert torch.allclose(
        device_ops.linear_gradient(gradient, *about), torch.ops.squish.linear_gradient(gradient, *about), atol=1e-3
    )


def test_what_torch_cannot_decode_says_that_the_cpu_does(tmp_path: Path) -> None:
    module, values = module_of(tmp_path, "iq4_nl")
    assert not is_decodable(module.description)
    with pytest.warns(UserWarning, match=r"ggml\.iq4_nl is decoded on the CPU"):
        assert torch.equal(device_ops.dequantize(module.parts, module.description, "", torch.float32), values)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("encode", [*GGML, *AFFINE])
def test_a_gpu_gives_the_same(tmp_path: Path, encode: str) -> None:
    module, values = module_of(tmp_path, encode)
    x = torch.randn(3, 512)
    there = copy.deepcopy(module).to("cuda")
    assert torch.equal(there.dequantize().cpu(), values)
    assert torch.allclose(there(x.cuda()).cpu(), module(x), rtol=1e-3, atol=1e-2)
    assert torch.equal(there.to("cpu")(x), module(x))
