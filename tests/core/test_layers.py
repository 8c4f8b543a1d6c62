"""Loading layer by layer: order, budget, what is freed, and what goes wrong."""

from __future__ import annotations

import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest
from squish_testing import expect_error
from squish_testing.sources import memory_file

import squish_core as squish
from squish_core.api import CodecError, CodecSpec, LimitError, TensorSpec
from squish_core.file import File
from squish_core.tensor import Tensor

LAYER = 4 * 64 * 1024 * 2
"""Bytes of two tensors."""


def model(layers: int = 4) -> File:
    """A layer's tensors lie apart; something lies before, between and after them."""
    rng = np.random.default_rng(0)
    names = ["embed.weight", *(f"model.layers.{number}.up.weight" for number in range(layers)), "middle"]
    names += [*(f"model.layers.{number}.down.weight" for number in range(layers)), "norm"]
    tensors: dict[str, Any] = {}
    for name in names:
        array = rng.normal(size=(64, 1024)).astype(np.float32)
        tensors[name] = TensorSpec(name=name, shape=array.shape, dtype="f32"), CodecSpec("dense"), {"data": array}
    return memory_file(squish.registry(), tensors)[0]


def test_layers_come_in_order_with_all_their_tensors() -> None:
    file = model()
    seen, arrays = [], {}
    for layer in squish.iter_layers(file):
        seen.append((layer.number, len(layer)))
        arrays |= dict(layer)
    assert seen == [(None, 1), (0, 2), (1, 2), (2, 2), (3, 2), (None, 2)]
    for name, tensor in file.items():
        np.testing.assert_array_equal(arrays[name], tensor.numpy())


def test_layers_come_by_number_one_prefix_after_the_other() -> None:
    names = ["shared", *(f"encoder.block.{number}.w" for number in (0, 1, 10, 2)), "encoder.norm"]
    names += ["decoder.block.1.w", "decoder.block.0.layer.1.w", "encoder.block.0.late", "norm"]
    array = np.zeros(4, np.float32)
    spec = {name: TensorSpec(name=name, shape=(4,), dtype="f32") for name in names}
    file, _ = memory_file(
        squish.registry(), {name: (spec[name], CodecSpec("dense"), {"data": array}) for name in names}
    )
    seen = [(layer.prefix, layer.number, list(layer)) for layer in squish.iter_layers(file)]
    encoder, decoder = "encoder.block", "decoder.block"
    assert seen == [
        ("", None, ["shared"]),
        (encoder, 0, ["encoder.block.0.w", "encoder.block.0.late"]),
        *((encoder, number, [f"encoder.block.{number}.w"]) for number in (1, 2, 10)),
        ("", None, ["encoder.norm"]),
        (decoder, 0, ["decoder.block.0.layer.1.w"]),
        (decoder, 1, ["decoder.block.1.w"]),
        ("", None, ["norm"]),
    ]


@pytest.mark.parametrize("memory", [LAYER, 2 * LAYER, 3 * LAYER])
def test_the_budget_holds_whatever_the_model(memory: int) -> None:
    file = model(layers=12)
    for _ in squish.iter_layers(file, memory=memory):
        break
    tracemalloc.start()
    for layer in squish.iter_layers(file, memory=memory):
        assert len(layer)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < memory + (1 << 20)


def test_a_layer_is_freed_when_the_next_one_loads() -> None:
    layers = squish.iter_layers(model())
    first = next(layers)
    array = first["embed.weight"]
    next(layers)
    assert not len(first)
    assert array.shape == (64, 1024)


def test_a_layer_over_the_budget_is_an_error_before_reading() -> None:
    with expect_error(
        LimitError, code="memory", tensor="model.layers.0.up.weight", expected="524287 bytes", found="524288 bytes"
    ) as error:
        squish.iter_layers(model(), memory=LAYER - 1)
    assert error.value.found == f"{LAYER} bytes"


def test_on_a_backend_layers_hold_weights() -> None:
    file, x = model(), np.ones((1, 1024), np.float32)
    for layer in squish.iter_layers(file, backend="numpy"):
        for name, weight in layer.items():
            np.testing.assert_allclose(weight.linear(x), x @ file[name].numpy().T, rtol=1e-3, atol=1e-3)


def test_stopping_early_leaves_no_thread() -> None:
    before = set(threading.enumerate())  # a remote file of another test may not be collected yet
    layers = squish.iter_layers(model(layers=30))
    next(layers)
    layers.close()  # type: ignore[attr-defined]
    assert set(threading.enumerate()) <= before


def test_an_error_comes_with_its_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Tensor.numpy

    def numpy(tensor: Tensor, **options: Any) -> np.ndarray:
        if tensor.name == "model.layers.2.up.weight":
            raise CodecError("is damaged", tensor=tensor.name)
        return whole(tensor, **options)

    monkeypatch.setattr(Tensor, "numpy", numpy)
    layers = squish.iter_layers(model())
    assert [next(layers).number for _ in range(3)] == [None, 0, 1]
    with expect_error(CodecError, tensor="model.layers.2.up.weight"):
        next(layers)
