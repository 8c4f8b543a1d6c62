"""Tensors of parts in memory, and the descriptions of their encodings."""

from __future__ import annotations

import json

import numpy as np
import pytest
from squish_torch.description import describe, read_description, tensor_from_parts

import squish_core as squish
from squish_core.api import CodecSpec, Encoding, Part, TensorSpec, dtypes


def stored(tmp_path_factory: pytest.TempPathFactory, encode: str) -> squish.Tensor:
    values = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    path = tmp_path_factory.mktemp("parts") / "x.zt"
    squish.save(path, {"w": values}, encode=encode)
    return squish.open(path)["w"]


@pytest.mark.parametrize("encode", ["q4_1", "q6_k", "int4", "f16"])
def test_a_weight_of_parts_in_memory_computes_the_same(tmp_path_factory: pytest.TempPathFactory, encode: str) -> None:
    tensor = stored(tmp_path_factory, encode)
    text = describe(tensor.spec, tensor.bound.encoding)
    parts = {role: bytes(buffer.raw) for role, buffer in tensor.parts(tensor.bound.encoding).items()}
    again = tensor_from_parts(text, parts)
    x = np.random.default_rng(1).standard_normal((3, 256)).astype(np.float32)
    assert np.array_equal(again.numpy(), tensor.numpy())
    assert np.array_equal(again.load().linear(x), tensor.load().linear(x))
    assert again.load().backend == tensor.load().backend


@pytest.mark.skipif("cpu" not in squish.registry().backends, reason="squish-cpu is not installed")
def test_products_on_raw_addresses_are_those_of_linear(tmp_path_factory: pytest.TempPathFactory) -> None:
    tensor = stored(tmp_path_factory, "q4_1")
    text = describe(tensor.spec, tensor.bound.encoding)
    weight = tensor_from_parts(text, {"data": bytes(tensor.parts()["data"].raw)}).load("cpu")
    multiply = weight.linear_pointers()
    assert multiply is not None
    assert tensor.load("cpu").linear_pointers() is None, "a mapped file is checked at each call"
    x, out = np.random.default_rng(1).standard_normal((3, 256)).astype(np.float32), np.empty((3, 64), np.float32)
    multiply(x.ctypes.data, 3, out.ctypes.data)
    assert np.array_equal(out, weight.linear(x))


