"""Reading: what a header means, and that nothing is copied. Files are built by hand, byte for byte."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from squish_testing import expect_error

import squish_core as squish
from squish_core.errors import SquishError, TensorError


def pack(header: object, data: bytes = b"", pad: int = 0) -> bytes:
    """A file from a header and its data."""
    raw = json.dumps(header).encode() if not isinstance(header, bytes) else header
    raw += b" " * pad
    return len(raw).to_bytes(8, "little") + raw + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


GOLDEN = (
    b"\x8c\x00\x00\x00\x00\x00\x00\x00"
    b'{"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},'
    b'"b":{"dtype":"I8","shape":[2],"data_offsets":[8,10]}}'
    b"\0\0\x80\x3f\0\0\0\xc0\x01\xff"
)


def test_golden_bytes_give_names_shapes_values_and_metadata() -> None:
    file = squish.open(GOLDEN)
    assert file.format == "safetensors"
    assert list(file) == ["w", "b"]
    assert file.meta == {"format": "pt"}
    assert file["w"].numpy().tolist() == [[1.0, -2.0]]
    assert file["b"].numpy().tolist() == [1, -1]
    assert file.problems == ()


@pytest.mark.parametrize(
    ("tag", "dtype", "numpy_dtype"),
    [
        ("BOOL", "bool", bool), ("U8", "u8", "u1"), ("I8", "i8", "i1"), ("U16", "u16", "u2"), ("I16", "i16", "i2"),
        ("U32", "u32", "u4"), ("I32", "i32", "i4"), ("U64", "u64", "u8"), ("I64", "i64", "i8"), ("F16", "f16", "f2"),
        ("BF16", "bf16", ml_dtypes.bfloat16), ("F32", "f32", "f4"), ("F64", "f64", "f8"), ("C64", "complex64", "c8"),
        ("F8_E4M3", "f8_e4m3", ml_dtypes.float8_e4m3fn), ("F8_E5M2", "f8_e5m2", ml_dtypes.float8_e5m2),
        ("F8_E8M0", "f8_e8m0", ml_dtypes.float8_e8m0fnu),
        ("F8_E4M3FNUZ", "f8_e4m3fnuz", ml_dtypes.float8_e4m3fnuz),
        ("F8_E5M2FNUZ", "f8_e5m2fnuz", ml_dtypes.float8_e5m2fnuz),
    ],
)  # fmt: skip
def test_every_dtype_of_whole_bytes_is_read(tag: str, dtype: str, numpy_dtype: object) -> None:
    values = np.array([0, 1, 1, 0, 1, 0], np.float32).astype(np.dtype(numpy_dtype)).reshape(2, 3)
    tensor = squish.open(pack({"w": entry(tag, [2, 3], 0, values.nbytes)}, values.tobytes()))["w"]
    assert tensor.dtype == dtype
    assert tensor.numpy().dtype == np.dtype(numpy_dtype)
    assert tensor.numpy().tobytes() == values.tobytes()
    assert tensor[1].tobytes() == values[1].tobytes()


def test_f4_has_its_first_element_in_the_low_bits() -> None:
    tensor = squish.open(pack({"w": entry("F4", [2, 2], 0, 2)}, b"\x21\x43"))["w"]
    assert tensor.dtype == "f4_e2m1"
    assert tensor.numpy().astype("f4").tolist() == [[0.5, 1.0], [1.5, 2.0]]
    assert tensor.parts()["data"].numpy().tolist() == [0x21, 0x43]


@pytest.mark.parametrize(("tag", "one"), [("F6_E2M3", 0b001000), ("F6_E3M2", 0b001100)])
def test_f6_packs_four_elements_in_three_bytes(tag: str, one: int) -> None:
    stored = (one | one << 18).to_bytes(3, "little")
    assert squish.open(pack({"w": entry(tag, [4], 0, 3)}, stored))["w"].numpy().astype("f4").tolist() == [1, 0, 0, 1]


def test_scalars_and_empty_tensors_are_read() -> None:
    header = {"s": entry("F32", [], 0, 4), "e": entry("F32", [0, 3], 4, 4), "z": entry("U8", [0], 0, 0)}
    file = squish.open(pack(header, b"\0\0\x80\x3f"))
    assert file["s"].numpy() == 1
    assert file["e"].numpy().shape == (0, 3)
    assert file["z"].numpy().shape == (0,)


def test_tensors_come_in_the_order_of_their_data() -> None:
    header = {"later": entry("U8", [1], 1, 2), "first": entry("U8", [1], 0, 1)}
    assert list(squish.open(pack(header, b"ab"))) == ["first", "later"]


def test_unaligned_data_are_read() -> None:
    file = squish.open(pack({"a": entry("U8", [1], 0, 1), "w": entry("F32", [1], 1, 5)}, b"\0\0\0\x80\x3f", pad=3))
    assert file["w"].numpy().tolist() == [1.0]


def test_a_file_without_tensors_opens() -> None:
    assert len(squish.open(pack({}, pad=6))) == 0


def test_an_unknown_dtype_is_listed_refused_and_its_bytes_stay_readable() -> None:
    file = squish.open(pack({"n": entry("NF4", [8], 0, 3), "w": entry("U8", [1], 3, 4)}, b"abcd"))
    assert file["n"].dtype == "unknown"
    assert file["n"].spec.problem == "unknown dtype 'NF4'"
    with expect_error(TensorError, code="unreadable", tensor="n"):
        file["n"].numpy()
    assert bytes(file["n"].parts()["data"].raw) == b"abc"
    assert file["w"].numpy().tolist() == [ord("d")]


def test_unknown_fields_and_non_text_metadata_are_warnings() -> None:
    header = {"__metadata__": {"a": "x", "n": 3}, "w": {**entry("U8", [1], 0, 1), "note": 1}}
    file = squish.open(pack(header, b"a"))
    assert file.meta == {"a": "x"}
    assert [(problem.code, problem.severity) for problem in file.problems] == [
        ("field", "warning"),
        ("metadata", "warning"),
    ]
    with pytest.raises(SquishError):
        squish.open(pack(header, b"a"), strict=True)


def test_names_that_differ_only_in_composition_are_kept_and_reported() -> None:
    header = {"caf\u00e9": entry("U8", [1], 0, 1), "cafe\u0301": entry("U8", [1], 1, 2)}
    file = squish.open(pack(header, b"ab"))
    assert len(file) == 2
    assert [problem.code for problem in file.problems] == ["name"]


def test_brackets_and_quotes_in_names_are_not_nesting() -> None:
    name = '["\\' * 100
    assert list(squish.open(pack({name: entry("U8", [1], 0, 1)}, b"a"))) == [name]


def test_the_array_is_a_read_only_view_of_the_mapping(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(pack({"w": entry("BF16", [2, 2], 0, 8)}, np.arange(4).astype(ml_dtypes.bfloat16).tobytes()))
    with squish.open(path) as file:
        array = file["w"].numpy()
        whole = np.frombuffer(file.source.view(0, file.source.size), "u1")
        assert np.shares_memory(array.view("u1"), whole)
        assert not array.flags.writeable
        assert not array.flags.owndata
        assert array.dtype == ml_dtypes.bfloat16


def test_an_array_stays_valid_after_close_and_after_the_file_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(GOLDEN)
    with squish.open(path) as file:
        array = file["w"].numpy()
    path.unlink()
    assert array.tolist() == [[1.0, -2.0]]


def test_open_reads_the_header_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from squish_core.io.local import FileSource

    path = tmp_path / "model.safetensors"
    path.write_bytes(pack({"w": entry("U8", [1 << 20], 0, 1 << 20)}, bytes(1 << 20)))
    taken = []
    original = FileSource._read
    monkeypatch.setattr(FileSource, "_read", lambda self, at, n: taken.append(n) or original(self, at, n))
    monkeypatch.setattr(FileSource, "_view", lambda self, at, n: pytest.fail("tensor bytes were mapped"))
    squish.open(path).close()
    assert sum(taken) < 5000


def test_the_index_pickles() -> None:
    index = squish.open(GOLDEN).index
    again = pickle.loads(pickle.dumps(index))
    assert dict(again.tensors) == dict(index.tensors)
    assert again.files == index.files


def test_the_register_module_imports_no_numpy() -> None:
    import subprocess
    import sys

    code = "import squish_safetensors, sys; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_declared_dtype_resolves_without_a_file() -> None:
    registry = squish.registry()
    for dtype in registry.containers["safetensors"].info.features["dtype"]:
        chain = registry.resolve(container="safetensors", dtype=dtype)
        assert chain.chosen.encoding.parts["data"].dtype == dtype


def test_null_metadata_is_empty() -> None:
    """As mlx writes it where there is none."""
    header = b'{"__metadata__":null,"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    with squish.open(len(header).to_bytes(8, "little") + header + b"\7") as file:
        assert (file.meta, file["w"].numpy().tolist()) == ({}, [7])
