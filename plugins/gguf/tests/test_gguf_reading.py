"""Reading: hand-built bytes give exact values, shapes and parts."""

from __future__ import annotations

import pickle
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_gguf.values import GgufArray
from squish_testing import CountingSource

import squish_core as squish
from squish_core.io.source import BytesSource

VALUES = [
    ("u8", 255), ("i8", -128), ("u16", 65535), ("i16", -32768), ("u32", (1 << 32) - 1), ("i32", -(1 << 31)),
    ("f32", 0.5), ("bool", True), ("bool", False), ("u64", (1 << 64) - 1), ("i64", -(1 << 63)), ("f64", 0.1),
]  # fmt: skip

TEXTS = st.one_of(
    st.binary(max_size=20),
    st.text("a\u00e9\u65e5", max_size=40).map(str.encode),
    st.sampled_from([b"", b"\0", b"x" * 255, b"x" * 256, b"\xff" * 512, b"x" * (1 << 16)]),
)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(("kind", "value"), VALUES)
def test_a_scalar_keeps_type_and_value(raw, version, kind, value):
    with squish.open(raw.file((raw.scalar("k", kind, value),), version=version)) as file:
        stored = file.index.meta["k"]
        assert (stored.type, stored.value, type(stored.value)) == (kind, value, type(value))
        assert file.index.version == str(version)


