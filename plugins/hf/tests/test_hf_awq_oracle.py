"""AWQ for GEMV, and for its faster kernel, whose weights GPTQModel packs while the test runs: a CPU cannot run them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest
from hf_samples import checkpoint

pytestmark = pytest.mark.oracle
KINDS = {"gemv": "gemv_awq:AwqGEMVLinear", "gemv_fast": "gemv_fast_awq:AwqGEMVFastLinear",
         "llm-awq": "gemv_fast_awq:LLMAwqLinear"}  # fmt: skip


def packed(where: str, weight: np.ndarray, scales: np.ndarray, zeros: np.ndarray, group: int) -> Any:
    """Runs in the peer: the tensors that a layer stores of a weight on the grid of these scales."""
    import importlib

    import torch

    module, _, name = where.partition(":")
    kind = getattr(importlib.import_module(f"gptqmodel.nn_modules.qlinear.{module}"), name)
    out, width = weight.shape
    linear = torch.nn.Linear(width, out, bias=False)
    linear.weight.data = torch.from_numpy(weight)
    layer = kind.__new__(kind)
    torch.nn.Module.__init__(layer)
    layer.bits, layer.group_size, layer.in_features, layer.out_features = 4, group, width, out
    layer.pack_dtype, layer.pack_factor = torch.int32, 8
    layer.pack(linear, torch.from_numpy(scales), torch.from_numpy(zeros))
    return {name: part.numpy() for name, part in layer.state_dict().items()}


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("version", KINDS)
def test_packed_codes_are_read(version: str, group: int, tmp_path: Path) -> None:
    rng, (out, width) = np.random.default_rng(0), (32, 1024)
    codes, zeros = rng.integers(0, 16, (out, width)), rng.integers(0, 16, (out, width // group)).astype(np.float32)
    scales = np.exp2(rng.integers(-6, 0, zeros.shape)).astype(np.float32)  # so that every product is exact
    expected = (codes - np.repeat(zeros, group, 1)) * np.repeat(scales, group, 1)
    peer = oracles.peer("transformers")
    stored = peer.run(
        packed, where=KINDS[version], weight=expected.astype(np.float32), scales=scales, zeros=zeros, group=group
    )
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": version}
    with checkpoint(tmp_path, config, **{f"a__{name}": part for name, part in stored.items()}) as file:
        assert (set(file), file.problems) == ({"a.weight"}, ())
        np.testing.assert_array_equal(file["a.weight"].numpy(), expected.astype(np.float32))
