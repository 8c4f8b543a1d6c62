"""The modules of squish-torch on a device that has a form for their weights: the CPU stands for it, interpreted."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import Any

import pytest
import torch
from squish_cuda import launch
from squish_torch import CompressedEmbedding, CompressedLinear, device_forms
from squish_torch.experts import CompressedExperts, CompressedStack
from squish_torch.modules import autocast, take_forms
from stored_tensors import DEVICE, every_layout, stored
from torch import nn
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode

from squish_core.api import CodecSpec

OPS = torch.ops.squish
SHAPE = (24, 256)
NAMES = ("q4_0", "q2_k", "q4_k", "GPTQ", "act-order", "NVFP4", "NF4", "iq2_xxs")


@pytest.fixture(autouse=True)
def _cpu_is_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(device_forms.BACKENDS, DEVICE.type, "cuda")


def linear_of(name: str, **options: Any) -> Any:
    """A module whose parts are still the stored ones."""
    return CompressedLinear.of(stored(every_layout()[name], SHAPE), **options)


def there(module: Any) -> Any:
    """The module on the device."""
    return module.to(DEVICE)


def random_x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, SHAPE[1], generator=torch.Generator().manual_seed(0)).to(DEVICE)


def close(y: torch.Tensor, exact: torch.Tensor) -> bool:
    return bool((y.cpu().double() - exact.cpu().double()).abs().max() <= 2e-4 * exact.abs().max())


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.cpu(), other.cpu())


@pytest.mark.parametrize("name", NAMES)
def test_modules_compute_what_their_values_do(name: str) -> None:
    module = linear_of(name)
    values = module.dequantize()
    there(module)
    assert equal(module.dequantize(), values)
    for rows in (1, 6, 130):
        assert close(module(random_x(rows)), random_x(rows).cpu() @ values.T)
    embedding = there(CompressedEmbedding.of(stored(every_layout()[name], SHAPE)))
    ids = torch.tensor([[5, 0], [23, 5]])
    assert equal(embedding(ids.to(DEVICE)), values[ids])


def test_a_stack_runs_its_experts() -> None:
    stack = CompressedStack.of(stored(every_layout()["q4_0"], (4, 24, 64)))
    values = stack.dequantize()
    x, ids = torch.randn(5, 64), torch.tensor([3, 0, 3, 1, 2])
    assert close(there(stack)(x.to(DEVICE), ids.to(DEVICE)), torch.einsum("ti,toi->to", x, values[ids]))


EXPERTS = ("q4_0", "3 bits", "GPTQ", "NVFP4", "FP8")
WIDTH = 64
TOKENS = 9
"""So many tokens run as tiles, which the interpreter does in a fraction of the time of single rows."""


def experts_of(name: str, count: int = 3) -> Any:
    """The experts of a layer, and their weights by projection."""
    modules = [
        tuple(CompressedLinear.of(stored(every_layout()[name], (WIDTH, WIDTH), 3 * each + n)) for n in range(3))
        for each in range(count)
    ]
    values = [torch.stack([group[n].dequantize() for group in modules]) for n in range(3)]
    return CompressedExperts(modules, nn.SiLU()), values


def choices(tokens: int = TOKENS, count: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows of x, the experts of each (one of them does not exist), and their weights."""
    chance = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, WIDTH, generator=chance)
    ids = torch.stack([torch.randperm(count, generator=chance)[:2] for _ in range(tokens)])
    ids[0, 1] = count
    return x, ids, torch.rand(tokens, 2, generator=chance)


