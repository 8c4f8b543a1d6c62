"""Statistics equal the core's counts of NumPy-decoded values, for every codec and instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from cases import Case, every, name_of
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from random_parts import FLOATS, random_tensor
from squish_cpu import library
from squish_testing.sources import memory_file

import squish_core as squish
from squish_core.api import CodecSpec, TensorSpec, dtypes
from squish_core.tensor import Tensor


def dense_file(values: np.ndarray) -> Tensor:
    spec = TensorSpec(name="w", shape=values.shape, dtype=dtypes.from_numpy(values.dtype))
    file, _ = memory_file(squish.registry(), {"w": (spec, CodecSpec("dense"), {"data": values})})
    return file["w"]


@pytest.mark.parametrize("case", list(every()), ids=name_of)
def test_counts_match_the_decoded_values(case: Case) -> None:
    codec, shape, dtype = case
    tensor = random_tensor(codec, shape, dtype=dtype)
    weight = tensor.load("cpu", op="dense")
    assert weight._backend.counts(weight._handle) is not None
    assert weight.statistics() == tensor.load("numpy").statistics()


@pytest.mark.parametrize("dtype", FLOATS)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_special_values_and_sizes_are_counted(dtype: str, data: st.DataObject) -> None:
    kind = dtypes.to_numpy(dtype)
    words = np.dtype(f"u{kind.itemsize}")
    shape = data.draw(array_shapes(max_dims=2, max_side=40))
    sign = 1 << 8 * kind.itemsize - 1
    infinity = int(np.array(np.inf, kind).view(words))
    some = st.sampled_from([0, sign, 1, sign | 1, infinity, sign | infinity, infinity + 1, infinity - 1, sign - 1])
    values = data.draw(arrays(words, shape, elements=some | st.integers(0, 2 * sign - 1))).view(kind)
    tensor = dense_file(values)
    assert tensor.load("cpu", op="dense").statistics() == tensor.load("numpy").statistics()


def test_counts_do_not_depend_on_instructions_or_threads(instructions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).standard_normal((333, 1500), np.float32)
    values[100:120] = 0
    values[300, ::7], values[301, ::5], values[302, 1::3], values[303, ::2] = np.nan, np.inf, -np.inf, -0.0
    for sample in (
        values,
        values[:3, :17],
        values[100:120],
        values[303:304, ::2],
        np.full((2, 20), np.nan, np.float32),
    ):
        tensor = dense_file(np.ascontiguousarray(sample))
        expected = tensor.load("numpy").statistics()
        for threads in ("1", "5"):
            monkeypatch.setenv(library.THREADS, threads)
            assert tensor.load("cpu", op="dense").statistics() == expected


def test_tensor_statistics_use_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = dense_file(np.ones((4, 16), np.float32))
    assert tensor.plan(policy="exact", op="dense").chosen.backend == "cpu"
    monkeypatch.setattr("squish_convert.statistics.Tally.add", None)
    assert tensor.statistics().positive == {0: 64}
