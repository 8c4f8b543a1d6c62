"""HQQ compared with the `hqq` package: the error on the same weights is no larger."""

from __future__ import annotations

import numpy as np
import oracles
import pytest
from squish_codecs.api import Hqq

from squish_core.api import TensorSpec

pytestmark = pytest.mark.oracle


def quantize(weights, bits, axis):  # type: ignore[no-untyped-def] # runs in the peer
    import torch
    from hqq.core.quantize import Quantizer

    codes, meta = Quantizer.quantize(
        torch.from_numpy(weights.copy()), nbits=bits, axis=axis, round_zero=bits == 4, device="cpu", bitpack=False
    )
    return ((codes.float() - meta["zero"]) * meta["scale"]).reshape(weights.shape).numpy()


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_the_hqq_error_is_at_most_the_packages(bits: int, axis: int) -> None:
    weights = (np.random.default_rng(bits).standard_t(4, size=(256, 512)) / 20).astype(np.float32)
    spec = TensorSpec(name="w", shape=weights.shape, dtype="f32")
    params = {"bits": bits, "group_size": 64, "axis": axis}
    ours = np.empty_like(weights)
    parts = Hqq.from_params(params).encode(weights)
    Hqq.from_params(params).decode(parts, spec, region=(slice(0, 256), slice(0, 512)), out=ours)
    theirs = oracles.peer("hqq").run(quantize, weights=weights, bits=bits, axis=axis)
    # 1e-5 allows for float32 summation.
    for error in (np.abs, np.square):
        assert error(weights - ours).mean() <= error(weights - theirs).mean() * (1 + 1e-5)  # float32 summation
