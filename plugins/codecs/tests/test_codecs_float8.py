"""Float8 blocks: sizes come from a file, and the cost depends only on the tensor."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import squish_core as squish
from squish_core.api import TensorSpec, full


@pytest.mark.parametrize("block", [(1 << 70, 1 << 70), (4, 1 << 40), (1 << 40, 3), (8, 6)])
def test_a_block_larger_than_the_matrix_costs_no_more_than_the_matrix(block: tuple[int, int]) -> None:
    codec, spec = squish.registry().codec("float8"), TensorSpec(name="w", shape=(8, 6), dtype="f32")
    params = {"block": list(block)}
    parts = {
        role: np.full(shape, 2, squish.api.dtypes.to_numpy(dtype))
        for role, (dtype, shape) in codec.parts(spec, params).items()
    }
    parts["scale"][...] = np.arange(1, 1 + parts["scale"].size).reshape(parts["scale"].shape)
    out = np.empty(spec.shape, np.float32)
    tracemalloc.start()
    codec.decode(parts, spec, params, region=full(spec.shape), out=out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    rows, columns = (min(step, size) for step, size in zip(block, spec.shape))
    scale = parts["scale"].repeat(rows, axis=0).repeat(columns, axis=1)[:8, :6]
    np.testing.assert_array_equal(out, 2 * scale)
    assert peak < 1 << 20
