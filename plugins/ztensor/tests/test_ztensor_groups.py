"""Group quantisation between the wires and the shared affine codec: codes move, values stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import pytest
from attrs import evolve
from squish_testing.codecs import read_region
from squish_ztensor import groups

import squish_core as squish
from squish_core.codecs.regions import full
from squish_core.errors import SquishError
from squish_core.model import CodecSpec, Encoding, Part, Refusal, TensorSpec
from squish_core.plugins.registry import registry

SHAPE = (16, 32)
RNG = np.random.default_rng(3)
# What other containers say of their tensors: MLX (bias), GPTQ (transposed, packed zeros, minus 1), AWQ (listed order),
# SQUIZD (signed), UQFF and HQQ (float zeros), one scale a row.
SOURCES: dict[str, dict[str, Any]] = {
    "plain": {"bits": 4, "group_size": 8, "offset": "zero_point", "offset_dtype": "f16", "scale_dtype": "f16"},
    "first axis": {"bits": 4, "group_size": 8, "axis": -2, "word": "i32", "offset": "zero_point", "offset_dtype": "u8"},
    "none": {"bits": 8, "group_size": 16, "signed": False},
    "implied": {"bits": 4, "group_size": 16, "zero": 8, "word": "u32"},
    "signed": {"bits": 4, "group_size": 16, "scale_dtype": "f16"},
    "signed zero": {"bits": 8, "group_size": 16, "signed": True, "offset": "zero_point", "offset_dtype": "i8"},
    "packed": {"bits": 4, "group_size": 2, "word": "u32", "offset": "zero_point", "offset_dtype": "packed"},
    "gptq": {"bits": 4, "group_size": 8, "axis": -2, "transposed": True, "word": "i32", "offset": "zero_point",
             "offset_dtype": "packed", "zero": 1, "scale_dtype": "f16"},
    "other axis": {"bits": 4, "group_size": 8, "axis": -2, "pack_axis": -1, "word": "u32"},
    "awq": {"bits": 4, "group_size": 8, "axis": -2, "pack_axis": -1, "word": "i32", "order": (0, 4, 1, 5, 2, 6, 3, 7),
            "offset": "zero_point", "offset_dtype": "u8"},
    "msb": {"bits": 2, "group_size": 8, "order": "msb", "zero": 1},
    "whole row": {"bits": 8, "group_size": 0},
    "flat": {"bits": 4, "group_size": 32, "axis": "flat", "zero": 8},
    "whole bias": {"bits": 4, "group_size": 8, "offset": "bias"},
    "three bits": {"bits": 3, "group_size": 8, "offset": "bias"},
}  # fmt: skip


def random_tensor(params: dict[str, Any]) -> tuple[TensorSpec, Encoding, dict[str, Any]]:
    """Random parts for these parameters."""
    codec, spec = registry().codec_type("affine"), TensorSpec(name="w", shape=SHAPE, dtype="f32")
    parts, arrays = {}, {}
    for role, (dtype, shape) in codec.from_params(params).parts(spec).items():
        kind = squish.dtypes.to_numpy(dtype)
        if role == "data" or (params.get("offset_dtype") == "packed" and role == "offset"):
            array = np.frombuffer(RNG.bytes(squish.dtypes.nbytes(dtype, shape)), kind).reshape(shape)
        elif role == "scale":
            array = RNG.choice([0.25, 0.5, 1, 2], shape).astype(kind)
        elif params.get("offset") == "bias":
            array = -RNG.integers(0, 9, shape).astype(kind)
        else:
            array = RNG.integers(0, 9, shape).astype(kind)
        parts[role], arrays[role] = Part(dtype=dtype, shape=shape, data=array.tobytes()), array
    return spec, Encoding(codec=CodecSpec("affine", params), parts=parts), arrays


def target_encoding(spec: TensorSpec, encoding: Encoding, *, zeros: bool) -> Encoding | Refusal:
    """The encoding unchanged, or the nearest one that zTensor supports for its codes."""
    answer = groups.as_stored(spec, encoding, zeros=zeros)
    if isinstance(answer, Encoding):
        return answer
    layout = registry().codec(CodecSpec("affine", encoding.codec.params)).code_layout(spec)
    assert layout is not None
    nearest = groups.nearest(spec, layout, zeros=zeros)
    assert nearest is not None
    return nearest


@pytest.mark.parametrize(
    ("name", "zeros"), [(name, zeros) for name in SOURCES for zeros in (True, False) if zeros or name != "three bits"]
)
def test_the_nearest_scheme_has_the_same_values(name: str, zeros: bool) -> None:
    codec = registry().codec_type("affine")
    params = SOURCES[name]
    spec, encoding, arrays = random_tensor(params)
    target = target_encoding(spec, encoding, zeros=zeros)
    assert isinstance(target, Encoding)
    expected = read_region(codec.from_params(params), arrays, spec, full(SHAPE))
    codes = codec.from_params(params).codes(arrays, spec, full(SHAPE))
    assert codes is not None
    result = codec.from_params(target.codec.params).from_codes(codes, spec)
    assert result is not None
    repacked, _ = result
    declared = {role: (part.dtype, part.shape) for role, part in target.parts.items()}
    assert declared == codec.from_params(target.codec.params).parts(spec)
    np.testing.assert_array_equal(
        read_region(codec.from_params(target.codec.params), repacked, spec, full(SHAPE)).view("u4"), expected.view("u4")
    )


def test_supported_parameters_are_unchanged() -> None:
    for name, zeros in (("plain", True), ("first axis", True), ("implied", False), ("none", False), ("packed", True)):
        spec, encoding, _ = random_tensor(SOURCES[name])
        target = target_encoding(spec, encoding, zeros=zeros)
        assert isinstance(target, Encoding)
        assert target.codec == encoding.codec


@pytest.mark.parametrize(
    ("params", "shape", "why"),
    [({"bits": 5}, SHAPE, "not of 5"), ({"bits": 4, "scale_dtype": "f8_e4m3"}, SHAPE, "scales"),
     ({"bits": 4, "group_size": 8}, (0, 8), "shape"), ({"bits": 4, "group_size": 6, "axis": "flat"}, (4, 4), "axes")],
)  # fmt: skip
def test_unsupported_parameters_are_refused(params: dict[str, Any], shape: Any, why: str) -> None:
    spec = TensorSpec(name="w", shape=shape, dtype="f32")
    answer = target_encoding(spec, Encoding(codec=CodecSpec("affine", params), parts={}), zeros=True)
    assert isinstance(answer, Refusal)
    assert why in answer.why


@pytest.mark.parametrize(("bits", "zeros", "width"), [(3, False, 4), (3, True, 3), (5, False, 8), (6, True, 8)])
def test_stored_codes_of_other_widths_are_widened(bits: int, zeros: bool, width: int) -> None:
    codec, params = registry().codec_type("affine"), {"bits": bits, "group_size": 8, "word": "i32"}
    spec, encoding, arrays = random_tensor(params)
    target = target_encoding(evolve(spec, encodings=(encoding,)), encoding, zeros=zeros)
    assert isinstance(target, Encoding)
    assert target.codec.params["bits"] == width
    codes = codec.from_params(params).codes(arrays, spec, full(SHAPE))
    assert codes is not None
    result = codec.from_params(target.codec.params).from_codes(codes, spec)
    assert result is not None
    np.testing.assert_array_equal(
        read_region(codec.from_params(target.codec.params), result[0], spec, full(SHAPE)),
        read_region(codec.from_params(params), arrays, spec, full(SHAPE)),
    )


def test_values_are_not_encoded_in_another_width(tmp_path: Path) -> None:
    squish.save(tmp_path / "in.zt", {"w.weight": np.ones((64, 128), np.float32)})
    with pytest.raises(SquishError) as caught:
        squish.convert(tmp_path / "in.zt", tmp_path / "out.zt", "ztensor:wire=2", {"*": "affine:bits=3"})
    assert (caught.value.code, caught.value.tensor) == ("refused", "w.weight")


@pytest.mark.parametrize("wires", [("1.1", "2"), ("2", "1.1"), ("1.1,flavor=compatible", "2")])
def test_groups_survive_conversion_between_versions(data: Path, tmp_path: Path, wires: tuple[str, str]) -> None:
    paths = [data / "v12_quantized_group.zt", tmp_path / "one.zt", tmp_path / "two.zt", tmp_path / "three.zt"]
    for source, target, wire in zip(paths, paths[1:], (*wires, wires[0])):
        report = squish.convert(source, target, to=f"ztensor:wire={wire}")
        assert {str(step.exactness) for step in report.steps} == {"bytes"}
    with squish.open(paths[0]) as old, squish.open(paths[-1]) as new:
        for name in old:
            np.testing.assert_array_equal(old[name].numpy(), new[name].numpy())
            assert old[name].spec.encodings[0].codec == new[name].spec.encodings[0].codec
    assert squish.verify(paths[-1], deep=True).problems == ()
    assert paths[1].read_bytes() == paths[3].read_bytes()


def test_1_1_writes_only_the_specified_attributes(data: Path, tmp_path: Path) -> None:
    squish.convert(data / "v12_quantized_group.zt", tmp_path / "new.zt")
    with squish.open(data / "v12_quantized_group.zt") as old, squish.open(tmp_path / "new.zt") as new:
        assert {name: spec.attrs for name, spec in new.index.tensors.items()} == {
            name: spec.attrs for name, spec in old.index.tensors.items()
        }
    blob = (tmp_path / "new.zt").read_bytes()
    manifest = cbor2.loads(blob[-16 - int.from_bytes(blob[-16:-8], "little") : -16])
    record = manifest["objects"]["q_proj_zstd"]
    assert record["format"] == "quantized_group"
    attributes = {key: record["attributes"].get(key) for key in ("bits", "group_size", "packing", "axis", "order")}
    assert attributes == {"bits": 4, "group_size": 16, "packing": "8_per_i32", "axis": None, "order": None}
    assert list(record["components"]) == ["packed_weight", "scales", "zeros"]


@pytest.mark.parametrize("wire", ["1.1", "1.1,flavor=compatible", "2"])
@pytest.mark.parametrize(
    "params", ["bits=4", "bits=4,offset=zero_point", "bits=4,offset=zero_point,axis=-2", "bits=8,offset=zero_point",
               "bits=4,offset=zero_point,word=i32", "bits=4,offset=zero_point,word=i32,offset_dtype=packed",
               "bits=4,offset=zero_point,offset_dtype=f16"],
)  # fmt: skip
def test_values_are_encoded_into_groups(tmp_path: Path, zt: Any, wire: str, params: str) -> None:
    values = RNG.standard_normal((64, 64)).astype(np.float32)
    zt.written(tmp_path / "dense.zt", {"w": values})
    rule = f"affine:group_size=32,{params}"
    squish.convert(tmp_path / "dense.zt", tmp_path / "new.zt", to=f"ztensor:wire={wire}", encode=rule)
    with squish.open(tmp_path / "new.zt") as file:
        assert file["w"].codec == "affine"
        assert np.abs(file["w"].numpy() - values).max() < 0.5
    assert squish.verify(tmp_path / "new.zt", deep=True).problems == ()


def group_file(
    zt: Any, shape: Any, words: np.ndarray, scales: np.ndarray, packing: str, bits: int, *, zeros: bool = True
) -> bytes:
    """`quantized_group` with the attributes that the specification names, and no more."""
    arrays = {"packed_weight": words, "scales": scales.astype("<f2")}
    if zeros:
        arrays["zeros"] = np.ones(scales.shape, "<f2")
    components, blobs = {}, b""
    for role, array in arrays.items():
        dtype = {"<i4": "i32", "<f2": "f16"}[array.dtype.str]
        components[role] = {"dtype": dtype, "offset": 64 + len(blobs), "length": array.nbytes}
        blobs += array.tobytes().ljust(-(-array.nbytes // 64) * 64, b"\0")
    attributes = {"bits": bits, "group_size": 4, "packing": packing}
    record = {"shape": list(shape), "format": "quantized_group", "attributes": attributes, "components": components}
    return zt.pack({"w": record}, blobs)


def packed_codes(codes: np.ndarray, axis: int, bits: int) -> np.ndarray:
    """Codes in words of 32 bits along an axis, low code first; the last word of a line may have room."""
    lines = np.moveaxis(codes, axis, -1).astype(np.uint64)
    per_word = 32 // bits
    lines = np.pad(lines, ((0, 0), (0, -lines.shape[-1] % per_word))).reshape(len(lines), -1, per_word)
    words = (lines << np.arange(0, per_word * bits, bits, dtype=np.uint64)).sum(-1).astype("<u4").view("<i4")
    return np.ascontiguousarray(np.moveaxis(words, -1, axis))


@pytest.mark.parametrize(
    ("shape", "axis", "bits"), [((24, 6), 0, 3), ((6, 24), 1, 3), ((20, 20), 0, 3), ((16, 6), 0, 4), ((6, 16), 1, 4)]
)
def test_1_1_is_read_along_the_axis_that_fits_its_sizes(
    zt: Any, tmp_path: Path, shape: Any, axis: int, bits: int
) -> None:
    codes = RNG.integers(0, 1 << bits, shape)
    scales = RNG.choice([0.5, 1, 2], [size // 4 if at == axis else size for at, size in enumerate(shape)])
    data = group_file(zt, shape, packed_codes(codes, axis, bits), scales, f"{32 // bits}_per_i32", bits)
    expected = (codes - 1.0) * np.repeat(scales, 4, axis)
    np.testing.assert_array_equal(squish.open(data)["w"].numpy(), expected.astype("f4"))
    (tmp_path / "old.zt").write_bytes(data)
    report = squish.convert(tmp_path / "old.zt", tmp_path / "new.zt")
    assert [str(step.exactness) for step in report.steps] == ["bytes"]
    np.testing.assert_array_equal(squish.open(tmp_path / "new.zt")["w"].numpy(), expected.astype("f4"))


def test_1_1_without_zeros_is_a_warning_that_strict_refuses(zt: Any, tmp_path: Path) -> None:
    codes, scales = RNG.integers(0, 16, (16, 6)), np.ones((4, 6))
    data = group_file(zt, (16, 6), packed_codes(codes, 0, 4), scales, "8_per_i32", 4, zeros=False)
    with squish.open(data) as file:
        found = [(problem.code, problem.severity, problem.where) for problem in file.problems]
        assert found == [("missing", "warning", "w")]
        np.testing.assert_array_equal(file["w"].numpy(), codes)
    with pytest.raises(squish.FormatError) as caught:
        squish.open(data, strict=True)
    assert (caught.value.code, caught.value.tensor) == ("missing", "w")
    squish.convert(data, tmp_path / "new.zt")
    with squish.open(tmp_path / "new.zt", strict=True) as file:  # written with zeros
        np.testing.assert_array_equal(file["w"].numpy(), codes)


def test_1_1_with_sizes_that_fit_no_axis_is_refused(zt: Any) -> None:
    data = group_file(zt, (6, 24), np.zeros((6, 4), "<i4"), np.ones((6, 6)), "10_per_i32", 3)
    with pytest.raises(squish.TensorError):
        squish.open(data)["w"].numpy()


@pytest.mark.parametrize("zeros", [True, False], ids=["1.1", "2"])
@pytest.mark.parametrize("source", ["implied", "signed", "awq", "gptq", "other axis"])
def test_repacked_codes_stay_in_words_of_the_same_width(source: str, zeros: bool) -> None:
    params = SOURCES[source]
    spec, encoding, _ = random_tensor(params)
    stored = groups.as_stored(spec, encoding, zeros=zeros)
    if isinstance(stored, Refusal):
        layout = registry().codec(CodecSpec("affine", params)).code_layout(spec)
        stored = groups.nearest(spec, layout, zeros=zeros)
    assert isinstance(stored, Encoding)
    assert stored.codec.params["word"] == params.get("word", "u8") == stored.parts["data"].dtype


def test_codes_are_packed_into_bytes_if_words_do_not_divide_the_axis() -> None:
    spec = TensorSpec(name="w", shape=(16, 12), dtype="f32")
    params = {"bits": 4, "group_size": 4, "axis": -1, "pack_axis": -2, "word": "u32"}
    layout = registry().codec(CodecSpec("affine", params)).code_layout(spec)
    stored = groups.nearest(spec, layout, zeros=False)
    assert isinstance(stored, Encoding)
    assert stored.parts["data"].dtype == "u8"
