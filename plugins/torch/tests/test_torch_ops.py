"""The operations `torch.ops.squish`: checked by torch, compiled without a break, equal on every path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import squish_torch
import torch
import transformers
from squish_torch import ops, weights
from tiny_models import IDS, converted, greedy, tiny_llama
from torch._dynamo.backends.debugging import aot_eager
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
    is_equal = module(x) == exact
    assert is_equal.float().mean() > 0.99  # sums in another order may round to the next number


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("model")
    path = converted(tiny_llama(folder / "hf"), folder / "m.gguf", ["q4_1", "*norm*=keep", "*embed*=q8_0"])
    return squish_torch.from_pretrained(path)


@pytest.fixture
def compilations() -> Iterator[Counter[str]]:
    """Counts the graphs that torch compiles."""
    torch._dynamo.reset()
    counts: Counter[str] = Counter()
    yield counts
    torch._dynamo.reset()


def compiled(model: Any, counts: Counter[str], **options: Any) -> Any:
    """A model's forward as one graph, run by the traced operations."""

    def backend(graph: Any, inputs: Any) -> Any:
        counts["graphs"] += 1
        return aot_eager(graph, inputs)

    return torch.compile(model.forward, fullgraph=True, backend=backend, **options)


def test_a_model_compiles_without_a_break_or_another_graph_for_other_lengths(
    model: Any, compilations: Counter[str]
) -> None:
    fast, graphs = compiled(model, compilations, dynamic=True), list[int]()
    with torch.no_grad():
        for length in (8, 5, 7):
            ids = IDS[0, :length].clone()[None]  # the strides of a slice would ask for another graph
            assert torch.allclose(model(ids, use_cache=False).logits, fast(ids, use_cache=False).logits, atol=1e-4)
            graphs.append(compilations["graphs"])
    assert graphs == graphs[:1] * 3


def test_tokens_with_a_static_cache_are_those_of_the_model_itself(model: Any, compilations: Counter[str]) -> None:
    fast = compiled(model, compilations, dynamic=False)
    number = 64
    cache = transformers.StaticCache(config=model.config, max_cache_len=IDS.shape[1] + number)
    tokens = IDS[0].tolist()
    with torch.no_grad():
        ids, start = IDS, 0
        for step in range(number):
            positions = torch.arange(start, start + ids.shape[1])
            step_of = model if step == 0 else fast
            out = step_of(ids, past_key_values=cache, position_ids=positions[None], use_cache=True)
            start += ids.shape[1]
            ids = out.logits[:, -1:].argmax(-1)
            tokens.append(int(ids))
    assert tokens == greedy(model, number)
    assert compilations["graphs"] <= 2
