"""Adding, removing and renaming attributes in files that exist."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squish_ztensor import editing
from squish_ztensor.editing import edit

import squish_core as squish
from squish_core.errors import SquishError, TensorError, UnsupportedVersionError

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(True), "c": np.arange(4, dtype=np.int8)}
WIRES: list[dict[str, str]] = [{}, {"encoding": "zstd"}, {"wire": "2"}, {"wire": "2", "encoding": "zstd"}]


def values(path: Path) -> dict[str, Any]:
    assert squish.verify(path, deep=True).problems == ()
    with squish.open(path) as file:
        return {name: file[name].numpy() for name in sorted(file)}


@pytest.mark.parametrize("options", WIRES)
def test_tensors_are_removed_and_added_and_attributes_set(zt: Any, tmp_path: Path, options: dict[str, str]) -> None:
    path = tmp_path / "model.zt"
    zt.written(path, ARRAYS, options, {"license": "MIT", "old": "x"})
    edit(path, remove=["a"], add={"a": ARRAYS["c"], "d": ARRAYS["a"]}, attributes={"old": None, "new": "y"})
    found = values(path)
    assert list(found) == ["a", "b", "c", "d"]
    for name, array in {"a": ARRAYS["c"], "b": ARRAYS["b"], "c": ARRAYS["c"], "d": ARRAYS["a"]}.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    assert squish.open(path).meta == {"license": "MIT", "new": "y"}


def test_v2_keeps_its_old_bytes(zt: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.zt"
    zt.written(path, ARRAYS, {"wire": "2"})
    before = path.read_bytes()
    edit(path, remove=["a"])
    assert path.read_bytes().startswith(before)


def test_1_1_leaves_no_dead_bytes(zt: Any, tmp_path: Path) -> None:
    zt.written(tmp_path / "all.zt", ARRAYS)
    zt.written(tmp_path / "two.zt", {name: ARRAYS[name] for name in "bc"})
    edit(tmp_path / "all.zt", remove=["a"])
    assert (tmp_path / "all.zt").read_bytes() == (tmp_path / "two.zt").read_bytes()


@pytest.mark.parametrize("options", [{}, {"wire": "2"}])
@pytest.mark.parametrize(
    "change", [{"remove": ["x"]}, {"add": {"a": ARRAYS["a"]}}, {"add": {"\0": ARRAYS["a"]}}, {"attributes": {"k": 1j}},
               {"add": {"new": ARRAYS["a"], "text": np.array(["x"])}}],
)  # fmt: skip
def test_an_edit_that_cannot_be_made_changes_nothing(
    zt: Any, tmp_path: Path, options: dict[str, str], change: dict[str, Any]
) -> None:
    path = tmp_path / "model.zt"
    zt.written(path, ARRAYS, options)
    before = path.read_bytes()
    with pytest.raises(SquishError):
        edit(path, **change)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_name_that_is_there_must_be_removed_first(zt: Any, tmp_path: Path) -> None:
    zt.written(tmp_path / "model.zt", ARRAYS, {"wire": "2"})
    with pytest.raises(TensorError, match="already"):
        edit(tmp_path / "model.zt", add={"a": ARRAYS["a"]})


def test_an_append_that_fails_is_taken_back(zt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.zt"
    zt.written(path, ARRAYS, {"wire": "2"})
    before = path.read_bytes()

    def full(fd: int) -> None:
        raise OSError("no space")

    monkeypatch.setattr(editing.os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        edit(path, add={"d": ARRAYS["a"]})
    assert path.read_bytes() == before


def test_tied_tensors_stay_tied(zt: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.zt"
    path.write_bytes(zt.pack({"x": zt.item(offset=128), "w": zt.item(), "tied": zt.item()}, zt.four + bytes(64)))
    edit(path, remove=["x"])
    with squish.open(path) as file:
        assert file["w"].spec.encodings[0].parts == file["tied"].spec.encodings[0].parts


@pytest.mark.parametrize("name", ["v01_dense_all_dtypes", "v10_dense_all_dtypes"])
def test_early_wires_are_converted_first(data: Path, tmp_path: Path, name: str) -> None:
    shutil.copyfile(data / f"{name}.zt", tmp_path / "old.zt")
    with pytest.raises(UnsupportedVersionError, match="wire=2"):
        edit(tmp_path / "old.zt", remove=["u8"])


@pytest.mark.oracle
def test_the_reference_2_verifies_an_appended_file(zt: Any, tmp_path: Path) -> None:
    import oracles

    def check(path):  # type: ignore[no-untyped-def] # runs in the peer
        import ztensor

        return [ztensor.verify(path, deep=True).checked, sorted(ztensor.open(path).keys())]

    path = tmp_path / "model.zt"
    zt.written(path, ARRAYS, {"wire": "2"})
    edit(path, remove=["a"], add={"d": ARRAYS["a"]}, attributes={"n": 1})
    assert oracles.peer("ztensor-2.1.2").run(check, path=str(path)) == [3, ["b", "c", "d"]]
