"""Compressed modules, row by row of what PyTorch does with modules."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import threading
import weakref
from pathlib import Path
from typing import Any

import accelerate
import numpy as np
import pytest
import squish_torch
import torch
from squish_torch import weights
from torch import nn
from torch.utils.data import DataLoader, Dataset

import squish_core as squish

ROWS, COLUMNS = 48, 256
ENCODINGS = ("q4_1", "q6_k", "iq4_nl", "int4", "int8:group_size=32")


def opened(folder: Path, encode: str, name: str = "w.zt") -> squish.Tensor:
    """A stored matrix."""
    values = np.random.default_rng(0).standard_normal((ROWS, COLUMNS), np.float32)
    squish.save(folder / name, {"w": values}, encode=encode)
    return squish.open(folder / name)["w"]


@pytest.fixture(params=ENCODINGS)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> squish.Tensor:
    return opened(tmp_path, request.param)


@pytest.fixture
def linear(tmp_path: Path) -> Any:
    return squish_torch.CompressedLinear.of(opened(tmp_path, "q4_1"))


def inputs(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Seeded x."""
    return torch.randn(*shape, COLUMNS, generator=torch.Generator().manual_seed(1)).to(dtype)


def test_every_codec_computes_what_its_values_do(stored: squish.Tensor) -> None:
    values = torch.from_numpy(stored.numpy(copy=True))
    module = squish_torch.CompressedLinear.of(stored)
    assert torch.allclose(module(inputs(5)), inputs(5) @ values.T, atol=1e-3)
    assert torch.equal(module.dequantize(), values)
    embedding = squish_torch.CompressedEmbedding.of(stored)
    ids = torch.tensor([[3, 0], [ROWS - 1, 3]])
    assert torch.equal(embedding(ids), values[ids])
    assert {parameter.dtype for parameter in module.parameters()} == {torch.uint8}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,), (2, 0)])
