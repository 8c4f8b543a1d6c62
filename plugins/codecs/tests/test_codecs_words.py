"""Converting words between layouts, compared with unpacking every code."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_codecs.api import Packing
from squish_codecs.packing.words import flip_sign_bits, from_rows, to_rows

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
PACKINGS = [
    *(Packing(bits, word, "lsb") for bits in range(1, 9) for word in ("u8", "i32", "u64")),
    *(Packing(bits, word, "msb") for bits in (1, 2, 4, 8) for word in ("u8", "u32")),
    Packing(4, "i32", ORDER),
]


def random_words(packing, shape, axis, seed, *, swapped):
    """Packed random codes of a matrix along an axis, in either memory order."""
    size = [packing.words(count) if place == axis % 2 else count for place, count in enumerate(shape)]
    raw = np.random.default_rng(seed).integers(0, 256, (*size, packing.width // 8), np.uint8)
    words = raw.view(packing.dtype)[..., 0]
    return np.asfortranarray(words) if swapped else words


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(PACKINGS),
    st.sampled_from([-1, -2]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.booleans(),
    st.integers(0, 99),
)
def test_rows_are_bit_streams_and_round_trip(packing, axis, rows, columns, swapped, seed):
    shape = (rows * packing.unit, columns * packing.unit)
    words = random_words(packing, shape, axis, seed, swapped=swapped)
    rows_of_words = to_rows(packing, words, shape[axis], axis)
    if rows_of_words is None:
        assert axis == -2
        assert packing.width % packing.bits
        return
    codes = packing.unpack(words, shape[axis], axis)
    stream = Packing(
        packing.bits, rows_of_words.dtype.str.replace("<", "").replace("|", "")[0] + str(packing.width), "lsb"
    )
    np.testing.assert_array_equal(stream.unpack(rows_of_words, shape[1]), codes)
    np.testing.assert_array_equal(from_rows(packing, rows_of_words, shape[axis], axis), words)
    turned = flip_sign_bits(rows_of_words, packing.bits)
    if turned is not None:
        np.testing.assert_array_equal(stream.unpack(turned, shape[1]), codes ^ np.uint8(1 << packing.bits - 1))


@pytest.mark.parametrize(("packing", "count"), [
    (Packing(4, "u32", "lsb"), 12), (Packing(3, "u32", "padded"), 10), (Packing(3, "u32", "planes"), 32),
])  # fmt: skip
def test_padded_words_and_planes_are_not_converted(packing, count):
    assert to_rows(packing, np.zeros((2, packing.words(count)), np.uint32), count, -1) is None
    assert from_rows(packing, np.zeros((2, count), np.uint8), count, -1) is None
