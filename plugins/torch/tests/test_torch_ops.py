"""The operations `torch.ops.squish`: checked by torch, compiled without a break, equal on every path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import squish_torch
import torch
from tiny_models import IDS, converted, tiny_llama
from torch.library import opcheck

import squish_core as squish

OPS = torch.ops.squish


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("ops") / "w.zt"
    squish.save(path, {"w": np.random.default_rng(0).standard_normal((24, 64), np.float32)}, encode="q4_1")
    return squish_torch.CompressedLinear.of(squish.open(path)["w"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torch_finds_no_fault_with_the_operations(module: Any, dtype: torch.dtype) -> None:
    about = (module.parts, module.description, "")
    x = torch.randn(3, 64, dtype=dtype)
    opcheck(OPS.linear.default, (x, *about))
    opcheck(OPS.linear.default, (x.clone().requires_grad_(), *about))
    opcheck(OPS.embed.default, (torch.tensor([[1, 2]]), *about, dtype))
    opcheck(OPS.dequantize.default, (*about, dtype))
    opcheck(OPS.linear_gradient.default, (torch.randn(3, 24, dtype=dtype), *about))


def test_a_model_compiles_without_a_break_and_says_the_same(tmp_path: Path) -> None:
    path = converted(tiny_llama(tmp_path / "hf"), tmp_path / "m.gguf", ["q4_1", "*norm*=keep", "*embed*=q8_0"])
    model = squish_torch.from_pretrained(path)
    compiled = torch.compile(model.forward, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch.no_grad():
        for length in (8, 5, 7):
            ids = IDS[:, :length]
            eager, fast = model(ids, use_cache=False).logits, compiled(ids, use_cache=False).logits
            assert torch.allclose(eager, fast, atol=1e-4)