@pytest.mark.skipif("cpu" not in squish.registry().backends, reason="squish-cpu is not installed")
@pytest.mark.parametrize("options", ["", ":activations=int8", ":activations=bf16,repack=rows", ":repack=rows"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("rows", "columns"), [(64, 256), (33, 96)])
def test_products_on_raw_addresses_in_other_types_are_the_rounded_ones(
    tmp_path_factory: pytest.TempPathFactory, options: str, dtype: str, rows: int, columns: int
) -> None:
    values = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
    path = tmp_path_factory.mktemp("parts") / "x.gguf"
    squish.save(path, {"w": values}, encode="q4_0")
    tensor = squish.open(path)["w"]
    text = describe(tensor.spec, tensor.bound.encoding)
    weight = tensor_from_parts(text, {"data": bytes(tensor.parts()["data"].raw)}).load(f"cpu{options}")
    kind = dtypes.to_numpy(dtype)
    x = np.random.default_rng(1).standard_normal((7, columns)).astype(kind)
    x[0, 0], x[1] = -0.0, 1e-40  # a subnormal row
    multiply = weight.linear_pointers(dtype)
    assert multiply is not None
    for number in (1, 7):
        out = np.full((number + 1, rows), 7, kind)
        multiply(x.ctypes.data, number, out.ctypes.data)
        expected = weight.linear(x[:number].astype(np.float32)).astype(kind)
        np.testing.assert_array_equal(out[:number].astype(np.float32), expected.astype(np.float32))
        assert (out[number] == 7).all(), "nothing is written past the result"


@pytest.mark.parametrize("backend", sorted({"cpu", "numpy"}.intersection(squish.registry().backends)))
def test_a_product_fills_an_array(tmp_path_factory: pytest.TempPathFactory, backend: str) -> None:
    weight = stored(tmp_path_factory, "q4_1").load(backend)
    x = np.random.default_rng(1).standard_normal((2, 3, 256)).astype(np.float32)
    expected = weight.linear(x)
    out = np.empty((2, 3, 64), np.float32)
    assert weight.linear(x, out=out) is out
    assert np.array_equal(out, expected)
    strided = np.empty((2, 3, 128), np.float32)[..., ::2]
    assert np.array_equal(weight.linear(x, out=strided), expected)
    assert weight.linear(x[:, :0], out=out[:, :0]).shape == (2, 0, 64)
    overlapping = np.ones(3 * 256 + 10, np.float32)
    x, out = overlapping[: 3 * 256].reshape(3, 256), overlapping[10 : 10 + 3 * 64].reshape(3, 64)
    expected = weight.linear(x)
    assert np.array_equal(weight.linear(x, out=out), expected)
    frozen = np.empty((3, 64), np.float32)
    frozen.setflags(write=False)
    for wrong in (np.empty((3, 63), np.float32), np.empty((3, 64), np.float64), frozen):
        with pytest.raises(squish.UsageError) as caught:
            weight.linear(x, out=wrong)
        assert caught.value.code == "out"


def test_a_part_of_another_size_is_an_error(tmp_path_factory: pytest.TempPathFactory) -> None:
    tensor = stored(tmp_path_factory, "q4_1")
    text = describe(tensor.spec, tensor.bound.encoding)
    for parts in ({}, {"data": b"short"}):
        with pytest.raises(squish.TensorError) as caught:
            tensor_from_parts(text, parts, name="here")
        assert (caught.value.code, caught.value.tensor, caught.value.part) == ("size", "here", "data")


def test_a_description_keeps_every_type_of_parameter() -> None:
    params = {"a": (1, (2, "x")), "b": b"\x00\xff", "c": {"()": [1]}, "d": float("inf"), "e": [None, True], "f": {}}
    codec = CodecSpec("outer", params, CodecSpec("inner", {"size": np.int64(4)}))
    encoding = Encoding(
        codec=codec, parts={"data": Part(dtype="u8", shape=(2, 3)), "base": Part(dtype="f16", shape=())}
    )
    spec = TensorSpec(name="w", shape=(2, 6), dtype="f32", encodings=(encoding,))
    text = describe(spec, encoding)
    again = read_description(text, "w")
    assert again == TensorSpec(name="w", shape=(2, 6), dtype="f32", encodings=again.encodings)
    assert again.encodings[0].codec.params == params
    assert again.encodings[0].codec.inner == CodecSpec("inner", {"size": 4})
    assert again.encodings[0].parts == encoding.parts
    assert describe(again, again.encodings[0]) == text


def test_equal_encodings_have_equal_descriptions() -> None:
    part = {"data": Part(dtype="u8", shape=(4,)), "scale": Part(dtype="f16", shape=(1,))}
    one = Encoding(codec=CodecSpec("affine", {"bits": 4, "sign": True}), parts=part)
    other = Encoding(codec=CodecSpec("affine", {"sign": True, "bits": 4}), parts=dict(reversed(part.items())))
    spec = TensorSpec(name="w", shape=(8,), dtype="f32")
    assert describe(spec, one) == describe(spec, other)


def test_a_parameter_that_is_no_plain_data_is_an_error() -> None:
    encoding = Encoding(codec=CodecSpec("x", {"table": np.ones(3)}))
    with pytest.raises(squish.CodecError) as caught:
        describe(TensorSpec(name="w", shape=(), dtype="f32"), encoding)
    assert caught.value.code == "description"


GOOD = '{"codec":["dense",{},null],"dtype":"f32","parts":{"data":["f32",[2]]},"shape":[2]}'


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", GOOD.replace("[2]}", "[-2]}"), GOOD.replace("[2]}", "[true]}"), GOOD.replace('"f32"', '"f33"'),
        GOOD.replace("{},null", '{"a":{}},null'), GOOD.replace('"dense"', "3"), GOOD.replace("null", "7"),
        GOOD.replace("{},null", '{"a":{"bytes":"*"}},null'),
    ],
)  # fmt: skip
def test_a_text_that_is_no_description_is_an_error(text: str) -> None:
    assert json.loads(GOOD)
    with pytest.raises(squish.CodecError) as caught:
        read_description(text)
    assert caught.value.code == "description"