def test_results_have_the_dtype_and_leading_shape_of_x(linear: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    y = linear(inputs(*shape, dtype=dtype))
    assert (y.dtype, y.shape) == (dtype, (*shape, ROWS))
    reference = inputs(*shape, dtype=dtype).float() @ linear.dequantize().T
    assert torch.allclose(y.float(), reference, rtol=1e-2, atol=1e-2 if dtype == torch.float32 else 0.2)


def test_x_may_be_a_view_of_any_strides(linear: Any) -> None:
    x = inputs(4, 2).transpose(0, 1)[:, ::2]
    assert not x.is_contiguous()
    assert torch.equal(linear(x), linear(x.contiguous()))
    assert torch.allclose(linear(inputs(1).expand(3, -1)), linear(inputs(1)).expand(3, -1), atol=1e-4)


def test_gradients_flow_to_x_and_to_the_bias(linear: Any) -> None:
    module = squish_torch.CompressedLinear(linear.description, bias=True)
    module.load_state_dict({**linear.state_dict(), "bias": torch.zeros(ROWS)})
    x = inputs(3).requires_grad_()
    module(x).square().sum().backward()
    inputs_with_grad = inputs(3).requires_grad_()
    (inputs_with_grad @ linear.dequantize().T).square().sum().backward()
    assert torch.allclose(x.grad, inputs_with_grad.grad, rtol=1e-3, atol=1e-2)
    assert module.bias.grad is not None
    assert all(parameter.grad is None for parameter in module.parts)


def test_autocast_decides_the_dtype(linear: Any) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(inputs(2)).dtype == nn.Linear(COLUMNS, 2)(inputs(2)).dtype == torch.bfloat16


@pytest.mark.parametrize("change", [lambda m: m.to(torch.bfloat16), lambda m: m.half(), lambda m: m.double().float()])
def test_changes_of_dtype_leave_codes_alone(tmp_path: Path, change: Any) -> None:
    tensor = opened(tmp_path, "q4_1")
    model = nn.Sequential(squish_torch.CompressedEmbedding.of(tensor), nn.LayerNorm(COLUMNS))
    before = [part.clone() for part in model[0].parts]
    change(model)
    assert all(torch.equal(one, other) for one, other in zip(before, model[0].parts))
    assert model(torch.tensor([1, 2])).dtype == model[1].weight.dtype


def test_on_meta_there_are_shapes_alone(linear: Any) -> None:
    meta = copy.deepcopy(linear).to("meta")
    assert meta(inputs(2).to("meta")).shape == (2, ROWS)
    assert meta(inputs(2).to("meta")).device.type == "meta"
    back = meta.to_empty(device="cpu")
    back.load_state_dict(linear.state_dict())
    assert torch.equal(back(inputs(2)), linear(inputs(2)))


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save", "share_memory"])
def test_copies_compute_the_same_and_are_independent(linear: Any, way: str) -> None:
    expected = linear(inputs(2))
    if way == "deepcopy":
        again = copy.deepcopy(linear)
    elif way == "pickle":
        again = pickle.loads(pickle.dumps(linear))
    elif way == "torch.save":
        buffer = io.BytesIO()
        torch.save(linear, buffer)
        buffer.seek(0)
        again = torch.load(buffer, weights_only=False)
    else:
        again = linear.share_memory()
    assert torch.equal(again(inputs(2)), expected)
    if way != "share_memory":
        again.weight.zero_()
        assert torch.equal(linear(inputs(2)), expected)
        assert not torch.equal(again(inputs(2)), expected)


def test_the_state_goes_round_and_another_codec_is_an_error(linear: Any, tmp_path: Path) -> None:
    state = linear.state_dict()
    again = squish_torch.CompressedLinear(linear.description)
    again.load_state_dict(state, strict=True)
    assert torch.equal(again(inputs(2)), linear(inputs(2)))
    other = squish_torch.CompressedLinear.of(opened(tmp_path, "q8_0", "other.zt"))
    with pytest.raises(squish.TensorError) as caught:
        other.set_extra_state(state["_extra_state"])
    assert caught.value.code == "state"
    assert "q4_1" in str(caught.value.found)
    assert "q8_0" in str(caught.value.expected)
    with pytest.raises(squish.TensorError) as caught:
        other.load_state_dict(state)
    assert caught.value.code == "state"


@pytest.mark.parametrize("offload", ["cpu", "disk", "dispatch"])
def test_accelerate_offloads_the_parts(linear: Any, tmp_path: Path, offload: str) -> None:
    expected, model = linear(inputs(2)), nn.Sequential(copy.deepcopy(linear))
    if offload == "cpu":
        accelerate.cpu_offload(model, execution_device="cpu")
    elif offload == "disk":
        accelerate.disk_offload(model, str(tmp_path / "parts"), execution_device="cpu")
    else:
        accelerate.dispatch_model(model, {"": "cpu"}, force_hooks=True)
    for _ in range(2):
        assert model[0].weight.device.type == ("cpu" if offload == "dispatch" else "meta")
        assert torch.equal(model(inputs(2)), expected)


def test_empty_weights_of_accelerate_take_a_state(linear: Any) -> None:
    with accelerate.init_empty_weights():
        module = squish_torch.CompressedLinear(linear.description)
    assert module.weight.device.type == "meta"
    module.to_empty(device="cpu").load_state_dict(linear.state_dict())
    assert torch.equal(module(inputs(2)), linear(inputs(2)))


def test_a_state_that_is_loaded_in_place_is_seen(tmp_path: Path) -> None:
    module = squish_torch.CompressedLinear.of(opened(tmp_path, "q4_1"), backend="cpu:repack=rows")
    before = module(inputs(2))
    values = np.random.default_rng(5).standard_normal((ROWS, COLUMNS), np.float32)
    squish.save(tmp_path / "b.zt", {"w": values}, encode="q4_1")
    other = squish_torch.CompressedLinear.of(squish.open(tmp_path / "b.zt")["w"])
    module.load_state_dict(other.state_dict())
    assert torch.allclose(module(inputs(2)), other(inputs(2)), atol=1e-4)
    assert not torch.allclose(module(inputs(2)), before)


def test_freed_parts_leave_no_prepared_weight_behind(tmp_path: Path) -> None:
    tensor = opened(tmp_path, "q4_1")
    module = squish_torch.CompressedLinear.of(tensor)
    module(inputs(1))
    entries = [entry for key, entry in weights._entries.items() if key[0][0] == module.weight.data_ptr()]
    (entry,) = [entry for entry in entries if entry.is_alive]
    del module
    assert not entry.is_alive


def prepared(module: Any) -> list[Any]:
    """The weights that are prepared for the parts of a module."""
    pointers = tuple(part.data_ptr() for part in module.parts)
    entries = [entry for key, entry in weights._entries.items() if key[0] == pointers]
    return [weakref.ref(entry.weight) for entry in entries if entry.is_alive]


@pytest.mark.parametrize(
    "move", [lambda m: m.to("meta"), lambda m: m.share_memory(), lambda m: m.to_empty(device="cpu")]
)
def test_prepared_weights_are_released_when_the_parts_move(tmp_path: Path, move: Any) -> None:
    module = squish_torch.CompressedLinear.of(opened(tmp_path, "q4_1"), backend="cpu:repack=rows")
    again = copy.deepcopy(module)
    for linear in (module, again):
        linear(inputs(1))
    handles = prepared(again)
    assert len(handles) == 1
    move(again)
    gc.collect()
    assert [handle() for handle in handles] == [None]
    assert len(prepared(module)) == 1


def test_memory_that_parts_have_left_for_shared_memory_may_hold_others(tmp_path: Path) -> None:
    module = squish_torch.CompressedLinear.of(opened(tmp_path, "q4_1"), backend="cpu:repack=rows")
    memory = module.weight.numpy().copy()
    module.weight = nn.Parameter(torch.from_numpy(memory), requires_grad=False)
    module(inputs(2))
    module.weight.share_memory_()
    memory[:] = memory[::-1].copy()
    other = squish_torch.CompressedLinear(module.description, backend="cpu:repack=rows", device="meta")
    other.weight = nn.Parameter(torch.from_numpy(memory), requires_grad=False)
    assert torch.equal(other(inputs(2)), copy.deepcopy(other)(inputs(2)))


def test_prepared_weights_of_freed_modules_are_released_with_time(linear: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "SWEEP", 4)
    for _ in range(9):
        copy.deepcopy(linear)(inputs(1))
    assert sum(not entry.is_alive for entry in weights._entries.values()) < 4


class Products(Dataset[torch.Tensor]):
    """Items that a module computes."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> torch.Tensor:
        return self.module(inputs(2))


def test_workers_of_a_data_loader_compute_the_same(linear: Any) -> None:
    expected = linear(inputs(2))
    results = list(DataLoader(Products(linear), num_workers=2, multiprocessing_context="fork"))
    assert [torch.equal(result[0], expected) for result in results] == [True] * 4


def test_threads_and_forks_compute_the_same(linear: Any) -> None:
    expected, results = linear(inputs(4)), []
    threads = [threading.Thread(target=lambda: results.append(linear(inputs(4)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(result, expected) for result in results)
    assert len(results) == 4
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(linear(inputs(4)), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_number_of_threads_is_that_of_torch(linear: Any) -> None:
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            linear(inputs(1))
            weight = weights.weight_of(linear.parts, linear.description, "")
            assert weight.chain.options.get("threads") == threads
    finally:
        torch.set_num_threads(before)


def test_the_message_about_an_unknown_codec_names_it_before_anything_is_read(linear: Any) -> None:
    text = linear.description.replace("ggml.q4_1", "acme.secret")
    with pytest.raises(squish.SquishError) as caught:
        squish_torch.CompressedLinear(text)(inputs(1))
    assert "acme.secret" in caught.value.message


def test_what_is_printed_names_the_codec(linear: Any) -> None:
    assert "48x256" in repr(linear)
    assert "ggml.q4_1" in repr(linear)
    assert (linear.in_features, linear.out_features, linear.bias) == (COLUMNS, ROWS, None)


def test_writing_to_a_parameter_does_not_reach_the_file(tmp_path: Path) -> None:
    tensor = opened(tmp_path, "q4_1")
    before = (tmp_path / "w.zt").read_bytes()
    squish_torch.CompressedLinear.of(tensor).weight.zero_()
    assert (tmp_path / "w.zt").read_bytes() == before


@pytest.mark.parametrize(
    "x", [torch.ones(2, COLUMNS - 1), torch.tensor(1.0), torch.ones(2, COLUMNS, dtype=torch.complex64)]
)
def test_an_operand_that_does_not_fit_is_an_error(linear: Any, x: torch.Tensor) -> None:
    with pytest.raises(squish.UsageError):
        linear(x)
