"""The operations `torch.ops.squish`: checked by torch, compiled without a break, equal on every path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import squish_torch
import torch
from squish_torch import ops, weights
from tiny_models import IDS, converted, tiny_llama
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode

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


class Calls(TorchDispatchMode):
    """Records which operations are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_modules_call_the_operation_where_torch_looks_on(module: Any) -> None:
    x = torch.randn(3, 64)
    expected = module(x)
    with Calls() as calls:
        y = module(x)
    assert torch.equal(y, expected)
    assert calls.names == ["squish.linear.default"]
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        assert module(fake.from_tensor(x)).shape == (3, 24)
    assert "squish.linear" in str(make_fx(module)(x).graph)


def test_bf16_products_of_many_rows_are_torchs_own_where_they_are_allowed(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "multiplies_bf16", lambda: True)
    monkeypatch.setattr(ops, "PANEL", 5 * 64)
    x = torch.randn(2, weights.PANEL_ROWS // 2, 64, dtype=torch.bfloat16)
    lossy = squish_torch.CompressedLinear(module.description, backend="cpu:activations=bf16,repack=rows")
    lossy.load_state_dict(module.state_dict())
    assert torch.equal(lossy(x), x @ module.dequantize(torch.bfloat16).T)
    exact = (x.float() @ module.dequantize().T).to(torch.bfloat16)
    assert torch.equal(module(x), exact)


def test_a_model_compiles_without_a_break_and_says_the_same(tmp_path: Path) -> None:
    path = converted(tiny_llama(tmp_path / "hf"), tmp_path / "m.gguf", ["q4_1", "*norm*=keep", "*embed*=q8_0"])
    model = squish_torch.from_pretrained(path)
    compiled = torch.compile(model.forward, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch.no_grad():
        for length in (8, 5, 7):
            ids = IDS[:, :length]
            eager, fast = model(ids, use_cache=False).logits, compiled(ids, use_cache=False).logits
            assert torch.allclose(eager, fast, atol=1e-4)
