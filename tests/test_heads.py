"""The order of rows within heads, as a codec around another."""

from __future__ import annotations

import numpy as np
import pytest
import toys
from attrs import evolve

from squish_core.conversion.arrays import in_memory
from squish_core.errors import CodecError
from squish_core.model import CodecSpec, Encoding, TensorSpec
from squish_core.tensor import Tensor

VALUES = np.arange(24 * 6, dtype=np.float32).reshape(24, 6)


def tensor(**params: object) -> Tensor:
    """The values, read through the codec."""
    file = in_memory({"w": VALUES}, registry=toys.registry())
    (encoding,) = file.index.tensors["w"].encodings
    spec: TensorSpec = evolve(file.index.tensors["w"], encodings=(wrapped(encoding, params),))
    return Tensor(file, spec)


def wrapped(encoding: Encoding, params: dict[str, object]) -> Encoding:
    return evolve(encoding, codec=CodecSpec("heads", params, encoding.codec))


@pytest.mark.parametrize("rows", [slice(0, 24), slice(3, 5), slice(8, 16), slice(23, 24)])
def test_any_region_has_its_rows_in_order(rows: slice) -> None:
    expected = VALUES.reshape(3, 2, 4, 6).swapaxes(1, 2).reshape(24, 6)
    np.testing.assert_array_equal(tensor(heads=3, inverse=False)[rows, 1:4], expected[rows, 1:4])
    back = VALUES.reshape(3, 4, 2, 6).swapaxes(1, 2).reshape(24, 6)
    np.testing.assert_array_equal(tensor(heads=3, inverse=True)[rows, 1:4], back[rows, 1:4])


@pytest.mark.parametrize("params", [{"heads": 5, "inverse": False}, {"heads": 24, "inverse": False}, {"heads": 3}, {}])
def test_heads_that_do_not_divide_the_rows_are_refused(params: dict[str, object]) -> None:
    with pytest.raises(CodecError) as caught:
        tensor(**params).numpy()
    assert caught.value.code == "params"