def sum_of(values: list[torch.Tensor], x: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """The weighted sum of experts, in f64."""
    gate, up, down = (each.double() for each in values)
    rows = []
    for token in range(len(x)):
        chosen = [(int(i), share) for i, share in zip(ids[token], shares[token].double()) if i < len(gate)]
        u = x[token].double()
        rows.append(sum(share * (down[i] @ (nn.functional.silu(gate[i] @ u) * (up[i] @ u))) for i, share in chosen))
    return torch.stack(rows)


@pytest.mark.parametrize(("name", "tokens"), [*((name, TOKENS) for name in EXPERTS), ("3 bits", 1)])
def test_experts_run_as_stacks(name: str, tokens: int) -> None:
    experts, values = experts_of(name)
    there(experts)
    assert len(experts._stacks) == 3
    x, ids, shares = choices(tokens)
    with Operations() as seen:
        y = experts(x.to(DEVICE), ids.to(DEVICE), shares.to(DEVICE))
    assert (y.double().cpu() - sum_of(values, x, ids, shares)).abs().max() < 5e-4 * y.abs().max()
    assert "unique" not in seen.text
    assert "item" not in seen.text
    assert equal(experts.get_submodule("2").up_proj.dequantize(), values[1][2])
    size = sum(buffer.numel() * buffer.element_size() for buffer in experts.buffers())
    stored_size = sum(part.numel() for each in experts.modules() if hasattr(each, "parts") for part in each.parts)
    assert size <= 1.05 * stored_size + 4096


class Operations(TorchDispatchMode):
    """The names of the operations that run."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.text += f" {func.overloadpacket.__name__}"
        return func(*args, **(kwargs or {}))


def test_experts_that_differ_run_one_by_one() -> None:
    modules = [
        tuple(CompressedLinear.of(stored(every_layout()[name], (WIDTH, WIDTH), n)) for n in range(3))
        for name in ("q4_0", "GPTQ")
    ]
    values = [torch.stack([group[n].dequantize() for group in modules]) for n in range(3)]
    experts = there(CompressedExperts(modules, nn.SiLU()))
    assert not experts._stacks
    x, ids, shares = choices(count=2)
    y = experts(x.to(DEVICE), ids.to(DEVICE), shares.to(DEVICE))
    assert (y.double().cpu() - sum_of(values, x, ids, shares)).abs().max() < 5e-4 * y.abs().max()


@pytest.mark.parametrize("copied", ["deepcopy", "pickle", "state", "back and forth"])
def test_copies_of_experts_are_stacks(copied: str, monkeypatch: pytest.MonkeyPatch) -> None:
    experts, _ = experts_of("3 bits", 2)
    other = copy.deepcopy(experts)
    there(experts)
    arguments = [each.to(DEVICE) for each in choices(count=2)]
    y = experts(*arguments)
    if copied == "deepcopy":
        other = copy.deepcopy(experts)
    elif copied == "pickle":
        other = pickle.loads(pickle.dumps(experts))
    elif copied == "state":
        for module in other.modules():
            for part in getattr(module, "parts", ()):
                part.zero_()
        there(other)
        assert not other(*arguments).any()
        other.load_state_dict(experts.state_dict())
    else:
        other = experts
        with monkeypatch.context() as patch:
            patch.delitem(device_forms.BACKENDS, DEVICE.type)
            other.to("cpu")
        assert not list(other.buffers())
        there(other)
    assert len(other._stacks) == 3
    assert torch.equal(other(*arguments), y)
    assert other.state_dict().keys() == experts.state_dict().keys()
    if other is not experts:
        own = {buffer.data_ptr() for buffer in other.buffers()}
        assert not own & {buffer.data_ptr() for buffer in experts.buffers()}


def test_gradients_flow_through_experts() -> None:
    experts, values = experts_of("q4_0")
    x, ids, shares = choices()
    exact = x.double().requires_grad_()
    chance = torch.Generator().manual_seed(1)
    gradient = torch.randn(TOKENS, WIDTH, generator=chance)
    sum_of(values, exact, ids, shares).backward(gradient.double())
    there(experts)
    u = x.to(DEVICE).requires_grad_()
    experts(u, ids.to(DEVICE), shares.to(DEVICE)).backward(gradient.to(DEVICE))
    assert (u.grad.cpu().double() - exact.grad).abs().max() < 2e-3 * exact.grad.abs().max()
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        assert experts._stack("up_proj", autocast(u), ids[:, 0].to(DEVICE)).dtype == torch.bfloat16


def test_experts_compile_as_one_graph() -> None:
    experts = there(experts_of("q4_0", 2)[0])
    arguments = [each.to(DEVICE) for each in choices(count=2)]
    fast = torch.compile(experts, fullgraph=True, backend="aot_eager")
    assert torch.equal(fast(*arguments), experts(*arguments))


@pytest.mark.parametrize("name", NAMES)
def test_only_the_form_is_on_the_device(name: str) -> None:
    module = there(linear_of(name))
    size = sum(buffer.numel() * buffer.element_size() for buffer in module.buffers())
    assert not list(module.parameters())
    assert size <= 1.05 * sum(part.numel() for part in module.parts) + 4096
    assert module.arrays
    assert module.half().arrays[0].dtype == torch.int32


@pytest.mark.parametrize("name", NAMES)
def test_a_state_has_the_stored_parts(name: str) -> None:
    module = linear_of(name)
    before = module.state_dict()
    after = there(module).state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], before[key]) for key in before)


def test_a_state_that_is_loaded_reaches_the_device() -> None:
    module, other = linear_of("q4_0"), linear_of("q4_0")
    other.weight.data.copy_(torch.flip(other.weight.data, (0,)))
    values = other.dequantize()
    there(module).load_state_dict(other.state_dict())
    assert module.arrays
    assert equal(module.dequantize(), values)


def test_modules_come_back_with_their_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    module = linear_of("q4_k")
    parts = module.parts
    there(module)
    monkeypatch.delitem(device_forms.BACKENDS, DEVICE.type)
    module.to("cpu")
    assert all(here is before for here, before in zip(module.parts, parts, strict=True))
    assert not module.arrays
    assert not list(module.buffers())


def test_tied_modules_share_the_form() -> None:
    linear, embedding = linear_of("q4_0"), CompressedEmbedding.of(stored(every_layout()["q4_0"], SHAPE))
    embedding.weight = linear.weight
    model = there(nn.ModuleList([linear, embedding]))
    assert all(one is other for one, other in zip(linear.arrays, embedding.arrays, strict=True))
    assert set(model.state_dict()) == {f"{path}.{key}" for path in "01" for key in ("weight", "_extra_state")}


def test_parts_that_a_loader_put_on_the_device_become_the_form() -> None:
    linear, embedding = linear_of("q4_0"), CompressedEmbedding.of(stored(every_layout()["q4_0"], SHAPE))
    embedding.weight = linear.weight
    values = linear.dequantize()
    linear.weight = embedding.weight = nn.Parameter(linear.weight.to(DEVICE), requires_grad=False)
    take_forms(nn.ModuleList([linear, embedding]))
    assert all(one is other for one, other in zip(linear.arrays, embedding.arrays, strict=True))
    assert equal(linear.dequantize(), values)


@pytest.mark.parametrize("copied", ["deepcopy", "pickle"])
def test_copies_are_on_the_device(copied: str) -> None:
    module = there(linear_of("q4_k"))
    if copied == "deepcopy":
        other = copy.deepcopy(module)
    else:
        file = io.BytesIO()
        torch.save(module, file)
        assert len(file.getvalue()) < 1.05 * sum(part.numel() for part in module.parts) + 8192
        file.seek(0)
        other = torch.load(file, weights_only=False)
    assert other.arrays[0].data_ptr() != module.arrays[0].data_ptr()
    assert torch.equal(other(random_x(1)), module(random_x(1)))


def test_gradients_flow_to_x_and_to_the_bias() -> None:
    source = linear_of("q4_0")
    module = CompressedLinear(source.description, bias=True)
    module.load_state_dict({**source.state_dict(), "bias": torch.randn(SHAPE[0])})
    values = source.dequantize()
    there(module)
    x = random_x(3).requires_grad_()
    gradient = torch.randn(3, SHAPE[0], device=DEVICE)
    module(x).backward(gradient)
    assert close(x.grad, gradient.cpu() @ values)
    assert close(module.bias.grad, gradient.sum(0))
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        assert module(x).dtype == torch.bfloat16


def test_torch_finds_no_fault_with_the_operations() -> None:
    module = there(linear_of("q4_0"))
    about = (module.arrays, module._form_text)
    x, bias = random_x(3).requires_grad_(), torch.randn(SHAPE[0], device=DEVICE)
    opcheck(OPS.device_linear.default, (random_x(3), None, *about, False))
    opcheck(OPS.device_linear.default, (x, bias, *about, True))
    opcheck(OPS.device_embed.default, (torch.tensor([[1, 2]], device=DEVICE), *about, torch.float32))
    opcheck(OPS.device_dequantize.default, (*about, torch.bfloat16))
    opcheck(OPS.device_linear_gradient.default, (torch.randn(3, SHAPE[0], device=DEVICE), *about))
    stack = there(CompressedStack.of(stored(every_layout()["q4_0"], (3, 16, 64))))
    about, ids = (stack.arrays, stack._form_text), torch.tensor([2, 0, 2], device=DEVICE)
    opcheck(OPS.device_experts.default, (torch.randn(3, 64, device=DEVICE), ids, *about))
    opcheck(OPS.device_experts.default, (torch.randn(3, 64, device=DEVICE).requires_grad_(), ids, *about))
    opcheck(OPS.device_experts_gradient.default, (torch.randn(3, 16, device=DEVICE), ids, *about))


def test_a_module_compiles_as_one_graph() -> None:
    module = there(linear_of("q4_k"))
    fast = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert torch.equal(fast(random_x(1)), module(random_x(1)))


def test_a_named_backend_stays() -> None:
    assert not there(linear_of("q4_0", backend="numpy")).arrays
    assert there(linear_of("q4_0", backend="cuda:activations=f32")).arrays


def test_what_has_no_form_keeps_its_parts() -> None:
    codec = CodecSpec("affine", {"bits": 4, "axis": -2, "group_size": 8})
    module = CompressedLinear.of(stored(codec, SHAPE))
    values = module.dequantize()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        there(module)
    assert equal(module.dequantize(), values)
    assert not module.arrays


def test_an_absent_backend_is_one_warning_that_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr("squish_cuda.device.find_spec", lambda name: None)
    device_forms._is_available.cache_clear()
    module = linear_of("q4_0")
    values = module.dequantize()
    try:
        with pytest.warns(UserWarning, match="squish-cuda"):
            there(module)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            there(linear_of("q4_k"))
    finally:
        device_forms._is_available.cache_clear()
    assert equal(module.dequantize(), values)


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each x that is prepared."""
    from squish_cuda import products

    counted: list[int] = []

    def count(x: torch.Tensor, *arguments: Any) -> Any:
        counted.append(len(x))
        return launch.prepare(x, *arguments)

    monkeypatch.setattr(products, "prepare", count)
    return counted


def test_x_is_prepared_once_for_modules_that_share_it(prepared: list[int]) -> None:
    query, key, value = (there(linear_of(name)) for name in ("q4_0", "q4_k", "q6_k"))
    expected = [module(random_x(1)) for module in (query, key, value)]
    prepared.clear()
    x = random_x(1)
    found = [module(x) for module in (query, key, value)]
    assert len(prepared) == 2  # Q6_K has groups of 16 columns, and so other sums
    assert all(torch.equal(y, exact) for y, exact in zip(found, expected, strict=True))


def test_x_that_changes_is_prepared_again(prepared: list[int]) -> None:
    query, key = there(linear_of("q4_0")), there(linear_of("q4_k"))
    x = random_x(1)
    query(x)
    x.mul_(2)
    assert torch.equal(key(x), key(x.clone()))
    prepared.clear()
    x.data.mul_(2)  # unnoticed by torch: the same module again ends the sharing
    assert torch.equal(query(x), query(x.clone()))
    assert torch.equal(key(x), key(x.clone()))
