"""`verify --deep` looks at what it decodes: values that no model has, and files named by another content's digest."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from squish_cli.app import run

import squish_core as squish
from squish_core.checking.check import check_values

NAN, INF = np.nan, np.inf
FLOATS = ("f2", "f4", "f8", ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn, "c8", "c16")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("values", [[0, -0.0], [1, -2], [NAN, 1], [1, -NAN], [INF, 0], [-INF, -1], [INF, -INF, NAN, 0]])
def test_the_counts_of_numpy(values: list[float], dtype: Any) -> None:
    array = np.array(values, "f4").astype(dtype)
    numbers = array.view("f4" if dtype == "c8" else "f8") if array.dtype.kind == "c" else array.astype("f4")
    check = check_values([array, array[:1]])
    both = np.concatenate([numbers, numbers[: len(numbers) // len(array)]])
    assert (check.nan, check.infinite) == (np.isnan(both).sum(), np.isinf(both).sum())
    assert check.is_zero == (not both.any())


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i8"])
def test_integers_are_zero_or_not(dtype: str) -> None:
    assert [check_values([np.full(3, number, dtype)]).is_zero for number in (0, 1)] == [True, False]


BAD = {
    "nan": (np.array([[1, NAN, 2], [NAN, 3, 4]], "f4"), "2 NaN of 6 values"),
    "infinite": (np.array([1, -INF, 2], "f4"), "1 infinite of 3 values"),
    "both": (np.array([[INF, NAN], [1, 1]], "f2"), "1 NaN and 1 infinite of 4 values"),
    "zeros": (np.zeros((2, 3), "f4"), "its values are all zeros"),
    "stack of zeros": (np.zeros((2, 1, 3), "f2"), "its values are all zeros"),
}
GOOD = {"bias": np.zeros(4, "f4"), "token": np.zeros((1, 1, 8), "f4"), "ids": np.zeros((2, 2), "i4"),
        "empty": np.zeros((0, 3), "f4"), "weight": np.eye(3, dtype="f4")}  # fmt: skip


@pytest.mark.parametrize("format_", ["safetensors", "gguf", "ztensor", "npydir"])
def test_values_that_no_model_has_are_warnings_that_name_the_tensor(tmp_path: Path, format_: str) -> None:
    arrays = {name: array for name, (array, _) in BAD.items()} | GOOD
    if format_ in ("gguf", "npydir"):  # GGUF stores no empty tensors and no axes of 1 before others
        arrays = {name: array for name, array in arrays.items() if name not in ("empty", "token")}
    squish.save(tmp_path / "m", arrays, format=format_)
    report = squish.verify(tmp_path / "m", deep=True)
    found = {problem.where: problem for problem in report.problems if problem.severity != "note"}
    assert {name: problem.message for name, problem in found.items()} == {name: text for name, (_, text) in BAD.items()}
    assert {problem.severity for problem in found.values()} == {"warning"}
    assert (report.ok, report.clean) == (True, False)
    assert not [problem for problem in squish.verify(tmp_path / "m").problems if problem.where in found]


def test_quantized_values_and_their_scales_are_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "m.zt"
    squish.save(path, {"w": np.ones((4, 64), "f4"), "z": np.zeros((4, 64), "f4")}, encode="int8:group_size=32")
    data = bytearray(path.read_bytes())
    with squish.open(path) as file:
        part = file["w"].spec.encodings[0].parts["scale"]
    nan = np.float16(NAN) if part.dtype == "f16" else np.float32(NAN)
    offset = part.segments[0].offset
    data[offset : offset + nan.nbytes] = nan.tobytes()
    found = {problem.where: problem.message for problem in squish.verify(bytes(data), deep=True).problems}
    assert found == {"w": "32 NaN of 256 values", "w/scale": "1 NaN of 8 values", "z": "its values are all zeros"}


def test_workers_find_the_same(tmp_path: Path) -> None:
    squish.save(tmp_path / "m.safetensors", {name: array for name, (array, _) in BAD.items()})
    serial = squish.verify(tmp_path / "m.safetensors", deep=True)
    assert squish.verify(tmp_path / "m.safetensors", deep=True, scheduler="local:1") == serial


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@pytest.mark.parametrize(
    ("name", "is_digest"),
    [
        ("blobs/{sha256}", True), ("blobs/{git}", True), ("blobs/sha256-{sha256}", True),
        ("blobs/sha256:{sha256}", True),
        ("sha256-{sha256}", True), ("blobs/sha256/{sha256}", True), ("{sha256}", False), ("blobs/model.gguf", False),
        ("blobs/{sha256}.gguf", False), ("blobs/sha256-{git}", False), ("{git}", False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("linked", [False, True])
def test_a_name_that_is_the_digest_of_other_bytes_is_an_error(
    tmp_path: Path, name: str, is_digest: bool, linked: bool, capsys: Any
) -> None:
    squish.save(tmp_path / "m.safetensors", {"w": np.ones((2, 3), "f4")})
    good = (tmp_path / "m.safetensors").read_bytes()
    path = tmp_path / name.format(sha256=sha256(good), git=git(good))
    path.parent.mkdir(parents=True, exist_ok=True)
    for data, wrong in ((good, False), (good[:-1] + b"\1", True)):
        path.write_bytes(data)
        opened = path
        if linked:
            opened = tmp_path / "link.safetensors"
            opened.unlink(missing_ok=True)
            opened.symlink_to(path)
        is_error = wrong and is_digest
        problems = squish.verify(opened, deep=True).problems
        assert [(problem.code, problem.severity) for problem in problems] == [("digest", "error")] * is_error
        assert run(["verify", "--deep", str(opened)]) == is_error
    assert not squish.verify(path).problems  # only --deep reads everything
