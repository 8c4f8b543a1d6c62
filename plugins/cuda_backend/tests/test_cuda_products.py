"""Products are within the error that their way of preparing x admits, whatever the layout and the operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from squish_cuda import products, weights
from stored_tensors import DEVICE, LAYOUTS, every_layout, stored

from squish_core.api import CodecSpec

ERRORS = {"int16": 1e-4, "int8": 2e-2, "f32": 1e-6}


def random_x(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Rows of x of different sizes."""
    chance = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, columns, generator=chance) * torch.logspace(-3, 3, rows)[:, None]).to(DEVICE)


def error(y: torch.Tensor, x: torch.Tensor, values: Any) -> float:
    """The largest error, relative to the largest product of its row."""
    exact = x.double().cpu().numpy() @ np.asarray(values, np.float64).T
    with np.errstate(all="ignore"):
        return float((np.abs(y.double().cpu().numpy() - exact) / np.abs(exact).max(1, keepdims=True)).max())


WAYS = ("q4_0", "q6_k", "GPTQ", "MXFP4", "NF4", "FP8", "iq3_s", "tq1_0")
"""A layout of each way to multiply."""


@pytest.mark.parametrize(
    ("name", "activations"),
    [*((name, "int16") for name in every_layout()), *((name, way) for name in WAYS for way in ("int8", "f32"))],
)
def test_products_of_one_row(name: str, activations: str) -> None:
    tensor = stored(every_layout()[name], (24, 512))
    weight = weights.load(tensor.bound, DEVICE)
    x = random_x(1, 512)
    assert error(products.linear(weight, x, activations=activations), x, tensor.numpy()) < ERRORS[activations]


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 17, 130])
@pytest.mark.parametrize("name", ["q4_0", "q6_k", "GPTQ", "act-order", "FP8 in blocks"])
def test_products_of_several_rows(name: str, rows: int) -> None:
    tensor = stored(every_layout()[name], (24, 256))
    weight = weights.load(tensor.bound, DEVICE)
    x = random_x(rows, 256)
    assert error(products.linear(weight, x), x, tensor.numpy()) < ERRORS["int16"]


@pytest.mark.parametrize("codec", every_layout().values(), ids=every_layout())
def test_tiles_of_any_layout(codec: CodecSpec) -> None:
    tensor = stored(codec, (16, 256))
    weight = weights.load(tensor.bound, DEVICE)
    x, values = random_x(5, 256).double(), torch.from_numpy(np.array(tensor.numpy())).double().to(DEVICE)
    y = products.linear(weight, x.float()).double()
    # two bf16 leave out 2 ** -17 of a number, and the product of both remainders
    assert ((y - x @ values.T).abs() <= 2.0**-15 * (x.abs() @ values.abs().T)).all()


@pytest.mark.parametrize("rows", [1, 6, 200])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
def test_results_have_the_dtype_of_x_and_a_bias_is_added(dtype: torch.dtype, rows: int) -> None:
    tensor = stored(CodecSpec("ggml.q4_k"), (40, 512))
    weight = weights.load(tensor.bound, DEVICE)
    x = (random_x(rows, 512) / 1000).to(dtype)
    bias = torch.randn(40, generator=torch.Generator().manual_seed(1)).to(DEVICE, dtype)
    y = products.linear(weight, x, bias)
    exact = x.double() @ torch.from_numpy(np.array(tensor.numpy())).double().to(DEVICE).T + bias.double()
    assert y.dtype == dtype
    steps = 2.0 ** (-8 if dtype == torch.bfloat16 else -11)
    assert (
        (y.double() - exact).abs().amax(1) <= (2 if rows <= products.SOME else 8) * steps * exact.abs().amax(1)
    ).all()


def test_x_may_have_any_strides_and_axes() -> None:
    weight = weights.load(stored(CodecSpec("ggml.q4_0"), (8, 64)).bound, DEVICE)
    for shape in ((64, 3), (64, 9)):
        x = torch.randn(*shape, device=DEVICE).T
        assert torch.equal(products.linear(weight, x), products.linear(weight, x.contiguous()))
    x = torch.randn(2, 2, 64, device=DEVICE)
    assert torch.equal(products.linear(weight, x).reshape(4, 8), products.linear(weight, x.reshape(4, 64)))
    assert products.linear(weight, x[:0]).shape == (0, 2, 8)


def test_a_row_of_zeros_gives_zeros() -> None:
    weight = weights.load(stored(CodecSpec("ggml.q4_1"), (8, 64)).bound, DEVICE)
    assert not products.linear(weight, torch.zeros(1, 64, device=DEVICE)).any()


@pytest.mark.parametrize("columns", [36, 100, 320])
def test_rows_need_not_fill_runs(columns: int) -> None:
    tensor = stored(CodecSpec("affine", {"bits": 4, "group_size": 4, "offset": "bias"}), (20, columns))
    weight = weights.load(tensor.bound, DEVICE)
    for rows in (1, 6):
        x = random_x(rows, columns)
        assert error(products.linear(weight, x), x, tensor.numpy()) < ERRORS["int16"]


@pytest.mark.parametrize("tokens", [0, 1, 5, 40, 150])
@pytest.mark.parametrize("name", ["q4_0", "MXFP4", "NVFP4"])
def test_experts_are_those_of_each_token(name: str, tokens: int) -> None:
    tensor = stored(every_layout()[name], (4, 24, 64))
    weight, values = weights.load(tensor.bound, DEVICE), tensor.numpy()
    chance = torch.Generator().manual_seed(tokens)
    x, ids = torch.randn(tokens, 64, generator=chance), torch.randint(0, 4, (tokens,), generator=chance)
    ids[ids == 2] = 3  # an expert without tokens
    y = products.experts(weight, x.to(DEVICE), ids.to(DEVICE)).cpu()
    exact = np.einsum("ti,toi->to", x.double().numpy(), np.asarray(values, np.float64)[ids.numpy()])
    assert y.shape == (tokens, 24)
    if tokens:
        assert np.abs(y.numpy() - exact).max() < 1e-4 * np.abs(exact).max()


def test_operations_copy_nothing_from_the_host() -> None:
    copies = pytest.importorskip("torch.utils._python_dispatch")

    class Seen(copies.TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: set[str] = set()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.add(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    weight = weights.load(stored(LAYOUTS["act-order"], (16, 64)).bound, DEVICE)
    stack = weights.load(stored(CodecSpec("ggml.q4_0"), (3, 16, 64)).bound, DEVICE)
    ids = torch.arange(40, device=DEVICE) % 3
    arguments = [torch.randn(rows, 64, device=DEVICE) for rows in (1, 9, 140)]
    with Seen() as seen:
        for x in arguments:
            products.linear(weight, x)
        products.embed(weight, ids)
        products.experts(stack, arguments[2][:40], ids)
    assert not seen.names & {"lift_fresh", "_local_scalar_dense", "item", "nonzero", "_to_copy", "_unique2"}
