"""Float8 blocks: sizes come from a file, and the cost depends only on the tensor."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import squish_core as squish
from squish_core.api import SquishError, TensorSpec, full, parse_spec


@pytest.mark.parametrize("block", [(1 << 70, 1 << 70), (4, 1 << 40), (1 << 40, 3), (8, 6)])
def test_a_block_larger_than_the_matrix_costs_no_more_than_the_matrix(block: tuple[int, int]) -> None:
    codec, spec = squish.registry().codec_type("float8"), TensorSpec(name="w", shape=(8, 6), dtype="f32")
    params = {"block": list(block)}
    parts = {
        role: np.full(shape, 2, squish.api.dtypes.to_numpy(dtype))
        for role, (dtype, shape) in codec.from_params(params).parts(spec).items()
    }
    parts["scale"][...] = np.arange(1, 1 + parts["scale"].size).reshape(parts["scale"].shape)
    out = np.empty(spec.shape, np.float32)
    tracemalloc.start()
    codec.from_params(params).decode(parts, spec, region=full(spec.shape), out=out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    rows, columns = (min(step, size) for step, size in zip(block, spec.shape))
    scale = parts["scale"].repeat(rows, axis=0).repeat(columns, axis=1)[:8, :6]
    np.testing.assert_array_equal(out, 2 * scale)
    assert peak < 1 << 20


@pytest.mark.parametrize(
    ("text", "block", "scale_dtype"),
    [("float8:block=1x0", (1, 20), "f32"), ("float8:block=4x8,scale_dtype=bf16", (4, 8), "bf16"),
     ("float8:block=0x6,scale_dtype=f16", (10, 6), "f16"), ("float8:block=128x128", (10, 20), "f32"),
     ("float8:block=4x8,scale_dtype=f8_e8m0", (4, 8), "f8_e8m0")],
)  # fmt: skip
def test_each_block_maps_its_largest_value_to_the_largest_code(
    text: str, block: tuple[int, int], scale_dtype: str
) -> None:
    values = np.random.default_rng(5).normal(size=(10, 20)).astype(np.float32) * np.geomspace(1e-3, 1e3, 10)[:, None]
    values = values.astype(np.float32)
    values[:4, :6] = 0
    codec, spec = squish.registry().codec_type("float8"), TensorSpec(name="w", shape=(10, 20), dtype="f32")
    parts = codec.from_params(codec.params_for(spec, parse_spec(text).params)).encode(values)
    scale, codes = (parts[role].astype(np.float64) for role in ("scale", "data"))
    down, across = block
    for row in range(0, 10, down):
        for column in range(0, 20, across):
            cell = np.abs(values[row : row + down, column : column + across]).max()
            stored = scale[row // down, column // across]
            largest = np.abs(codes[row : row + down, column : column + across]).max()
            if cell == 0:
                assert (stored, largest) == (1, 0)
            elif scale_dtype == "f8_e8m0":
                assert cell / 448 <= stored < 2 * cell / 448
            else:
                assert largest == 448
                assert cell / 448 <= stored * (1 + 1e-7) <= cell / 448 * 1.01


@pytest.mark.parametrize("block", ["128", "-1x3", "ax2", "3x"])
def test_a_block_is_two_sizes(block: str) -> None:
    codec, spec = squish.registry().codec_type("float8"), TensorSpec(name="w", shape=(8, 6), dtype="f32")
    with pytest.raises(SquishError) as caught:
        codec.params_for(spec, {"block": block})
    assert caught.value.code == "params"
