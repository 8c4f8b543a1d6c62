"""The compiled TCA-TBE encoder is bit-identical to the NumPy encoder."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_codecs.api import TcaTbe

import squish_core as squish
from squish_core.api import CodecSpec, TensorSpec


def compare(values: np.ndarray, base: int | None = None) -> None:
    encoder: Any = squish.registry().encoder(CodecSpec("tca_tbe"))
    assert type(encoder) is not TcaTbe
    spec = TensorSpec(name="w", shape=values.shape, dtype="bf16")
    params = encoder.from_params({}).fit_params(lambda: iter((values,)), spec)
    reference_params = params if base is None else {"base_exponent": base, "n_high": 0}
    expected, encoded = (
        TcaTbe.from_params(reference_params).encode(values),
        encoder.from_params(reference_params).encode(values),
    )
    assert encoded.keys() == expected.keys()
    for role, part in expected.items():
        assert encoded[role].dtype == part.dtype
        np.testing.assert_array_equal(encoded[role], part, err_msg=role)
    assert base is not None or params["n_high"] == encoded["high"].size


@pytest.mark.parametrize("shape", [(1,), (3, 63), (5, 64), (7, 65), (2, 3, 130), (16, 1000), (4, 0), (0, 64)])
def test_parts_equal_the_numpy_encoders(shape: tuple[int, ...], instructions: str) -> None:
    values = (np.random.default_rng(0).standard_normal(shape) * 0.02).astype(ml_dtypes.bfloat16)
    values.reshape(-1)[::7] = 0
    for base in (None, 0, 120, 248):
        compare(values, base)


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_arbitrary_bits_encode(data: st.DataObject) -> None:
    columns = data.draw(st.integers(1, 200))
    words = data.draw(st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=60))
    bits = np.resize(np.array(words, np.uint16), (data.draw(st.integers(1, 4)), columns))
    compare(bits.view(ml_dtypes.bfloat16), data.draw(st.integers(0, 248)))
