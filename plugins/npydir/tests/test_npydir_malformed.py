"""Damaged and hostile directories are refused with a typed error, or listed with a problem."""

from __future__ import annotations

import contextlib
import json
import os
import tracemalloc
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from npydir_samples import int8, make
from squish_cli import main
from squish_testing.mutations import mutant
from squish_testing.sources import DamagedFolder

import squish_core as squish
from squish_core.api import (
    FormatError,
    LimitError,
    Limits,
    SquishError,
    TensorError,
    TruncatedError,
    UnknownFormatError,
)
from squish_core.io.local import open_source

PICKLE = b"cos\nsystem\n(S'echo'\ntR."


def npy(header: str | bytes, data: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    """A .npy file with any header."""
    raw = header.encode() if isinstance(header, str) else header
    width = 2 if version == (1, 0) else 4
    return b"\x93NUMPY" + bytes(version) + len(raw).to_bytes(width, "little") + raw + data


def described(descr: str, data: bytes = bytes(32), shape: str = "(4, 8)", order: str = "False") -> bytes:
    return npy(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n", data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "m", {"w": int8(), "good": int8()})


def codes(folder: Path) -> Path:
    return folder / "tensors" / "w__q.npy"


def refused(folder: Path, *codes: str, kind: type[SquishError] = FormatError) -> SquishError:
    """Opening fails with one of these codes, with little memory, and the error names the file."""
    tracemalloc.start()
    try:
        with pytest.raises(kind) as error:
            squish.open(folder)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert error.value.code in codes
    assert error.value.file
    report = squish.verify(folder)
    assert not report.ok
    return error.value


def unreadable(folder: Path) -> None:
    """The directory opens, one tensor cannot be read, and the other can."""
    with squish.open(folder) as file:
        with pytest.raises(TensorError) as error:
            file["w"].numpy()
        assert (error.value.tensor, error.value.code) == ("w", "unreadable")
        assert file["good"].numpy().shape == (4, 8)


@pytest.mark.parametrize("length", [0, 1, 5, 6, 9, 10, 60])
def test_arrays_shorter_than_their_headers(folder: Path, length: int) -> None:
    codes(folder).write_bytes(codes(folder).read_bytes()[:length])
    refused(folder, "size", "magic")


@pytest.mark.parametrize("content", [b"version https://git-lfs.github.com/spec/v1\n", b"<!DOCTYPE html>", PICKLE])
def test_other_files_in_place_of_arrays(folder: Path, content: bytes) -> None:
    codes(folder).write_bytes(content)
    refused(folder, "magic")


def test_other_files_in_place_of_the_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(b"<!DOCTYPE html>")
    refused(folder, "json")
    (folder / "manifest.json").unlink()
    with pytest.raises(UnknownFormatError):
        squish.open(folder)


@pytest.mark.parametrize("version", [(0, 0), (0, 1), (4, 0), (1, 1), (255, 255)])
def test_unknown_npy_versions(folder: Path, version: tuple[int, int]) -> None:
    raw = codes(folder).read_bytes()
    codes(folder).write_bytes(raw[:6] + bytes(version) + raw[8:])
    assert refused(folder, "version").found == list(version)


def test_arrays_that_run_past_the_end(folder: Path) -> None:
    codes(folder).write_bytes(codes(folder).read_bytes()[:-1])
    error = refused(folder, "size", kind=TruncatedError)
    assert error.expected == "160 bytes"
    assert error.found == "159 bytes"


@pytest.mark.parametrize("damage", ["overlap", "a hole with data"])
def test_a_tier_whose_tensors_overlap_or_leave_holes(folder: Path, damage: str) -> None:
    """Each array is a file; only in tiers of one file can ranges be wrong."""
    starts = (0, 32) if damage == "overlap" else (0, 128)
    ranges = {name: [start, start + 64] for name, start in zip(("w", "good"), starts)}
    header = {name: {"dtype": "F16", "shape": [4, 8], "data_offsets": extent} for name, extent in ranges.items()}
    text = json.dumps(header).encode()
    (folder / "squish_weights.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + b"\1" * (starts[1] + 64)
    )
    (folder / ".squish_ready").touch()
    with squish.open(folder) as file:
        assert [problem.severity for problem in file.problems] == ["error"]
        assert [encoding.label for encoding in file["w"].spec.encodings] == ["int8"]
    assert not squish.verify(folder).ok


@pytest.mark.parametrize("padding", [b"\0", b"x", b"PK\x03\x04", b"#"])
def test_header_padding_with_data(folder: Path, padding: bytes) -> None:
    header = b"{'descr': '|i1', 'fortran_order': False, 'shape': (4, 8), }"
    codes(folder).write_bytes(npy(header + b"   " + padding + b"  \n", bytes(32)))
    refused(folder, "npy-header")


def test_trailing_bytes(folder: Path) -> None:
    codes(folder).write_bytes(codes(folder).read_bytes() + b"PK\x03\x04")
    refused(folder, "size")


@pytest.mark.parametrize("shape", ["(4294967296, 4294967296)", "(0, 8)", "(4, 9)"])
def test_shapes_that_do_not_match_the_size(folder: Path, shape: str) -> None:
    codes(folder).write_bytes(described("'|i1'", shape=shape))
    refused(folder, "size", "shape")


@pytest.mark.parametrize("rank", [65, 1000])
def test_too_many_axes(folder: Path, rank: int) -> None:
    codes(folder).write_bytes(described("'|i1'", shape=f"({'1,' * rank})"))
    refused(folder, "shape", kind=LimitError)


def test_objects_are_never_unpickled(folder: Path) -> None:
    codes(folder).write_bytes(described("'|O'", PICKLE))
    assert refused(folder, "dtype").found == "'|O'"
    np.save(codes(folder), np.array([{}], object), allow_pickle=True)
    assert refused(folder, "dtype").found == "'|O'"


@pytest.mark.parametrize("array", [
    np.zeros((4, 8), [("a", "<i2")]), np.zeros((4, 8), "V1"), np.zeros((4, 8), "S1"), np.zeros((4, 8), "U1"),
    np.zeros((4, 8), "M8[s]"), np.zeros((4, 8), "c8"),
])  # fmt: skip
def test_unsupported_dtypes(folder: Path, array: np.ndarray) -> None:
    np.save(codes(folder), array)
    refused(folder, "npy-header", "dtype")


def test_big_endian_numbers_are_read_as_such(folder: Path, tmp_path: Path) -> None:
    tensor = squish.open(folder)["w"]
    values, x = tensor.numpy(), np.eye(8, dtype=np.float32)
    products = tensor.load().linear(x)
    path = folder / "tensors" / "w__s.npy"
    np.save(path, np.load(path).astype(">f4"))
    shape = folder / "tensors" / "w__shape.npy"
    np.save(shape, np.load(shape).astype(">i8"))
    np.testing.assert_array_equal(squish.open(folder)["w"].numpy(), values)
    np.testing.assert_array_equal(squish.open(folder)["w"].load().linear(x), products)
    squish.convert(folder, tmp_path / "out", "npydir")
    np.testing.assert_array_equal(squish.open(tmp_path / "out")["w"].numpy(), values)


def test_fortran_order_is_refused_where_it_matters(folder: Path) -> None:
    array = np.load(codes(folder))
    np.save(codes(folder), np.asfortranarray(array))
    refused(folder, "order")
    np.save(codes(folder), array)
    scale = folder / "tensors" / "w__s.npy"
    scale.write_bytes(described("'<f4'", bytes(16), "(4,)", "True"))
    assert squish.open(folder)["w"].numpy().shape == (4, 8)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (npy("(" * 60_000), "header"),
        (npy("(" * 9_000), "npy-header"),
        (npy("{'descr': '|i1'," * 500), "npy-header"),
        (npy("{'descr': '|i1', 'descr': '|O', 'fortran_order': False, 'shape': (4, 8), }"), "duplicate"),
        (npy("{'descr': '|i1', 'fortran_order': False, 'shape': (4, 8), 'more': True, }"), "npy-header"),
        (npy("{'descr': '|i1', 'fortran_order': False, }"), "npy-header"),
        (npy("{'descr': '|i1', 'fortran_order': 'False', 'shape': (4, 8), }"), "npy-header"),
        (npy("{'descr': __import__('os').abort(), 'fortran_order': False, 'shape': (4, 8), }"), "npy-header"),
        (npy("{'descr': '|i1', 'fortran_order': False, 'shape': (4, 8), } or 1"), "npy-header"),
        (npy(b"\xff" * 50), "npy-header"),
        (npy("{'descr': '', 'fortran_order': False, 'shape': (4, 8), }"), "dtype"),
        (described("'|i1'", shape="(-1,)"), "npy-header"),
        (described("'|i1'", shape="(True,)"), "npy-header"),
        (described("'|i1'", shape="(32)"), "shape"),
        (described("'|i1'", shape="(,)"), "shape"),
        (described("'|i1'", shape=f"({'9' * 4000},)"), "shape"),
        (described("'|i1'", shape=f"({'9' * 19},)"), "shape"),
        (described("'<f8'", shape="(1000000000000000,)"), "size"),
    ],
)  # fmt: skip
def test_invalid_headers(folder: Path, content: bytes, code: str) -> None:
    codes(folder).write_bytes(content)
    refused(folder, code)