@pytest.mark.parametrize("kind", ["u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "u64", "i64", "f64"])
def test_an_array_keeps_type_and_values(raw, kind):
    code, form = raw.CODES[kind]
    values = [1, 0, 1]
    data = raw.file((raw.array("k", code, 3, struct.pack(f"<3{form}", *values)),))
    with squish.open(data) as file:
        value = file.index.meta["k"]
        assert (value.type, list(value.value), len(value.value)) == (f"array:{kind}", values, 3)
        assert np.asarray(value.value).tolist() == values


def test_an_array_of_strings_reads_on_access(raw):
    strings = ["", "a", "é", "x" * 300, "日本"]
    with squish.open(raw.file((raw.array("k", 8, 5, b"".join(map(raw.string, strings))),))) as file:
        value = file.index.meta["k"]
        assert value.type == "array:str"
        assert value.value[3] == "x" * 300
        assert value.value[-1] == "日本"
        assert value.value[1:3] == ["a", "é"]
        assert list(value.value) == strings
        assert value.value == strings
        assert value.value != strings[1:]
        with pytest.raises(IndexError):
            value.value[5]


@settings(max_examples=300)
@given(st.lists(TEXTS))
def test_texts_of_any_bytes_and_lengths_are_read(texts):
    stored = b"".join(len(item).to_bytes(8, "little") + item for item in texts)
    read = [item.decode() if is_utf8(item) else item for item in texts]
    assert list(GgufArray("str", len(texts), stored)) == read
    array = GgufArray("str", len(texts), stored)
    assert [array[number] for number in range(len(texts))] == read


def is_utf8(raw):
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_nested_arrays_keep_their_type(raw):
    inner = raw.elements(5, 2, struct.pack("<2i", 1, -1)) + raw.elements(5, 0, b"")
    strings = raw.elements(8, 1, raw.string("a"))
    data = raw.file((raw.array("n", 9, 2, inner), raw.array("s", 9, 1, raw.elements(9, 1, strings))))
    with squish.open(data) as file:
        assert file.index.meta["n"].type == "array:array:i32"
        assert [list(each) for each in file.meta["n"]] == [[1, -1], []]
        assert file.index.meta["s"].type == "array:array:array:str"
        assert file.meta["s"][0][0][0] == "a"


def test_arrays_nest_to_depth_8(raw):
    inner = raw.elements(0, 1, b"\7")
    for _ in range(7):
        inner = raw.elements(9, 1, inner)
    with squish.open(raw.file((raw.pair("k", 9, inner),))) as file:
        assert file.index.meta["k"].type == "array:" * 8 + "u8"


def test_empty_arrays_are_read(raw):
    data = raw.file((raw.array("n", 4, 0, b""), raw.array("s", 8, 0, b""), raw.array("a", 9, 0, b"")))
    with squish.open(data) as file:
        assert [list(value) for value in file.meta.values()] == [[], [], []]


def test_a_signalling_nan_keeps_its_bits(raw):
    data = raw.file((raw.pair("k", 6, bytes.fromhex("010080ff")),))
    with squish.open(data) as file:
        assert struct.pack("<d", file.meta["k"]).hex() == "000000200000f0ff"


def test_keys_keep_the_order_of_the_file(raw):
    keys = ["zeta", "general.architecture", "alpha"]
    with squish.open(raw.file(tuple(raw.text(key, key) for key in keys))) as file:
        assert list(file.meta) == keys


def test_dimensions_are_reversed_into_row_major(raw):
    values = np.arange(24, dtype="<f4").reshape(2, 3, 4)
    with squish.open(raw.file((), (raw.tensor("w", (4, 3, 2)),), values.tobytes())) as file:
        assert file["w"].shape == (2, 3, 4)
        assert np.array_equal(file["w"].numpy(), values)
        assert np.array_equal(file["w"][1], values[1])


def test_n_dims_0_is_a_scalar(raw):
    with squish.open(raw.file((), (raw.tensor("w", ()),), struct.pack("<f", 3.5))) as file:
        assert file["w"].shape == ()
        assert file["w"].numpy() == 3.5


def test_a_zero_dimension_has_zero_length(raw):
    with squish.open(raw.file((), (raw.tensor("w", (4, 0)), raw.tensor("v", (1,))), bytes(4))) as file:
        assert file["w"].numpy().shape == (0, 4)
        assert not file.problems


@pytest.mark.parametrize(
    ("code", "dtype", "size"),
    [(0, "f32", 4), (1, "f16", 2), (24, "i8", 1), (25, "i16", 2), (26, "i32", 4), (27, "i64", 8), (28, "f64", 8),
     (30, "bf16", 2)],
)  # fmt: skip
def test_an_unquantized_type_is_dense(raw, code, dtype, size):
    with squish.open(raw.file((), (raw.tensor("w", (3,), code),), bytes(3 * size))) as file:
        assert (file["w"].codec, file["w"].dtype, file["w"].nbytes) == ("dense", dtype, 3 * size)
        assert file["w"].numpy().tolist() == [0, 0, 0]


# code, name, elements and bytes per block, from ggml's headers
BLOCKS = [
    (2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20), (6, "Q5_0", 32, 22), (7, "Q5_1", 32, 24), (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 36), (10, "Q2_K", 256, 84), (11, "Q3_K", 256, 110), (12, "Q4_K", 256, 144), (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210), (15, "Q8_K", 256, 292), (16, "IQ2_XXS", 256, 66), (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98), (19, "IQ1_S", 256, 50), (20, "IQ4_NL", 32, 18), (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82), (23, "IQ4_XS", 256, 136), (29, "IQ1_M", 256, 56), (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66), (39, "MXFP4", 32, 17), (40, "NVFP4", 64, 36), (41, "Q1_0", 128, 18),
    (42, "Q2_0", 64, 18),
]  # fmt: skip


@pytest.mark.parametrize(("code", "name", "elements", "nbytes"), BLOCKS)
def test_blocks_are_rows_of_bytes(raw, code, name, elements, nbytes):
    data = bytes(range(1, 61)) * nbytes
    stored = data[: 6 * nbytes]
    with squish.open(raw.file((), (raw.tensor("w", (2 * elements, 3), code),), stored)) as file:
        tensor = file["w"]
        part = tensor.spec.encodings[0].parts["data"]
        assert (tensor.codec, tensor.dtype, tensor.shape) == (f"ggml.{name.lower()}", "f32", (3, 2 * elements))
        assert (part.dtype, part.shape) == ("u8", (3, 2 * nbytes))
        assert tensor.parts()["data"].raw == stored


def test_general_alignment_is_obeyed(raw):
    pairs = (raw.scalar("general.alignment", "u32", 8),)
    tensors = raw.tensor("a", (1,)), raw.tensor("b", (1,), 0, 8)
    data = raw.file(pairs, tensors, struct.pack("<f4xf", 1, 2), alignment=8)
    with squish.open(data) as file:
        assert [file[name].numpy()[0] for name in file] == [1, 2]
        assert not file.problems


def test_general_type_is_the_kind_of_file(raw):
    with squish.open(raw.file((raw.text("general.type", "adapter"),))) as file:
        assert file.index.kind == "adapter"


def test_opening_reads_little_beyond_the_head(raw):
    tokens = b"".join(raw.string(f"token {number}") for number in range(10_000))
    data = raw.file((raw.array("tokens", 8, 10_000, tokens),), (raw.tensor("w", (1 << 20,)),), bytes(4 << 20))
    source = CountingSource(BytesSource(data))
    squish.registry().container("gguf").read_index(source, squish.Limits())
    head = len(data) - (4 << 20)
    assert max(at + length for _, at, length in source.log) <= max(2 * head, 4096)


def test_the_index_pickles_with_its_arrays_still_lazy(raw):
    with squish.open(raw.file((raw.array("k", 8, 2, raw.string("a") + raw.string("b")),))) as file:
        value = file.meta["k"]
        assert list(pickle.loads(pickle.dumps(value))) == ["a", "b"]
        assert pickle.loads(pickle.dumps(value)) == value


def test_an_index_into_texts_takes_little_more_than_eight_bytes_per_text(raw):
    tokens = b"".join(raw.string(f"token {number}") for number in range(10_000))
    with squish.open(raw.file((raw.array("tokens", 8, 10_000, tokens),))) as file:
        texts = file.meta["tokens"]
        tracemalloc.start()
        try:
            assert texts[9_999] == "token 9999"
            current, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert current < 12 * 10_000


def test_100_000_tensors_are_listed(raw):
    data = raw.file((), tuple(raw.tensor(f"w{number}", (0,)) for number in range(100_000)))
    with squish.open(data) as file:
        assert len(file) == 100_000
        assert file["w99999"].shape == (0,)


def test_a_name_that_llama_cpp_refuses_is_noted(raw):
    with squish.open(raw.file((), (raw.tensor("n" * 64, (8,)), raw.tensor("o" * 63, (8,), 0, 32)), bytes(64))) as file:
        assert [problem.severity for problem in file.problems] == ["note"]


@pytest.mark.parametrize("dtype", ["q4_k", "f16"])
def test_a_dtype_resolves_without_a_file(dtype):
    assert dtype in squish.registry().containers["gguf"].info.features["dtype"]
    encoding = squish.registry().container("gguf").encodings_for(dtype=dtype)[0]
    assert encoding.codec.id == {"q4_k": "ggml.q4_k", "f16": "dense"}[dtype]
