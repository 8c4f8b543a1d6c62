"""The encoder for MLX's layout matches MLX: equal codes, scales and biases."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import oracles
import pytest
from squish_codecs.api import Affine

pytestmark = [pytest.mark.oracle, pytest.mark.peers]

DTYPES = {"f32": ("float32", np.float32), "f16": ("float16", np.float16), "bf16": ("bfloat16", ml_dtypes.bfloat16)}


def quantize(values, dtype, group_size, bits):  # type: ignore[no-untyped-def] # runs in the peer
    import mlx.core as mx

    data, *grids = mx.quantize(mx.array(values).astype(getattr(mx, dtype)), group_size=group_size, bits=bits)
    return [np.array(data), *(np.array(grid.astype(mx.float32)) for grid in grids)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_codes_match_mlx(bits: int, group_size: int, dtype: str) -> None:
    values = np.random.default_rng(bits).standard_t(4, size=(64, 256)).astype(np.float32)
    values[0], values[1], values[2, 0] = 0, -3, 1e-9
    values[3] = np.abs(values[3])
    values = values.astype(DTYPES[dtype][1]).astype(np.float32)
    params = {"bits": bits, "group_size": group_size, "word": "u32", "offset": "bias", "scale_dtype": dtype}
    parts = Affine.from_params(params).encode(values)
    expected = oracles.peer("mlx").run(
        quantize, values=values, dtype=DTYPES[dtype][0], group_size=group_size, bits=bits
    )
    for role, array in zip(("data", "scale", "offset"), expected):
        np.testing.assert_array_equal(parts[role].astype(array.dtype), array)
