"""Values on the device are those of the NumPy codecs, bit by bit; the form is a permutation of their bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_layouts import layouts
from random_parts import random_tensor, same
from squish_cuda import products, weights
from squish_cuda.form import nbytes
from stored_tensors import DEVICE, every_layout, stored

from squish_core.api import CodecError, CodecSpec


@pytest.mark.parametrize("codec", every_layout().values(), ids=every_layout())
def test_values_and_rows_are_those_of_the_codec(codec: CodecSpec) -> None:
    tensor = stored(codec, (24, 512))
    weight, values = weights.load(tensor.bound, DEVICE), tensor.numpy()
    same(products.dense(weight).cpu().numpy(), values)
    same(products.dense(weight, 3, 17).cpu().numpy(), values[3:17])
    ids = torch.tensor([[5, 0], [23, 5]])
    same(products.embed(weight, ids.to(DEVICE)).cpu().numpy(), values[ids])
    rounded = products.dense(weight, dtype=torch.float16)
    assert torch.equal(rounded.cpu(), torch.from_numpy(np.array(values)).to(torch.float16))


@pytest.mark.parametrize("codec", every_layout().values(), ids=every_layout())
def test_the_form_has_the_size_of_the_stored_bytes(codec: CodecSpec) -> None:
    tensor = stored(codec, (48, 2048))
    weight = weights.load(tensor.bound, DEVICE)
    order = 0 if weight.order is None else 8 * 2048
    assert weight.nbytes - order == nbytes(weight.form, weight.shape)
    shared = 0 if weight.grid is None else 4 * weight.grid.numel()  # by all weights of a type
    assert weight.nbytes <= 1.05 * tensor.bound.encoding.stored + 4096 + order + shared


@settings(max_examples=40, deadline=None)
@given(layouts(), st.integers(0, 99))
def test_any_layout_decodes_to_the_bits_of_the_codec(layout: Any, seed: int) -> None:
    codec, shape, dtype = layout
    tensor = random_tensor(codec, shape, seed, dtype)
    try:
        weight = weights.load(tensor.bound, DEVICE)
    except CodecError as error:
        if error.code != "uncovered":
            raise
        return
    same(products.dense(weight).cpu().numpy(), tensor.numpy())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), st.integers(1, 5), st.integers(1, 4), st.integers(0, 99))
def test_words_are_a_permutation_of_the_codes(bits: int, rows: int, runs: int, seed: int) -> None:
    codes = torch.from_numpy(np.random.default_rng(seed).integers(0, 1 << bits, (rows, 32 * runs), np.uint8))
    words = weights.pack(codes, bits)
    assert sum(word.numel() for word in words) * 32 == codes.numel() * bits
    assert torch.equal(weights.unpack(words, bits), codes)


def test_rows_that_do_not_exist_are_no_numbers() -> None:
    weight = weights.load(stored(CodecSpec("ggml.q4_0"), (4, 64)).bound, DEVICE)
    rows = products.embed(weight, torch.tensor([3, 4, -1], device=DEVICE))
    assert rows.isnan().all(1).tolist() == [False, True, True]


@pytest.mark.parametrize(
    "codec", [CodecSpec("ggml.q5_k"), CodecSpec("ggml.iq2_xs"), CodecSpec("float8", {"block": [8, 64]})], ids=str
)
def test_stacks_decode_as_the_codec_does(codec: CodecSpec) -> None:
    tensor = stored(codec, (3, 16, 256))
    same(products.dense(weights.load(tensor.bound, DEVICE)).cpu().numpy(), tensor.numpy())


@pytest.mark.parametrize("name", ["q4_0", "3 bits", "q6_k", "NVFP4", "FP8", "iq2_xs", "iq1_m", "tq1_0"])
def test_matrices_become_a_stack_and_views_of_it(name: str) -> None:
    tensors = [stored(every_layout()[name], (8, 256), seed) for seed in range(3)]
    stack, views = weights.stacked([weights.load(tensor.bound, DEVICE) for tensor in tensors])
    values = np.stack([tensor.numpy() for tensor in tensors])
    same(products.dense(stack).cpu().numpy(), values)
    same(products.dense(views[1]).cpu().numpy(), values[1])
    assert views[2].codes.untyped_storage().data_ptr() == stack.codes.untyped_storage().data_ptr()


def test_matrices_that_differ_in_more_than_their_data_are_no_stack() -> None:
    def of(codec: CodecSpec, seed: int = 0, shape: tuple[int, int] = (8, 256)) -> Any:
        return weights.load(stored(codec, shape, seed).bound, DEVICE)

    layouts = every_layout()
    first = of(layouts["q4_0"])
    assert weights.stacked([first, of(layouts["q4_1"])]) is None
    assert weights.stacked([first, of(layouts["q4_0"], shape=(4, 256))]) is None
    assert weights.stacked([of(layouts["palette"], seed) for seed in range(2)]) is None
    assert weights.stacked([of(layouts["act-order"], seed) for seed in range(2)]) is None
    assert weights.stacked([of(CodecSpec("float8", {"block": [6, 64]})) for _ in range(2)]) is None
