"""Adding, removing and renaming attributes in files that exist."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squish_testing import expect_error
from squish_ztensor.edit import edit

import squish_core as squish
from squish_core.errors import SquishError, TensorError, UnsupportedVersionError, WriteError
from squish_core.model import Typed

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(True), "c": np.arange(4, dtype=np.int8)}
WIRES: list[dict[str, str]] = [{}, {"encoding": "zstd"}, {"wire": "2"}, {"wire": "2", "encoding": "zstd"}]


def values(path: Path) -> dict[str, Any]:
    assert {problem.code for problem in squish.verify(path, deep=True).problems} <= {"not-finite"}  # of the values
    with squish.open(path) as file:
        return {name: file[name].numpy() for name in sorted(file)}


@pytest.mark.parametrize("options", [{}, {"wire": "2"}])
def test_the_message_names_a_read_only_disk(
    zt: Any, tmp_path: Path, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.zt"
    zt.written(path, ARRAYS, options)
    opened, before = os.open, path.read_bytes()

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise OSError(errno.EROFS, "Read-only file system")

    def open_to_read(name: Any, flags: int, *arguments: Any, **options: Any) -> int:
        return refuse() if flags & (os.O_RDWR | os.O_WRONLY) else opened(name, flags, *arguments, **options)

    for name, function in {"open": open_to_read, "unlink": refuse, "mkdir": refuse, "rename": refuse}.items():
        monkeypatch.setattr(os, name, function)
    with expect_error(WriteError, code="unwritable") as caught:
        edit(path, remove=["a"])
    monkeypatch.undo()
    assert "read-only" in str(caught.value).lower()
    assert "interrupted" not in str(caught.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize("options", WIRES)
def test_tensors_are_removed_and_added_and_attributes_set(zt: Any, tmp_path: Path, options: dict[str, str]) -> None:
    path = tmp_path / "model.zt"
    zt.written(path, ARRAYS, options, {"license": "MIT", "old": "x"})
    edit(path, remove=["a"], add={"a": ARRAYS["c"], "d": ARRAYS["a"]}, attributes={"old": None, "new": "y"})
    arrays = values(path)
    assert list(arrays) == ["a", "b", "c", "d"]
    for name, array in {"a": ARRAYS["c"], "b": ARRAYS["b"], "c": ARRAYS["c"], "d": ARRAYS["a"]}.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)
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
def test_an_invalid_edit_changes_nothing(
    zt: Any, tmp_path: Path, options: dict[str, str], change: dict[str, Any]
) -> None:
    path = tmp_path / "model.zt"
    zt.written(path, ARRAYS, options)
    before = path.read_bytes()
    with pytest.raises(SquishError):
        edit(path, **change)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_existing_tensor_must_be_removed_first(zt: Any, tmp_path: Path) -> None:
    zt.written(tmp_path / "model.zt", ARRAYS, {"wire": "2"})
    with pytest.raises(TensorError) as caught:
        edit(tmp_path / "model.zt", add={"a": ARRAYS["a"]})
    assert (caught.value.tensor, caught.value.code) == ("a", "name")


def test_tied_tensors_stay_tied(zt: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.zt"
    path.write_bytes(zt.pack({"x": zt.item(offset=128), "w": zt.item(), "tied": zt.item()}, zt.four + bytes(64)))
    edit(path, remove=["x"])
    with squish.open(path) as file:
        assert file["w"].spec.encodings[0].parts == file["tied"].spec.encodings[0].parts


def test_version_0_1_is_refused_with_a_hint_to_convert(data: Path, tmp_path: Path) -> None:
    shutil.copyfile(data / "v01_dense_all_dtypes.zt", tmp_path / "old.zt")
    with pytest.raises(UnsupportedVersionError) as caught:
        edit(tmp_path / "old.zt", remove=["u8"])
    assert caught.value.found == "0.1"
    assert "wire=2" in str(caught.value.hint)


def test_version_1_0_is_rewritten_as_1_1(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "old.zt"
    shutil.copyfile(data / "v10_dense_all_dtypes.zt", path)
    with squish.open(path) as file:
        expected = {name: file[name].numpy().tobytes() for name in file if name != next(iter(file))}
        removed = next(iter(file))
    edit(path, remove=[removed], add={"new": ARRAYS["a"]}, attributes={"license": "MIT"})
    with squish.open(path) as file:
        assert (file.index.version, file.meta) == ("1.1.0", {"license": "MIT"})
        assert {name: file[name].numpy().tobytes() for name in file if name != "new"} == expected
        assert list(file)[-1] == "new"
    assert {problem.code for problem in squish.verify(path, deep=True).problems} <= {"not-finite"}  # of the values


LAYOUTS = ("v11_sparse_csr", "v11_sparse_coo", "v12_quantized_group", "v11_dense_zstd_l3", "h11_f8_complex_dtype")


@pytest.mark.parametrize("options", [{}, {"flavor": "compatible"}, {"wire": "2"}])
@pytest.mark.parametrize("name", LAYOUTS)
def test_tensors_of_other_files_are_added_with_their_codes(
    zt: Any, data: Path, tmp_path: Path, options: dict[str, str], name: str
) -> None:
    path = tmp_path / "model.zt"
    zt.written(path, ARRAYS, options)
    with squish.open(data / f"{name}.zt") as source:
        expected = {key: tensor.numpy().tobytes() for key, tensor in source.items()}
        codecs = {key: tensor.codec for key, tensor in source.items()}
        edit(path, add=source, remove=["a"])
    with squish.open(path) as file:
        assert set(file) == {"b", "c", *expected}
        assert {key: file[key].codec for key in codecs} == codecs
        assert {key: file[key].numpy().tobytes() for key in expected} == expected
    assert {problem.code for problem in squish.verify(path, deep=True).problems} <= {"not-finite"}  # of the values


@pytest.mark.parametrize("options", [{}, {"wire": "2"}])
def test_metadata_is_changed_in_attributes_or_squish_meta(zt: Any, tmp_path: Path, options: dict[str, str]) -> None:
    path = tmp_path / "model.zt"
    meta = {"n": Typed("u32", 7), "license": "MIT", "old": "x"}
    zt.written(path, ARRAYS, options, meta, {"tokenizer.json": b"{}"})
    edit(path, attributes={"license": "other", "old": None, "new": "y"})
    with squish.open(path) as file:
        assert file.index.meta == {"n": Typed("u32", 7), "license": "other", "new": "y"}
        assert bytes(file.assets["tokenizer.json"].raw) == b"{}"
        assert sorted(file) == sorted(ARRAYS)
    with pytest.raises(TensorError) as caught:
        edit(path, remove=["squish.meta"])
    assert (caught.value.tensor, caught.value.code) == ("squish.meta", "name")


@pytest.mark.parametrize("options", [{}, {"wire": "2"}])
def test_a_link_is_not_written_through(zt: Any, tmp_path: Path, options: dict[str, str]) -> None:
    zt.written(tmp_path / "model.zt", ARRAYS, options)
    (tmp_path / "link.zt").symlink_to(tmp_path / "model.zt")
    with expect_error(SquishError, code="file-kind"):
        edit(tmp_path / "link.zt", remove=["a"])


def run(*words: str) -> int:
    from squish_cli import app

    return app.run(words)


@pytest.mark.parametrize("options", [{}, {"wire": "2"}])
def test_the_command_line_edits(zt: Any, tmp_path: Path, capsys: Any, options: dict[str, str]) -> None:
    path, more = str(tmp_path / "model.zt"), str(tmp_path / "more.zt")
    zt.written(Path(path), ARRAYS, options, {"note": "x"})
    zt.written(Path(more), {"d": ARRAYS["a"], "a": ARRAYS["c"]}, {"encoding": "zstd"})
    assert run("edit", path, "--add", more, "--remove", "[ab]", "--set", "license=MIT=1", "--unset", "note") == 0
    assert "tensors: 2 added, 2 removed; 2 metadata keys" in capsys.readouterr().out
    with squish.open(path) as file:
        assert (sorted(file), file.meta) == (["a", "c", "d"], {"license": "MIT=1"})
        np.testing.assert_array_equal(file["a"].numpy(), ARRAYS["c"])
    assert run("edit", path, "--remove", "c", "--json") == 0
    assert json.loads(capsys.readouterr().out)["removed"] == ["c"]


def test_the_command_line_obeys_the_limits_of_the_environment(
    zt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.zt"
    path.write_bytes(zt.pack({"w": zt.item(shape=(1,) * 66, length=4)}))
    words = ("edit", str(path), "--set", "license=MIT")
    assert run(*words) == 2
    monkeypatch.setenv("SQUISH_LIMITS", "rank=70")
    assert run(*words) == 0
    with squish.open(path) as file:
        assert (len(file["w"].shape), file.meta) == (66, {"license": "MIT"})


@pytest.mark.parametrize(
    ("words", "text"),
    [(["--remove", "x*"], "no tensor matches"), (["--unset", "x"], "metadata key"), (["--set", "x"], "KEY=TEXT"),
     (["--add", "FILE"], "already"), ([], "nothing to change")],
)  # fmt: skip
def test_an_invalid_edit_on_the_command_line_is_refused(
    zt: Any, tmp_path: Path, capsys: Any, words: list[str], text: str
) -> None:
    path = tmp_path / "model.zt"
    zt.written(path, ARRAYS)
    before = path.read_bytes()
    assert run("edit", str(path), *(str(path) if word == "FILE" else word for word in words)) == 2
    assert text in capsys.readouterr().err
    assert path.read_bytes() == before


@pytest.mark.oracle
def test_the_reference_2_verifies_an_appended_file(zt: Any, data: Path, tmp_path: Path) -> None:
    import oracles

    def check(path):  # type: ignore[no-untyped-def] # runs in the peer
        import ztensor

        return [ztensor.verify(path, deep=True).checked, sorted(ztensor.open(path).keys())]

    path = tmp_path / "model.zt"
    zt.written(path, ARRAYS, {"wire": "2"})
    edit(path, remove=["a"], add={"d": ARRAYS["a"]}, attributes={"n": 1})
    for name in LAYOUTS:
        with squish.open(data / f"{name}.zt") as source:
            edit(path, add=source, remove=set(source) & set(squish.open(path)))
    checked, names = oracles.peer("ztensor-2.1.2").run(check, path=str(path))
    assert names == sorted(squish.open(path))
    assert checked >= len(names)


@pytest.mark.parametrize("options", [{}, {"flavor": "compatible"}, {"wire": "2", "flavor": "aligned"}])
def test_edited_file_keeps_its_alignment(zt: Any, tmp_path: Path, options: dict[str, str]) -> None:
    path = tmp_path / "m.zt"
    zt.written(path, {"a": np.arange(5.0), "b": np.arange(9.0)}, {**options, "alignment": "16384"})
    edit(path, add={"c": np.ones(3), "d": np.ones(2)}, remove=["a"])
    with squish.open(path) as file:
        parts = [part for spec in file.index.tensors.values() for part in spec.encodings[0].parts.values()]
        assert {segment.offset % 16384 for part in parts for segment in part.segments} == {0}
        assert [*file] == ["b", "c", "d"]
