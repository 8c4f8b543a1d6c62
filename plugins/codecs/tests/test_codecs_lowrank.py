"""The low-rank wrapper: its correction per region, and the encoder's optimal factors."""

import numpy as np
import pytest
from squish_codecs.api import Affine
from squish_codecs.wrap.lowrank import LowRank
from squish_testing import expect_error
from squish_testing.codecs import read_region

from squish_core.api import CodecError, TensorSpec
from squish_core.codecs.regions import full

INNER = {"bits": 3, "group_size": 16, "offset": "bias"}
AFFINE = Affine.from_params(INNER)


def spec_of(*shape: int) -> TensorSpec:
    return TensorSpec(name="w", shape=shape, dtype="f32")


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("shape", [(8, 48), (2, 3, 32), (16,)])
def test_values_are_the_inner_values_plus_the_product(shape: tuple[int, ...], dtype: str) -> None:
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    params = {"rank": 1, "factor_dtype": dtype}
    codec = LowRank.from_params(LowRank.params_for(spec_of(*shape), params), AFFINE)
    parts = codec.encode(values)
    decoded = read_region(codec, parts, spec_of(*shape), full(shape))
    inner = read_region(AFFINE, parts, spec_of(*shape), full(shape))
    product = parts["left"].astype(np.float32) @ parts["right"].astype(np.float32)
    np.testing.assert_allclose(decoded, inner + product.reshape(shape), rtol=1e-5, atol=1e-6)
    some = tuple(slice(size // 3, size // 2 + 1) for size in shape)
    np.testing.assert_allclose(read_region(codec, parts, spec_of(*shape), some), decoded[some], atol=1e-6)


def test_the_factors_leave_the_smallest_singular_values() -> None:
    values = np.random.default_rng(1).normal(size=(32, 64)).astype(np.float32)
    rest = values - read_region(AFFINE, AFFINE.encode(values), spec_of(32, 64), full((32, 64)))
    singular = np.linalg.svd(rest, compute_uv=False)
    for rank in (1, 4, 32):
        codec = LowRank.from_params({"rank": rank}, AFFINE)
        parts = codec.encode(values)
        left = values - read_region(codec, parts, spec_of(32, 64), full((32, 64)))
        np.testing.assert_allclose(np.linalg.norm(left), np.linalg.norm(singular[rank:]), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("params", [{}, {"rnk": 4}, {"rank": 4, "dtype": "f16"}])
def test_rank_is_required_and_unknown_parameters_are_refused(params: dict[str, object]) -> None:
    with expect_error(CodecError, code="params", expected="rank, optionally factor_dtype"):
        LowRank.params_for(spec_of(8, 48), params)


@pytest.mark.parametrize(("rank", "code", "found"), [(0, "rank", 0), (9, "rank", 9), ("many", "params", "'many'")])
def test_invalid_ranks_are_refused(rank: object, code: str, found: object) -> None:
    with expect_error(CodecError, code=code, found=found):
        LowRank.params_for(spec_of(8, 48), {"rank": rank})