def test_long_headers_of_the_second_version_are_bounded_too(folder: Path) -> None:
    codes(folder).write_bytes(npy(b"", version=(2, 0))[:8] + b"\xff\xff\xff\x7f" + b"{")
    refused(folder, "header", kind=LimitError)


def test_files_that_change_while_they_are_open(folder: Path) -> None:
    for number in range(80):
        np.save(folder / "tensors" / f"more{number}__pt.npy", np.zeros(1, np.float16))
    manifest = {"w": "w", "good": "good"} | {f"more{number}": f"more{number}" for number in range(80)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    file = squish.open(folder)
    for tensor in file.values():
        tensor.numpy()
    np.save(codes(folder), np.ones((4, 8), np.int8))
    with pytest.raises(FormatError) as error:
        file["w"].numpy()
    assert error.value.code == "changed"
    os.truncate(folder / "tensors" / "more79__pt.npy", 100)
    with pytest.raises(FormatError) as error:
        file["more79"].numpy()
    assert error.value.code == "changed"


def test_a_sparse_terabyte_costs_nothing_to_open(folder: Path) -> None:
    path = folder / "tensors" / "good__pt.npy"
    path.write_bytes(described("'<f2'", b"", "(1099511627776,)"))
    os.truncate(path, path.stat().st_size + (2 << 40))
    for suffix in ("q", "s", "shape"):
        (folder / "tensors" / f"good__{suffix}.npy").unlink()
    with squish.open(folder, limits=Limits()) as file:
        assert file["good"].shape == (1 << 40,)
        assert file["good"][5:7].tolist() == [0, 0]


@pytest.mark.parametrize("key", ["../w", "/etc/passwd", "a/b", "..", "", ".hidden", "a\\b", "a\0b", "C:w"])
def test_keys_with_a_path(folder: Path, key: str) -> None:
    (folder / "manifest.json").write_text(json.dumps({"w": key}))
    refused(folder, "path")


@pytest.mark.parametrize("other", ["w", "W"])
def test_keys_of_two_tensors(folder: Path, other: str) -> None:
    (folder / "manifest.json").write_text(json.dumps({"w": "w", "v": other}))
    refused(folder, "safe-key")


@pytest.mark.parametrize("manifest", ["[]", "{", '{"w": 1}', '{"w": "w", "w": "w"}', '{"w\\u0000": "w"}', "{" * 10_000])
def test_invalid_manifests(folder: Path, manifest: str) -> None:
    (folder / "manifest.json").write_text(manifest)
    refused(folder, "json", "manifest", "name", "duplicate", "limit", "depth")


@pytest.mark.parametrize("kind", ["pipe", "folder", "dangling", "device", "link to a pipe"])
def test_other_kinds_of_files(folder: Path, kind: str) -> None:
    codes(folder).unlink()
    create: dict[str, Any] = {
        "pipe": lambda: os.mkfifo(codes(folder)), "folder": codes(folder).mkdir,
        "dangling": lambda: codes(folder).symlink_to("nowhere"),
        "device": lambda: codes(folder).symlink_to("/dev/zero"),
        "link to a pipe": lambda: (os.mkfifo(folder / "pipe"), codes(folder).symlink_to(folder / "pipe")),
    }  # fmt: skip
    create[kind]()
    if kind == "dangling":
        unreadable(folder)
    else:
        refused(folder, "file-kind", "os")


def test_a_link_to_a_file_is_followed(folder: Path) -> None:
    """Download caches contain such links."""
    values = squish.open(folder)["w"].numpy()
    codes(folder).rename(folder / "blob")
    codes(folder).symlink_to("../blob")
    np.testing.assert_array_equal(squish.open(folder)["w"].numpy(), values)


def test_a_hard_link_is_a_file(folder: Path) -> None:
    codes(folder).unlink()
    os.link(folder / "tensors" / "good__q.npy", codes(folder))
    with squish.open(folder) as file:
        np.testing.assert_array_equal(file["w"].parts()["data"].numpy(), file["good"].parts()["data"].numpy())


@pytest.mark.parametrize("missing", ["q", "s"])
def test_a_missing_array_of_a_pair(folder: Path, missing: str) -> None:
    (folder / "tensors" / f"w__{missing}.npy").unlink()
    unreadable(folder)


@pytest.mark.parametrize(
    ("suffix", "array"),
    [
        ("q", np.zeros((8, 4), np.int8)), ("q", np.zeros((4, 8), np.uint8)), ("q", np.zeros((4, 9), np.int8)),
        ("s", np.zeros(5, np.float32)), ("s", np.zeros(4, np.float64)), ("s", np.zeros((4, 3), np.float32)),
        ("shape", np.array([4, 9])), ("shape", np.array([2, 2, 9])), ("shape", np.array([32])),
    ],
)  # fmt: skip
def test_arrays_with_mismatched_shapes(folder: Path, suffix: str, array: np.ndarray) -> None:
    np.save(folder / "tensors" / f"w__{suffix}.npy", array)
    unreadable(folder)


@pytest.mark.parametrize("shape", [np.array([-4, -8]), np.zeros(65, np.int64), np.zeros((2, 2), np.int64), np.ones(2)])
def test_invalid_shapes(folder: Path, shape: np.ndarray) -> None:
    np.save(folder / "tensors" / "w__shape.npy", shape)
    refused(folder, "shape", "limit")


def test_a_sentinel_without_files_is_a_problem(folder: Path) -> None:
    (folder / ".squish_4bit_ready").touch()
    with squish.open(folder) as file:
        assert file.problems[0].code == "tier"
        assert file["w"].numpy().shape == (4, 8)
    with pytest.raises(FormatError) as error:
        squish.open(folder, strict=True)
    assert error.value.code == "tier"


def test_names(folder: Path) -> None:
    for name, kind in (("n" * 2000, LimitError), ("", FormatError)):
        (folder / "manifest.json").write_text(json.dumps({name: "w"}))
        refused(folder, "name", kind=kind)
    accents = [unicodedata.normalize(form, "é") for form in ("NFC", "NFD")]
    (folder / "manifest.json").write_text(json.dumps({accents[0]: "w", accents[1]: "good", "\x1b[31m": "red"}))
    with squish.open(folder) as file:
        assert list(file)[:2] == accents
        assert "name" in {problem.code for problem in file.problems}
        with pytest.raises(TensorError) as error:
            file["\x1b[31m"].numpy()
        assert "\x1b" not in str(error.value)


@pytest.mark.parametrize(("name", "kind"), [("a\0b", FormatError), ("n" * (10 << 20), LimitError)])
def test_names_with_nul_and_of_ten_megabytes(folder: Path, name: str, kind: type[SquishError]) -> None:
    (folder / "manifest.json").write_text(json.dumps({name: "w"}))
    with pytest.raises(kind) as error:
        squish.open(folder)
    assert len(str(error.value)) < 1000


def test_names_are_printed_harmless(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {"\x1b[31mred": "w", "\u202egnp.exe": "good"}
    (folder / "manifest.json").write_text(json.dumps(names))
    for command in ("ls", "info", "plan", "verify"):
        main([command, str(folder)])
        shown = "".join(capsys.readouterr())
        assert shown
        assert not {"\x1b", "\u202e"} & set(shown)


def test_many_tensors_are_capped(folder: Path) -> None:
    (folder / "manifest.json").write_text(json.dumps({str(number): str(number) for number in range(1001)}))
    with pytest.raises(LimitError) as error:
        squish.open(folder, limits=Limits(tensors=1000))
    assert error.value.code == "count"


def test_a_file_cut_while_it_is_mapped(folder: Path) -> None:
    file = squish.open(folder)
    file["w"].numpy()
    os.truncate(codes(folder), 10)
    with pytest.raises(FormatError) as error:
        file["w"].numpy()
    assert error.value.code == "changed"


def test_mutants_of_every_array_give_typed_errors_only(folder: Path) -> None:
    whole = open_source(folder)
    for name in filter(lambda name: name.endswith(".npy"), whole.members("tensors")):
        member = whole.member(name, "tensors")
        data = member.read(0, member.size)
        for number in range(60):
            damaged = DamagedFolder(whole, member.filename, mutant(data, number, 0, 128))
            with contextlib.suppress(SquishError):
                squish.open(damaged)["w"].numpy()


@pytest.mark.parametrize("damage", ["cut", "garbage", "bomb", "longer", "brotli"])
def test_compressed_arrays_that_are_damaged(folder: Path, damage: str) -> None:
    import zstandard

    raw = codes(folder).read_bytes()
    codes(folder).unlink()
    packed = {
        "cut": zstandard.compress(raw)[:-3], "garbage": b"\x28\xb5\x2f\xfd" + b"\xff" * 20,
        "bomb": zstandard.compress(raw + bytes(1 << 24)), "longer": zstandard.compress(raw + b"x"), "brotli": raw,
    }  # fmt: skip
    suffix = ".br" if damage == "brotli" else ".zst"
    (folder / "tensors" / f"w__q.npy{suffix}").write_bytes(packed[damage])
    tracemalloc.start()
    with pytest.raises(SquishError), squish.open(folder) as file:
        file["w"].numpy()
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    if damage != "cut":  # then not even the header is there
        assert squish.open(folder)["good"].numpy().shape == (4, 8)
