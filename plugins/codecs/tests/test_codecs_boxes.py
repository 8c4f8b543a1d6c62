"""Integers with scales, zero points and codebooks per box, compared with values computed one by one."""

import numpy as np
import pytest
from squish_codecs.api import Packing
from squish_codecs.boxes import Boxes
from squish_testing import CodecSuite
from squish_testing.codecs import read_region

from squish_core.api import CodecError, TensorSpec, dtypes
from squish_core.codecs.regions import full

FORMS = {
    "boxes": {"bits": 4, "signed": True, "grid": (3, 4), "scale_dtype": "f16"},
    "columns": {"bits": 4, "grid": (1, 4), "scale_dtype": "f32"},
    "zero points in bits": {"bits": 4, "grid": (3, 4), "scale_dtype": "f16", "offset_dtype": "packed"},
    "signed zero points in bits": {
        "bits": 4, "signed": True, "grid": (3, 4), "scale_dtype": "f16", "offset_dtype": "packed"},
    "int8 zero points": {"bits": 8, "signed": True, "grid": (2, 2), "scale_dtype": "bf16", "offset_dtype": "i8"},
    "three bits": {"bits": 3, "grid": (2, 12), "scale_dtype": "f16"},
    "books": {"bits": 4, "books": (3, 2), "codebook_dtype": "f16"},
    "books with scales": {
        "bits": 2, "books": (6, 1), "grid": (1, 12), "scale_dtype": "f16", "codebook_dtype": "i8",
        "offset_dtype": "i8"},
    "masked": {"bits": 4, "signed": True, "grid": (3, 4), "scale_dtype": "f16", "count": None},
    "masked zero points": {
        "bits": 4, "grid": (6, 2), "scale_dtype": "f16", "offset_dtype": "packed", "count": None},
    "masked books": {"bits": 4, "books": (3, 2), "codebook_dtype": "f16", "count": None},
}  # fmt: skip
SHAPES = {(6, 12): 1, (6, 24, 5): 2, (12, 12, 2, 3): 3}


def stored(params, shape, seed=0):
    """Parameters (with the count under a mask), random parts, and the values by definition, one by one."""
    rng, count = np.random.default_rng(seed), int(np.prod(shape))
    params = {key: list(value) if isinstance(value, tuple) else value for key, value in params.items()}
    for name in ("grid", "books"):
        if name in params:
            params[name] = [*params[name], *(1,) * (len(shape) - 2)]
    mask = rng.random(count) > 0.4 if "count" in params else np.ones(count, bool)
    if "count" in params:
        params["count"] = int(mask.sum())
    bits = params["bits"]
    codes = rng.integers(0, 1 << bits, int(mask.sum())).astype(np.uint8)
    parts, pack = {}, Packing(bits, "u8", "lsb").pack
    grids = {}
    for role, (dtype, size) in Boxes.from_params(params).parts(TensorSpec(name="w", shape=shape, dtype="f32")).items():
        if role == "data":
            parts[role] = pack(codes)
        elif role == "mask":
            parts[role] = np.packbits(mask, bitorder="little")
        elif role == "offset" and params["offset_dtype"] == "packed":
            zeros = rng.integers(0, 1 << bits, params["grid"]).astype(np.uint8)
            parts[role], grids[role] = pack(zeros.reshape(-1)), signed(zeros, params)
        else:
            kind = dtypes.to_numpy(dtype)
            whole = kind.kind in "iu"
            parts[role] = (rng.integers(-9, 9, size) if whole else rng.normal(size=size)).astype(kind)
            grids[role] = parts[role].astype(np.float32)
    values = np.zeros(shape, np.float32)
    numbers = signed(codes, params)
    for place, index in enumerate(np.argwhere(mask.reshape(shape))):
        value = np.float32(numbers[place])
        if "codebook" in grids:
            value = grids["codebook"][(*box(index, shape, params["books"]), codes[place])]
        if "offset" in grids:
            value = value - np.float32(grids["offset"][box(index, shape, params["grid"])])
        if "scale" in grids:
            value = value * grids["scale"][box(index, shape, params["grid"])]
        values[tuple(index)] = value
    return params, parts, values


