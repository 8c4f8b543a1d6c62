"""The affine codec compared with the formats' own software, and with a slow reference for all parameters."""

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from squish_codecs.affine.scheme import Scheme
from squish_codecs.api import Affine, is_mlx_layout
from squish_testing import expect_error
from squish_testing.codecs import read_region

from squish_core.api import CodecError, TensorSpec, dtypes
from squish_core.codecs.regions import full, on_grain, stored_panels

DATA = Path(__file__).parent / "data"
GOLDEN = json.loads((DATA / "golden.json").read_text())
CODEC = Affine


def spec_of(shape):
    return TensorSpec(name="w", shape=tuple(shape), dtype="f32")


def decoded(parts, shape, params, region=None):
    return read_region(CODEC.from_params(params), parts, spec_of(shape), region or full(tuple(shape)))


# The reference: one code at a time from the bits of the words, by the format specifications.


def reference(parts, shape, params):
    scheme = {"group_size": 0, "axis": -1, "word": "u8", "order": "lsb", "offset": "none", "zero": 0, **params}
    signed = scheme.get("signed", scheme["offset"] == "none" and not scheme["zero"])
    stored = tuple(shape)
    if scheme.get("transposed"):
        stored = (*shape[:-2], shape[-1], shape[-2])
    if scheme["axis"] == "flat":
        stored = (math.prod(shape),)
    axis = len(stored) - 1 if scheme["axis"] == "flat" else len(stored) + scheme["axis"]
    pack_axis = len(stored) + scheme["pack_axis"] if "pack_axis" in scheme else axis
    group = scheme["group_size"] or max(stored[axis], 1)
    offset = parts.get("offset")
    if scheme.get("offset_dtype") == "packed":
        grid = parts["scale"].shape
        across = len(stored) - 1 if scheme["axis"] == "flat" else 2 * len(stored) - 3 - axis
        zeros = np.zeros(grid, np.float32)
        for index in np.ndindex(grid):
            zeros[index] = code_at(offset, index, across, scheme, signed)
        offset = zeros
    out = np.zeros(stored, np.float32)
    for index in np.ndindex(stored):
        cell = tuple(place // group if a == axis else place for a, place in enumerate(index))
        code = np.float32(code_at(parts["data"], index, pack_axis, scheme, signed) - scheme["zero"])
        scale = np.float32(parts["scale"][cell])
        if scheme["offset"] == "zero_point":
            code = code - np.float32(offset[cell])
        out[index] = code * scale
        if scheme["offset"] == "bias":
            out[index] += np.float32(offset[cell])
    if scheme.get("transposed"):
        out = out.swapaxes(-1, -2)
    return out.reshape(shape)


def code_at(words, index, axis, scheme, signed):
    bits, width = scheme["bits"], int(scheme["word"][1:])
    line = words[tuple(slice(None) if a == axis else place for a, place in enumerate(index))]
    place = index[axis]
    if scheme["order"] == "lsb":
        stream = sum((int(word) % (1 << width)) << (width * i) for i, word in enumerate(line))
        code = stream >> (place * bits) & (1 << bits) - 1
    else:
        each = width // bits
        order = range(each)[::-1] if scheme["order"] == "msb" else scheme["order"]
        word = int(line[place // each]) % (1 << width)
        code = word >> (list(order).index(place % each) * bits) & (1 << bits) - 1
    return code - (1 << bits) if signed and code >> (bits - 1) else code


@st.composite
def schemes(draw, *, encodable=False):
    """Valid combinations of shapes and parameters."""
    bits = draw(st.integers(2 if encodable else 1, 8))
    word = draw(st.sampled_from(["u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"]))
    params = {"bits": bits, "word": word}
    each = int(word[1:]) // bits
    if int(word[1:]) % bits == 0:
        order = draw(st.sampled_from(["lsb", "msb", "list"]))
        params["order"] = draw(st.permutations(range(each))) if order == "list" else order
    axis = params["axis"] = draw(st.sampled_from([-1, -2, "flat"]))
    if axis == "flat":
        shape = draw(st.lists(st.integers(1, 9), min_size=0, max_size=3))
        params["group_size"] = draw(st.integers(0, 12))
    else:
        groups, group = draw(st.integers(1, 4)), draw(st.integers(1, 12))
        lead = draw(st.lists(st.integers(1, 3), max_size=1))
        sides = [groups * group, draw(st.integers(1, 20))]
        params["group_size"] = draw(st.sampled_from([0, group]))
        params["pack_axis"] = draw(st.sampled_from([-1, -2]))
        params["transposed"] = draw(st.booleans())
        shape = [*lead, *(sides if (axis == -2) != params["transposed"] else sides[::-1])]
    params["offset"] = draw(st.sampled_from(["none", "zero_point", "bias"]))
    params["signed"] = draw(st.booleans())
    params["scale_dtype"] = draw(st.sampled_from(["f32", "f16", "bf16"]))
    if params["offset"] == "zero_point":
        kinds = ["packed", "i8" if params["signed"] else "u8", "i32", "f16"]
        params["offset_dtype"] = draw(st.sampled_from(kinds))
        params["zero"] = draw(st.integers(0, min(bits - 1, 1)))
    elif params["offset"] == "bias":
        params["offset_dtype"] = draw(st.sampled_from(["f32", "f16", "bf16"]))
    elif encodable:
        params["zero"] = 0 if params["signed"] else 1 << bits - 1
    if not encodable and params["offset"] != "bias":
        params["zero"] = draw(st.integers(-300, 300))
    return tuple(shape), params


def random_parts(shape, params, rng):
    """Random codes; finite scales and offsets."""
    parts = {}
    for role, (dtype, size) in CODEC.from_params(params).parts(spec_of(shape)).items():
        kind = dtypes.to_numpy(dtype)
        if kind.kind in "iu":
            parts[role] = rng.integers(0, 256, (*size, kind.itemsize), np.uint8).view(kind).reshape(size)
            if role == "offset" and params.get("offset_dtype") == "i32":
                parts[role] %= 1000
        else:
            parts[role] = rng.normal(size=size).astype(kind)
    return parts


@pytest.mark.parametrize("name", GOLDEN)
def test_values_are_bit_identical_to_the_formats_own_software(name):
    case, stored = GOLDEN[name], np.load(DATA / "golden.npz")
    declared = CODEC.from_params(case["params"]).parts(spec_of(case["shape"]))
    parts = {role: stored[f"{name}/{role}"].view(dtypes.to_numpy(dtype)) for role, (dtype, _) in declared.items()}
    assert {role: part.shape for role, part in parts.items()} == {role: size for role, (_, size) in declared.items()}
    values = decoded(parts, case["shape"], case["params"])
    assert hashlib.sha256(values.astype("<f4").tobytes()).hexdigest() == case["sha256"]


@settings(max_examples=150, deadline=None)
@given(schemes(), st.integers(0, 2**32))
def test_values_equal_the_slow_reference(case, seed):
    shape, params = case
    parts = random_parts(shape, params, np.random.default_rng(seed))
    np.testing.assert_array_equal(decoded(parts, shape, params), reference(parts, shape, params))


@settings(max_examples=150, deadline=None)
@given(schemes(), st.data())
def test_a_region_decodes_like_a_slice_of_the_tensor(case, data):
    shape, params = case
    parts = random_parts(shape, params, np.random.default_rng(0))
    region = []
    for size in shape:
        start = data.draw(st.integers(0, size - 1))
        region.append(slice(start, data.draw(st.integers(start + 1, size))))
    np.testing.assert_array_equal(
        decoded(parts, shape, params, tuple(region)), decoded(parts, shape, params)[tuple(region)]
    )


@pytest.mark.parametrize("axis", [-1, "flat"])
@pytest.mark.parametrize("columns", [4096, 4100, 40])
def test_values_do_not_depend_on_panels(axis, columns):
    shape, params = (133, columns), {"bits": 4, "group_size": 20 if columns % 32 else 32, "axis": axis}
    parts = random_parts(shape, params, np.random.default_rng(1))
    codes = ((np.stack([parts["data"] & 15, parts["data"] >> 4], -1).astype(np.int16) ^ 8) - 8).reshape(-1)
    scales = np.repeat(parts["scale"].reshape(-1), params["group_size"])[: codes.size]
    np.testing.assert_array_equal(decoded(parts, shape, params), (codes.astype("f4") * scales).reshape(shape))


class CountingPart:
    """An array that counts the bytes read."""

    def __init__(self, array):
        self.array, self.read = array, 0
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, key):
        selection = self.array[key]
        self.read += selection.nbytes
        return selection


@pytest.mark.parametrize("axis", [-1, "flat"])
def test_rows_read_only_their_own_bytes(axis):
    params = {"bits": 4, "group_size": 32, "axis": axis, "scale_dtype": "f16"}
    parts = random_parts((64, 128), params, np.random.default_rng(2))
    counting = {role: CountingPart(part) for role, part in parts.items()}
    decoded(counting, (64, 128), params, (slice(10, 12), slice(0, 128)))
    assert {role: part.read for role, part in counting.items()} == {"data": 2 * 64, "scale": 2 * 4 * 2}


def test_unaligned_parts_are_read():
    params = {"bits": 4, "group_size": 32, "word": "u32"}
    parts = random_parts((4, 64), params, np.random.default_rng(3))
    moved = {}
    for role, part in parts.items():
        room = np.empty(part.nbytes + 1, np.uint8)
        room[1:] = np.frombuffer(part.tobytes(), np.uint8)
        moved[role] = room[1:].view(part.dtype).reshape(part.shape)
    np.testing.assert_array_equal(decoded(moved, (4, 64), params), decoded(parts, (4, 64), params))


@pytest.mark.parametrize(
    "params", [{"bits": 4}, {"bits": 3, "axis": "flat", "group_size": 32}, {"bits": 8, "axis": -2}]
)
def test_empty_tensors_decode(params):
    parts = CODEC.from_params(CODEC.params_for(spec_of((0, 32)), params)).encode(np.zeros((0, 32), np.float32))
    assert decoded(parts, (0, 32), params).shape == (0, 32)


def test_non_finite_scales_decode_without_an_error():
    parts = {"data": np.array([[1, -1]], np.int8), "scale": np.array([[np.inf]], np.float32)}
    assert decoded(parts, (1, 2), {"bits": 8, "word": "i8"}).tolist() == [[np.inf, -np.inf]]


@settings(max_examples=200, deadline=None)
@given(schemes(encodable=True), st.integers(0, 2**32), st.sampled_from([0.0, 1.0, 100.0]), st.sampled_from([1e-3, 1.0]))
def test_the_encoding_error_is_at_most_half_a_step(case, seed, centre, spread):
    shape, params = case
    params = CODEC.params_for(spec_of(shape), params)
    assume(not is_mlx_layout(Scheme.of(params).upright))  # MLX scales hit only one end of the range
    values = (np.random.default_rng(seed).normal(size=shape) * spread + centre).astype(np.float32)
    parts = CODEC.from_params(params).encode(values)
    declared = CODEC.from_params(params).parts(spec_of(shape))
    assert {role: (dtypes.from_numpy(part.dtype), part.shape) for role, part in parts.items()} == declared
    steps = decoded(parts | ({"offset": parts["offset"]} if "offset" in parts else {}), shape, params)
    scale = scale_per_element(parts, shape, params)
    slack = 4 * np.spacing(np.abs(values)) + 8 * np.spacing(scale * (1 << params["bits"]))
    assert (np.abs(steps.astype(np.float64) - values) <= scale / 2 + slack).all()


def scale_per_element(parts, shape, params):
    """The scale of each element: code 1 decoded without offset."""
    byte_params = {
        "bits": 8,
        "word": "i8",
        **{k: params[k] for k in ("group_size", "axis", "transposed") if k in params},
    }
    stored = CODEC.from_params(byte_params).parts(spec_of(shape))["data"][1]
    ones = {"data": np.ones(stored, np.int8), "scale": parts["scale"].astype(np.float32)}
    return np.abs(decoded(ones, shape, byte_params))


def test_symmetric_scales_are_the_largest_magnitude_over_the_largest_code():
    values = np.array([[-7.0, 3.5, 2.5, 1.49], [0, 0, 0, 0]], np.float32)
    parts = CODEC.from_params({"bits": 4, "group_size": 4, "word": "u16"}).encode(values)
    assert parts["scale"].tolist() == [[1.0], [1.0]]  # an all-zero group has scale 1
    assert decoded(parts, (2, 4), {"bits": 4, "group_size": 4, "word": "u16"})[0].tolist() == [-7, 4, 2, 1]  # to even


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("offset_dtype", ["packed", "f16"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("more", [{}, {"axis": -2}, {"axis": -2, "transposed": True, "zero": 1}, {"axis": "flat"}])
def test_symmetric_codes_store_the_middle_and_are_found_out(bits, offset_dtype, signed, more):
    params = {"bits": bits, "group_size": 8, "word": "i32", "offset": "zero_point", "signed": signed,
              "offset_dtype": offset_dtype, **more}  # fmt: skip
    values, spec = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32), spec_of((32, 32))
    for symmetric in (True, False):
        stated = {**params, "symmetric": symmetric}
        parts = CODEC.from_params(stated).encode(values)
        codec = CODEC.from_params(params).examine(parts, spec)
        assert codec.params.get("symmetric", False) is symmetric
        assert CODEC.from_params(codec.params).canonical == CODEC.from_params(params).canonical
        assert CODEC.from_params(codec.params).code_layout(spec).is_symmetric is symmetric
        np.testing.assert_array_equal(decoded(parts, (32, 32), stated), decoded(parts, (32, 32), params))
    without = {key: params[key] for key in params if key not in ("offset", "offset_dtype", "zero")}
    middle = CODEC.from_params({**without, "zero": 0 if signed else 1 << bits - 1}).encode(values)
    np.testing.assert_array_equal(
        decoded(CODEC.from_params({**params, "symmetric": True}).encode(values), (32, 32), params),
        decoded(middle, (32, 32), {**without, "zero": 0 if signed else 1 << bits - 1}),
    )


@pytest.mark.parametrize(
    ("values", "zeros"), [([0, 1, 7, 14], 0), ([0, -1, -8, -15], 14), ([0, 0, 0, 0], 0), ([-8, -1, 0, 7], 7)]
)
def test_gptq_v1_zero_points_are_stored_minus_one_and_never_negative(values, zeros):
    params = {"bits": 4, "group_size": 4, "offset": "zero_point", "zero": 1}
    parts = CODEC.from_params(CODEC.params_for(spec_of((1, 4)), params)).encode(np.array([values], np.float32))
    assert (parts["offset"].tolist(), parts["scale"].tolist()) == ([[zeros]], [[1.0]])
    assert decoded(parts, (1, 4), params).tolist() == [values]


@pytest.mark.parametrize("offset", ["zero_point", "bias"])
@pytest.mark.parametrize("value", [0.0, 3.25, -3.25])
def test_constant_groups_round_trip_exactly(offset, value):
    params = CODEC.params_for(spec_of((2, 8)), {"bits": 4, "group_size": 8, "offset": offset})
    values = np.full((2, 8), value, np.float32)
    np.testing.assert_allclose(decoded(CODEC.from_params(params).encode(values), (2, 8), params), values, rtol=1e-6)


def test_non_finite_values_are_counted_and_refused():
    values = np.ones((2, 4), np.float32)
    values[0, 1], values[1, 2] = np.nan, np.inf
    with pytest.raises(CodecError) as error:
        CODEC.from_params({"bits": 8}).encode(values)
    assert error.value.found == "2 of 8"


def test_values_outside_the_range_of_the_scale_dtype_are_refused():
    with expect_error(CodecError, code="range", expected="scale f16", found="1 groups", hint="scale_dtype=f32"):
        CODEC.from_params({"bits": 4, "scale_dtype": "f16"}).encode(np.full((1, 4), 3e38, np.float32))


@settings(max_examples=100, deadline=None)
@given(schemes(encodable=True), st.integers(0, 2**32))
def test_panels_encode_independently(case, seed):
    shape, params = case
    if not shape:
        return
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    whole = CODEC.from_params(params).encode(values)
    regions = stored_panels(shape, CODEC.from_params(params).encode_grain(spec_of(shape)), 4, budget=1)
    pieces = [CODEC.from_params(params).encode(values[region]) for region in regions]
    for role, part in whole.items():
        assert b"".join(piece[role].tobytes() for piece in pieces) == part.tobytes()


@settings(max_examples=60, deadline=None)
@given(schemes())
def test_the_grain_covers_every_region(case):
    shape, params = case
    region = tuple(slice(size // 3, size // 3 + 1) for size in shape)
    wide = on_grain(region, shape, CODEC.from_params(params).grain(spec_of(shape)))
    assert all(w.start <= r.start < r.stop <= w.stop <= size for w, r, size in zip(wide, region, shape))


@settings(max_examples=60, deadline=None)
@given(schemes(encodable=True))
def test_complete_parameters_are_a_fixed_point_and_may_be_text(case):
    shape, params = case
    done = CODEC.params_for(spec_of(shape), params)
    text = {key: value if isinstance(value, (tuple, list)) else str(value).lower() for key, value in params.items()}
    assert CODEC.params_for(spec_of(shape), done) == done == CODEC.params_for(spec_of(shape), text)


@pytest.mark.parametrize(
    ("shape", "params", "field", "value"),
    [
        ((4, 30), {"bits": 4, "group_size": 32}, "expected", "a multiple of 32"),
        ((4, 32), {"bits": 9}, "expected", "from 1 to 8"),
        ((4, 32), {"group_size": 32}, "expected", "bits, group_size"),
        ((4, 32), {"bits": 4, "groupsize": 32}, "found", "groupsize"),
        ((4, 32), {"bits": 4, "group_size": -1}, "expected", "from 0"),
        ((4, 32), {"bits": 4, "group_size": "many"}, "expected", "an integer"),
        ((4, 32), {"bits": 4, "axis": 2}, "expected", "from -2 to -1"),
        ((4, 32), {"bits": 3, "word": "u32", "order": "msb"}, "expected", "lsb"),
        ((4, 32), {"bits": 4, "order": [0, 0]}, "expected", "permutation of the 2 codes"),
        ((4, 32), {"bits": 4, "offset": "bias", "offset_dtype": "u8"}, "expected", "f32 or"),
        ((4, 32), {"bits": 4, "signed": "perhaps"}, "expected", "true or false"),
        ((32,), {"bits": 4, "axis": -2}, "expected", "rank 2"),
        ((32,), {"bits": 4, "transposed": True}, "expected", "rank 2"),
        ((4, 32), {"bits": 4, "signed": False}, "expected", "midpoint"),
        ((4, 32), {"bits": 1}, "expected", "bias or zero_point, for 1-bit codes"),
        ((4, 32), {"bits": 1, "offset": "zero_point", "zero": 1}, "expected", "0"),
        ((4, 32), {"bits": 4, "offset": "zero_point", "zero": 2}, "expected", "0 or 1"),
        ((4, 32), {"bits": 4, "scale_dtype": "f8_e8m0"}, "expected", "f32 or"),
        ((4, 32), {"bits": 4, "symmetric": True}, "expected", "false without zero points"),
        ((4, 32), {"bits": 4, "offset": "bias", "symmetric": True}, "expected", "zero_point"),
        ((4, 32), {"bits": 1, "offset": "zero_point", "symmetric": True}, "expected", "2 or more"),
    ],
)
def test_invalid_parameters_are_refused_with_the_legal_values(shape, params, field, value):
    with pytest.raises(CodecError) as caught:
        CODEC.params_for(spec_of(shape), params)
    assert value in str(getattr(caught.value, field))


def test_short_names_resolve_to_encodings():
    from squish_codecs import squish_codecs

    from squish_core.specs import parse_spec

    for text in squish_codecs()[0].aliases.values():
        params = CODEC.params_for(spec_of((8, 128)), parse_spec(text).params)
        values = np.random.default_rng(4).normal(size=(8, 128)).astype(np.float32)
        assert decoded(CODEC.from_params(params).encode(values), (8, 128), params).shape == (8, 128)


@settings(max_examples=150, deadline=None)
@given(schemes(), schemes(), st.booleans(), st.integers(0, 99))
def test_repacking_gives_the_same_values_or_none(one, other, itself, seed):
    (shape, source), target = one, one[1] if itself else other[1]
    try:
        declared = CODEC.from_params(target).parts(spec_of(shape))
    except CodecError:
        return
    parts = random_parts(shape, source, np.random.default_rng(seed))
    codes = CODEC.from_params(source).codes(parts, spec_of(shape), full(shape))
    parts_of_codes = codes and CODEC.from_params(target).from_codes(codes, spec_of(shape))
    assert parts_of_codes or not (itself and codes)
    if parts_of_codes:
        assert {role: part.shape for role, part in parts_of_codes[0].items()} == {
            r: size for r, (_, size) in declared.items()
        }
        np.testing.assert_array_equal(decoded(parts_of_codes[0], shape, target), decoded(parts, shape, source))


SEARCHED = {
    "symmetric": {"bits": 4, "group_size": 32},
    "zero points": {"bits": 4, "group_size": 32, "offset": "zero_point"},
    "packed zero points, transposed": {
        "bits": 4, "group_size": 32, "axis": -2, "transposed": True, "word": "i32", "offset": "zero_point",
        "offset_dtype": "packed", "scale_dtype": "f16",
    },
    "zero points less one": {"bits": 4, "group_size": 32, "offset": "zero_point", "zero": 1},
    "biases": {"bits": 3, "group_size": 32, "offset": "bias", "scale_dtype": "bf16"},
    "flat, a short last group": {"bits": 2, "group_size": 50, "axis": "flat", "offset": "bias"},
    "one group": {"bits": 4, "group_size": 0, "offset": "bias"},
}  # fmt: skip


@pytest.mark.parametrize("name", SEARCHED)
def test_the_search_never_raises_a_groups_squared_error(name):
    params, spec = SEARCHED[name], spec_of((64, 96))
    values = np.random.default_rng(3).standard_t(4, size=spec.shape).astype(np.float32)

    def errors(search):
        params_of_search = Affine().params_for(spec, {**params, "search": search})
        parts = Affine.from_params(params_of_search).encode(values)
        gap = np.square(
            read_region(Affine.from_params(params_of_search), parts, spec, full(spec.shape)).astype("f8") - values
        )
        if params.get("transposed"):
            return gap.reshape(64, -1, 32).sum(axis=-1)
        size = params["group_size"] or 96
        return np.add.reduceat(gap.reshape(-1), range(0, values.size, size))

    unsearched, searched = errors("none"), errors("mse")
    assert (searched <= unsearched * (1 + 1e-6)).all()
    assert searched.sum() < 0.97 * unsearched.sum()


def test_a_search_does_not_change_the_layout():
    assert Affine().params_for(spec_of((2, 32)), {"bits": 4, "search": "none"}) == {"bits": 4, "group_size": 0}
    with expect_error(CodecError, code="params", expected="none or mse or activations", found="'best'"):
        Affine().params_for(spec_of((2, 32)), {"bits": 4, "search": "best"})
