"""Masks contiguous across rows (Core ML), and magnitude pruning."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_codecs.bitmask import Bitmask
from squish_testing import CodecSuite, expect_error

from squish_core.api import CodecError, TensorSpec, dtypes, full

quick = settings(max_examples=40, deadline=None, derandomize=True, database=None)
CODEC = Bitmask


def encoded(values, params):
    spec = TensorSpec(name="w", shape=values.shape, dtype="f32")
    params = CODEC.from_params(CODEC.params_for(spec, params)).fit_params(lambda: iter([values]), spec)
    return spec, params, CODEC.from_params(params).encode(values)


def decoded(spec, params, parts, region=None):
    region = region or full(spec.shape)
    out = np.empty(
        [part.stop - part.start for part in region], dtypes.to_numpy(CODEC.from_params(params).value_dtype(spec))
    )
    CODEC.from_params(params).decode(parts, spec, region=region, out=out)
    return out


class TestBitmask(CodecSuite):
    codec = "bitmask"
    tolerance = 1e-2  # int8

    def cases(self):
        cases = {}
        for shape in ((8, 16), (3, 5), (2, 3, 7)):
            values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
            values[values < 0] = 0
            _, params, _ = encoded(values, {})
            cases[str(shape)] = TensorSpec(name="w", shape=shape, dtype="f32"), params, values
        for options in ({"bits": 8}, {"dtype": "i8", "scale": "f16"}):
            _, params, _ = encoded(values, options)
            cases[str(options)] = TensorSpec(name="w", shape=values.shape, dtype="f32"), params, values
        return cases


@quick
@given(st.integers(1, 9), st.integers(1, 19), st.data())
def test_any_rows_decode_like_a_slice_of_the_tensor(rows, columns, data):
    values = np.random.default_rng(rows * 31 + columns).standard_normal((rows, columns)).astype(np.float16)
    values[values < 0.3] = 0
    spec, params, parts = encoded(values, {})
    assert len(parts["data"]) == params["count"] == np.count_nonzero(values)
    np.testing.assert_array_equal(parts["mask"], np.packbits(values.reshape(-1) != 0, bitorder="little"))
    low = data.draw(st.integers(0, rows - 1))
    high = data.draw(st.integers(low + 1, rows))
    np.testing.assert_array_equal(decoded(spec, params, parts, (slice(low, high), slice(0, columns))), values[low:high])


@pytest.mark.parametrize("sparsity", [0.25, 0.5, 0.63])
def test_the_smallest_values_of_each_row_are_pruned(sparsity):
    values = np.random.default_rng(1).standard_normal((12, 100)).astype(np.float32)
    spec, params, parts = encoded(values, {"sparsity": sparsity})
    values_decoded = decoded(spec, params, parts)
    kept = values_decoded != 0
    assert (kept.sum(axis=1) == 100 - round(100 * sparsity)).all()
    for row, line in zip(np.abs(values), kept):
        assert row[line].min() >= row[~line].max()
    np.testing.assert_array_equal(values_decoded[kept], values.astype(np.float16)[kept])


@pytest.mark.parametrize("shape", [(8, 4, 3, 3), (8, 4, 3), (8, 1, 1, 1), (6, 2, 5, 5)])
def test_each_output_channel_is_pruned(shape):
    """A kernel of 3 x 3 loses half of each channel, not two values of each run of three."""
    values = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    kept = decoded(*encoded(values, {"sparsity": 0.5})) != 0
    inner = values[0].size
    assert (kept.reshape(len(kept), -1).sum(axis=1) == inner - round(0.5 * inner)).all()


def test_pruning_drops_the_first_of_equal_values():
    values = np.float32([[1, -1, 1, 2, -1, 3], [5, 5, 5, 5, 5, 5], [3, 2, 1, 1, 2, 3]])
    spec, params, parts = encoded(values, {"sparsity": 0.5})
    np.testing.assert_array_equal(
        decoded(spec, params, parts), [[0, 0, 0, 2, -1, 3], [0, 0, 0, 5, 5, 5], [3, 0, 0, 0, 2, 3]]
    )


def test_rows_have_scales():
    chance = np.random.default_rng(4)
    values = chance.integers(-9, 10, (5, 7)).astype(np.int8)
    mask = values.reshape(-1) != 0
    parts = {"data": values.reshape(-1)[mask], "mask": np.packbits(mask, bitorder="little"),
             "scale": chance.random((5, 1)).astype(np.float16)}  # fmt: skip
    spec = TensorSpec(name="w", shape=values.shape, dtype="f32")
    params = {"dtype": "i8", "kept": "run", "count": int(mask.sum()), "scale": "f16"}
    assert {role: part.shape for role, part in parts.items()} == {
        role: shape for role, (_, shape) in CODEC.from_params(params).parts(spec).items()
    }
    out = np.empty((3, 7), np.float32)
    CODEC.from_params(params).decode(parts, spec, region=(slice(1, 4), slice(0, 7)), out=out)
    np.testing.assert_array_equal(out, (values * parts["scale"].astype(np.float32))[1:4])


@pytest.mark.parametrize("bits", range(1, 9))
def test_indices_decode_under_a_mask(bits):
    chance = np.random.default_rng(bits)
    mask, codes = chance.random((7, 9)) > 0.5, chance.integers(0, 1 << bits, 63)
    kept, book = codes[mask.reshape(-1)], chance.standard_normal(1 << bits).astype(np.float16)
    stream = (kept[:, None] >> np.arange(bits) & 1).astype(np.uint8)
    parts = {"data": np.packbits(stream, bitorder="little"), "codebook": book,
             "mask": np.packbits(mask, bitorder="little")}  # fmt: skip
    spec = TensorSpec(name="w", shape=mask.shape, dtype="f32")
    params = {"dtype": "f16", "kept": "run", "count": len(kept), "bits": bits}
    assert {role: part.shape for role, part in parts.items()} == {
        role: shape for role, (_, shape) in CODEC.from_params(params).parts(spec).items()
    }
    expected = np.where(mask, book[codes].reshape(mask.shape), np.float16(0))
    for low, high in ((0, 7), (2, 5), (6, 7)):
        region = decoded(spec, params, parts, (slice(low, high), slice(0, 9)))
        np.testing.assert_array_equal(region, expected[low:high])


def test_the_codebook_fits_only_nonzero_values():
    """Zeros do not use a codebook entry; few distinct values round-trip exactly."""
    values = np.random.default_rng(0).choice([-3, -1, 1, 2], (8, 16)).astype(np.float32)
    values[::2, ::3] = 0
    spec, params, parts = encoded(values, {"bits": 2})
    np.testing.assert_array_equal(decoded(spec, params, parts), values)
    assert parts["data"].nbytes == -(-np.count_nonzero(values) * 2 // 8)


def test_int8_codes_decode_under_a_mask():
    values = np.random.default_rng(0).standard_normal((6, 40)).astype(np.float32)
    spec, params, parts = encoded(values, {"dtype": "i8", "scale": "f16", "sparsity": 0.5})
    out = np.empty(values.shape, np.float32)
    CODEC.from_params(params).decode(parts, spec, region=full(spec.shape), out=out)
    kept = np.unpackbits(parts["mask"], bitorder="little").reshape(values.shape).astype(bool)
    assert (kept.sum(axis=1) == 20).all()
    assert not out[~kept].any()
    step = parts["scale"].astype(np.float32)
    assert (np.abs(out - values)[kept] <= np.broadcast_to(0.501 * step, values.shape)[kept]).all()


@pytest.mark.parametrize("change", [1, -1])
def test_a_mask_that_disagrees_with_the_values_is_refused(change):
    values = np.ones((4, 8), np.float32)
    spec, params, parts = encoded(values, {})
    with expect_error(CodecError, code="mask", found="32 bits set"):
        decoded(spec, {**params, "count": params["count"] + change}, parts)


@pytest.mark.parametrize(
    "params",
    [
        {"kept": "any"}, {"kept": 4}, {"sparsity": 1.0}, {"dtype": "i8"}, {"scale": "f32"}, {"bits": 9},
        {"bits": 4, "dtype": "i8"}, {"bits": 4, "scale": "f16"},
    ],
)  # fmt: skip
def test_unsupported_encodings_are_refused(params):
    with pytest.raises(CodecError):
        CODEC.params_for(TensorSpec(name="w", shape=(4, 8), dtype="f32"), params)