def signed(codes, params):
    half = 1 << params["bits"] - 1
    return (codes.astype(int) ^ half) - half if params.get("signed") else codes.astype(int)


def box(index, shape, grid):
    return tuple(int(place) // (size // cells) for place, size, cells in zip(index, shape, grid))


class TestBoxes(CodecSuite):
    codec = "boxes"

    def cases(self):
        cases = {}
        for name, form in FORMS.items():
            for shape in SHAPES:
                params, parts, _ = stored(form, shape)
                cases[f"{name}{shape}"] = TensorSpec(name="w", shape=shape, dtype="f32"), params, parts
        return cases


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_values_match_the_definition(name, shape):
    params, parts, values = stored(FORMS[name], shape)
    spec = TensorSpec(name="w", shape=shape, dtype="f32")
    np.testing.assert_array_equal(read_region(Boxes.from_params(params), parts, spec, full(shape)), values)
    for start in range(shape[0]):
        region = (slice(start, min(start + 4, shape[0])), *full(shape)[1:])
        np.testing.assert_array_equal(read_region(Boxes.from_params(params), parts, spec, region), values[region])


@pytest.mark.parametrize("shape", [(0, 12), (6, 0), ()])
def test_empty_and_scalar_tensors_decode(shape):
    params = {"bits": 4, "grid": [1] * len(shape), "scale_dtype": "f16", "offset_dtype": "packed"}
    spec = TensorSpec(name="w", shape=shape, dtype="f32")
    parts = {
        role: np.ones(size, dtypes.to_numpy(dtype))
        for role, (dtype, size) in Boxes.from_params(params).parts(spec).items()
    }
    np.testing.assert_array_equal(
        read_region(Boxes.from_params(params), parts, spec, full(shape)), np.zeros(shape, np.float32)
    )


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({}, "params"), ({"bits": 9}, "params"), ({"bits": 4, "grid": [3]}, "shape"),
        ({"bits": 4, "grid": [4, 4]}, "shape"), ({"bits": 4, "grid": [0, 4]}, "params"),
        ({"bits": 4, "grid": [[3], 4]}, "params"), ({"bits": 4, "books": [5, 1]}, "shape"),
        ({"bits": 4, "signed": 1}, "params"), ({"bits": 4, "boxes": [3, 4]}, "params"),
        ({"bits": 4, "count": -1}, "params"), ({"bits": 4, "scale_dtype": "i8"}, "params"),
    ],
)  # fmt: skip
def test_invalid_parameters_are_refused(params, code):
    with pytest.raises(CodecError) as caught:
        Boxes.from_params(params).parts(TensorSpec(name="w", shape=(6, 12), dtype="f32"))
    assert caught.value.code == code


def test_a_mask_with_the_wrong_number_of_bits_is_refused():
    params, parts, _ = stored(FORMS["masked"], (6, 12))
    parts["mask"] = parts["mask"] ^ 1
    with pytest.raises(CodecError) as caught:
        read_region(Boxes.from_params(params), parts, TensorSpec(name="w", shape=(6, 12), dtype="f32"), full((6, 12)))
    assert caught.value.code == "mask"


def test_box_codes_repack_to_row_groups():
    """Scales per 2 rows and 3 columns become scales per row in groups of 3."""
    params, parts, _ = stored(FORMS["boxes"], (6, 12))
    spec = TensorSpec(name="w", shape=(6, 12), dtype="f32")
    codes = Boxes.from_params(params).codes(parts, spec, (slice(1, 4), slice(0, 12)))
    assert codes.group == (1, 3)
    np.testing.assert_array_equal(codes.scale, np.repeat(parts["scale"], 2, axis=0)[1:4])
