"""The palette codec compared with bitsandbytes, and with a slow reference for all parameters."""

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_codecs.api import Affine, Palette
from squish_codecs.palette.codec import nearest
from squish_codecs.palette.tables import NAMED
from squish_testing import CodecSuite
from squish_testing.codecs import read_region

from squish_core.api import CodecError, TensorSpec, dtypes
from squish_core.codecs.regions import full

DATA = Path(__file__).parent / "data"
CODEC = Palette


def spec_of(shape):
    return TensorSpec(name="w", shape=tuple(shape), dtype="f32")


def decoded(parts, shape, params, region=None):
    return read_region(CODEC.from_params(params), parts, spec_of(shape), region or full(tuple(shape)))


def reference(parts, shape, params):
    """Decode one value at a time from the bits of the words."""
    vector, axis = params.get("vector", 1), len(shape) + params.get("vector_axis", -1)
    flat = params.get("axis") == "flat"
    index_shape = [size // vector if a == axis else size for a, size in enumerate(shape)]
    width = index_shape[-1] if shape and not flat else math.prod(index_shape)
    size = params.get("codebook_size", 0) // vector
    out = np.zeros(shape, np.float32)
    for place in np.ndindex(*shape):
        index = [p // vector if a == axis else p for a, p in enumerate(place)]
        number = int(np.ravel_multi_index(index, index_shape)) if shape else 0
        line, at = divmod(number, width)
        code = code_at(parts["data"].reshape(-1, parts["data"].shape[-1])[line], at, params)
        value = entry(parts, params, number // size if size else None, code, place[axis] % vector if shape else 0)
        if params.get("scale_dtype", "none") != "none":
            element = int(np.ravel_multi_index(place, shape)) if shape else 0
            row = math.prod(shape) if flat else shape[-1]
            group = params.get("group_size") or row
            cell = (element // row) * -(-row // group) + element % row // group
            value = scaled(value, parts, params, cell)
        out[place] = value
    return out


def code_at(words, at, params):
    width, bits = int(params.get("word", "u8")[1:]), params["bits"]
    if params.get("order", "lsb") != "lsb":
        each = width // bits
        place = at % each if params["order"] == "padded" else each - 1 - at % each
        return int(words[at // each]) % (1 << width) >> place * bits & (1 << bits) - 1
    stream = sum((int(word) % (1 << width)) << (width * i) for i, word in enumerate(words))
    return stream >> at * bits & (1 << bits) - 1


def entry(parts, params, book, code, lane):
    table = params.get("table")
    if table is not None:
        values = NAMED[table] if isinstance(table, str) else table
        return np.float32(values[code]) if code < len(values) else np.float32(0)
    codebook = parts["codebook"] if book is None else parts["codebook"][book]
    return np.float32(codebook[code] if params.get("vector", 1) == 1 else codebook[code][lane])


def scaled(value, parts, params, cell):
    scale, offset = parts["scale"].reshape(-1)[cell], parts.get("offset")
    if params.get("nested"):
        factor = parts["scale_scale"][cell // params["nested"]]
        return value * np.float32(parts["scale_codebook"][scale] * factor + parts["scale_offset"])
    if params.get("offset") == "zero_point":
        value = value - np.float32(offset.reshape(-1)[cell])
    value = value * np.float32(scale)
    return value + np.float32(offset.reshape(-1)[cell]) if params.get("offset") == "bias" else value


@st.composite
def palettes(draw):
    """Valid combinations of shapes and parameters."""
    params = {"bits": draw(st.integers(1, 8)), "word": draw(st.sampled_from(["u8", "i8", "u16", "u32"]))}
    spare = int(params["word"][1:]) % params["bits"]
    params["order"] = draw(st.sampled_from(["lsb", "padded"] if spare else ["lsb", "padded", "msb"]))
    if draw(st.booleans()):
        params["axis"] = "flat"
    group, groups = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    shape = [*draw(st.lists(st.integers(1, 4), max_size=2)), group * groups]
    kind = draw(st.sampled_from(["named", "list", "one", "many", "vector"]))
    if kind == "named":
        params["table"] = {4: "nf4", 2: "nf2"}.get(params["bits"], [1.5, -2.0])
    elif kind == "list":
        params["table"] = [0.5, -1.0]
    elif kind == "many":
        params["codebook_size"] = draw(st.sampled_from([group, shape[-1], math.prod(shape)]))
    elif kind == "vector":
        params["vector_axis"] = draw(st.integers(-len(shape), -1))
        params["vector"] = draw(st.sampled_from([n for n in (1, 2, 3, 4) if shape[params["vector_axis"]] % n == 0]))
    if kind in ("one", "many", "vector"):
        params["codebook_dtype"] = draw(st.sampled_from(["f32", "f16", "i8"]))
    if draw(st.booleans()):
        params["scale_dtype"] = draw(st.sampled_from(["f32", "f16", "bf16"]))
        params["group_size"] = draw(st.sampled_from([0, group]))
        params["offset"] = draw(st.sampled_from(["none", "zero_point", "bias"]))
        if params["offset"] == "none" and params.get("axis") == "flat":
            params["nested"] = draw(st.integers(0, 3))
    return tuple(shape), params


def random_parts(shape, params, rng):
    parts = {}
    for role, (dtype, size) in CODEC.from_params(params).parts(spec_of(shape)).items():
        kind = dtypes.to_numpy(dtype)
        whole = rng.integers(0, 256, (*size, kind.itemsize), np.uint8).view(kind).reshape(size)
        parts[role] = whole if kind.kind in "iu" else np.asarray(rng.normal(size=size)).astype(kind)
    return parts


def test_values_are_bit_identical_to_bitsandbytes():
    case, stored = json.loads((DATA / "palette.json").read_text()), np.load(DATA / "palette.npz")
    values = decoded(dict(stored), case["shape"], case["params"])
    assert hashlib.sha256(values.astype("<f4").tobytes()).hexdigest() == case["sha256"]


@settings(max_examples=200, deadline=None)
@given(palettes(), st.integers(0, 99))
def test_values_equal_the_slow_reference(case, seed):
    shape, params = case
    parts = random_parts(shape, params, np.random.default_rng(seed))
    np.testing.assert_array_equal(decoded(parts, shape, params), reference(parts, shape, params))


@settings(max_examples=150, deadline=None)
@given(palettes(), st.data())
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


def test_scalar_and_empty_tensors_decode():
    params = {"bits": 4, "table": "nf4", "scale_dtype": "f32", "axis": "flat"}
    parts = {"data": np.array([15], np.uint8), "scale": np.array([2.5], np.float32)}
    assert decoded(parts, (), params) == 2.5
    parts = CODEC.from_params(CODEC.params_for(spec_of((0, 32)), params)).encode(np.zeros((0, 32), np.float32))
    assert decoded(parts, (0, 32), params).shape == (0, 32)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 99), st.sampled_from([-1, "flat"]), st.sampled_from(["f32", "f16", "bf16"]))
def test_the_encoder_chooses_the_nearest_entry(seed, axis, dtype):
    params = CODEC.params_for(
        spec_of((4, 48)), {"bits": 4, "table": "nf4", "group_size": 16, "axis": axis, "scale_dtype": dtype}
    )
    values = np.random.default_rng(seed).normal(size=(4, 48)).astype(np.float32)
    parts = CODEC.from_params(params).encode(values)
    scale = np.repeat(parts["scale"].astype(np.float64).reshape(4, 3), 16, axis=1)
    assert (np.abs(values) <= scale).all()
    nearest = np.abs(values[..., None] - scale[..., None] * np.array(NAMED["nf4"])).min(axis=-1)
    np.testing.assert_allclose(np.abs(decoded(parts, (4, 48), params) - values), nearest, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=40), st.integers(0, 99))
def test_nearest_works_for_any_table(table, seed):
    table = np.array(table, np.float32)
    values = np.random.default_rng(seed).uniform(-1.2, 1.2, 200).astype(np.float32)
    values[: len(table)] = table
    rounded = table[nearest(table, values)]
    assert (np.abs(rounded.astype(float) - values) == np.abs(table.astype(float) - values[:, None]).min(axis=1)).all()


def test_a_midpoint_gets_the_lower_entry():
    params = {"bits": 2, "table": [-2.0, -1.0, 1.0, 2.0], "scale_dtype": "f32"}
    values = np.array([[2.0, 1.5, 0.0, -1.5]], np.float32)
    assert decoded(CODEC.from_params(params).encode(values), (1, 4), params).tolist() == [[2, 1, -1, -2]]


@settings(max_examples=150, deadline=None)
@given(palettes(), palettes(), st.booleans(), st.integers(0, 99))
def test_repacking_gives_the_same_values_or_none(one, other, itself, seed):
    (shape, source), target = one, one[1] if itself else other[1]
    try:
        declared = CODEC.from_params(target).parts(spec_of(shape))
    except CodecError:
        return
    parts = random_parts(shape, source, np.random.default_rng(seed))
    codes = CODEC.from_params(source).codes(parts, spec_of(shape), full(shape))
    parts_of_codes = codes and CODEC.from_params(target).from_codes(codes, spec_of(shape))
    assert parts_of_codes or not (itself and codes and not source.get("nested"))
    if parts_of_codes:
        assert {role: part.shape for role, part in parts_of_codes[0].items()} == {
            r: size for r, (_, size) in declared.items()
        }
        np.testing.assert_array_equal(decoded(parts_of_codes[0], shape, target), decoded(parts, shape, source))


def test_repacking_resolves_nested_scales():
    case, stored = json.loads((DATA / "palette.json").read_text()), dict(np.load(DATA / "palette.npz"))
    spec = spec_of(case["shape"])
    codes = CODEC.from_params(case["params"]).codes(stored, spec, full(spec.shape))
    nf4_params = {"bits": 4, "group_size": 64, "table": "nf4", "scale_dtype": "f32"}
    parts, exactness = CODEC.from_params(nf4_params).from_codes(codes, spec)
    assert exactness.kind == "values"
    np.testing.assert_array_equal(decoded(parts, spec.shape, nf4_params), decoded(stored, spec.shape, case["params"]))


def test_affine_refuses_codes_with_a_table():
    params = {"bits": 4, "group_size": 16, "table": "nf4", "scale_dtype": "f32"}
    parts = CODEC.from_params(params).encode(np.ones((2, 16), np.float32))
    codes = CODEC.from_params(params).codes(parts, spec_of((2, 16)), full((2, 16)))
    assert (
        Affine.from_params({"bits": 4, "group_size": 16, "signed": False}).from_codes(codes, spec_of((2, 16))) is None
    )


@pytest.mark.parametrize(
    ("shape", "params", "field", "value"),
    [
        ((4, 32), {"bits": 9}, "expected", "from 1 to 8"),
        ((4, 32), {"bits": 4, "tabel": "nf4"}, "found", "tabel"),
        ((4, 32), {"bits": 4, "table": "nf5"}, "expected", "nf4, nf2 or numbers"),
        ((4, 32), {"bits": 3, "table": "nf4", "scale_dtype": "f32"}, "expected", "the bits of the table"),
        ((4, 32), {"bits": 1, "table": [1.0, 2.0, 3.0], "scale_dtype": "f32"}, "expected", "1 to 2 numbers"),
        ((4, 32), {"bits": 4, "axis": -2}, "expected", "-1 or flat"),
        ((4, 32), {"bits": 4, "group_size": 8}, "expected", "a dtype, with group_size"),
        ((4, 32), {"bits": 4, "vector": 5}, "expected", "a multiple of 5"),
        ((4, 32), {"bits": 4, "codebook_size": 48}, "expected", "a multiple of 48"),
        ((4, 32), {"bits": 4, "nested": 4, "scale_dtype": "f32"}, "expected", "axis=flat"),
        ((4, 30), {"bits": 4, "table": "nf4", "group_size": 16, "scale_dtype": "f32"}, "expected", "a multiple of 16"),
        ((4, 32), {"bits": 4, "scale_dtype": "f32"}, "expected", "table=nf4"),
    ],
)
def test_invalid_parameters_are_refused_with_the_legal_values(shape, params, field, value):
    with pytest.raises(CodecError) as caught:
        CODEC.params_for(spec_of(shape), params)
    assert value in str(getattr(caught.value, field))


class TestPalette(CodecSuite):
    codec = "palette"

    def cases(self):
        rng = np.random.default_rng(0)
        stored = {
            "core ml": ((6, 20), {"bits": 6, "axis": "flat", "codebook_dtype": "f16"}),
            "a codebook per two rows": ((6, 20), {"bits": 3, "axis": "flat", "codebook_size": 40}),
            "vectors down": ((6, 20), {"bits": 4, "axis": "flat", "vector": 2, "vector_axis": -2}),
            "nf2 with zero points": (
                (4, 32), {"bits": 2, "table": "nf2", "group_size": 16, "scale_dtype": "f32", "offset": "zero_point"}
            ),
        }  # fmt: skip
        cases = {
            name: (spec_of(shape), params, random_parts(shape, params, rng)) for name, (shape, params) in stored.items()
        }
        for axis in (-1, "flat"):
            params = {"bits": 4, "table": "nf4", "group_size": 32, "scale_dtype": "f32", "axis": axis}
            cases[f"nf4 {axis}"] = spec_of((8, 64)), params, rng.normal(size=(8, 64)).astype(np.float32)
        return cases
