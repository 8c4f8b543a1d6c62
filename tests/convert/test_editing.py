"""`edit` in every writable format: what changes, what stays, kills at every step, editors at the same time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import kills
import numpy as np
import pytest
from squish_convert.editing.changes import Changes
from squish_convert.editing.edit import edit
from squish_convert.editing.folders import replaced_folder
from toys import files_of

import squish_core as squish
from squish_core.model import Typed

RANDOM = np.random.default_rng(3)
WEIGHTS = {f"layers.{n}.up.weight": RANDOM.standard_normal((32, 256), np.float32) for n in range(3)}
WEIGHTS |= {"norm": np.ones(5, np.float16)}
FILES = {"config.json": b'{"model_type": "x"}', "tokenizer_config.json": b'{"chat_template": "old", "unk_token": "u"}'}
FORMATS = {
    "m.gguf": ("gguf", "q4_1"),
    "set": ("gguf:max_shard_tensors=2", "q4_1"),
    "m.safetensors": ("safetensors", "f16"),
    "hf": ("safetensors:max_shard_size=20KB", "f16"),
    "mlx": ("mlx:max_shard_size=8KB", "q4_1"),
    "gptq": ("hf:method=gptq", "q4_0"),
    "one.zt": ("ztensor", "q4_1"),
    "two.zt": ("ztensor:wire=2", "q4_1"),
    "m.squizd": ("squizd", "q4_1"),
    "uqff": ("uqff:max_shard_size=8KB", "q4_1"),
    "npydir": ("npydir", "q4_1"),
}
"""Name of the model -> format and encoding."""
FIRST = "m-00001-of-00002.gguf"
"""In the folder of a split set, the file that stands for it."""


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model in each format."""
    folder = tmp_path_factory.mktemp("models")
    for name, (to, encoding) in FORMATS.items():
        start = folder / f"start-{name}.gguf"
        squish.save(start, WEIGHTS, encode={"*.weight": encoding}, metadata={"general.name": "tiny", "note": "a"})
        target = folder / name / "m.gguf" if name == "set" else folder / name
        squish.convert(start, target, to, rename="keep", assets=None)
    for name in ("hf", "gptq"):
        for asset, data in FILES.items():
            if not (folder / name / asset).exists():
                (folder / name / asset).write_bytes(data)
    for name in ("hf", "gptq", "mlx", "uqff", "npydir"):
        (folder / name / "README.md").write_text("hello")
        (folder / name / "images").mkdir()
        (folder / name / "images" / "a.png").write_bytes(b"png")
    return folder


@pytest.fixture(params=FORMATS)
def model(request: pytest.FixtureRequest, models: Path, tmp_path: Path) -> Path:
    """The model in a format, to be edited."""
    return copied(models / request.param, tmp_path / request.param)


def copied(source: Path, target: Path) -> Path:
    (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    return target / FIRST if (target / FIRST).exists() else target


def values(path: Path) -> dict[str, np.ndarray]:
    with squish.open(path) as file:
        return {name: array.copy() for name, array in file.numpy().items()}


def equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def is_clean(path: Path) -> bool:
    folders = [path.parent, *([path.parent.parent] if path.name == FIRST else [])]
    extra = [name for folder in folders for name in os.listdir(folder) if name.startswith(".")]
    return squish.verify(path, deep=True).ok and not extra


def test_metadata_is_set_renamed_and_deleted(model: Path) -> None:
    before = values(model)
    edit(model, Changes(put={"license": "MIT", "note": "b"}))
    edit(model, Changes(rename_keys={"license": "terms"}, unset=("note",)))
    with squish.open(model) as file:
        assert file.metadata["terms"] == "MIT"
        assert not {"license", "note"} & file.metadata.keys()
    assert equal(values(model), before)
    assert is_clean(model)


def test_tensors_are_renamed_by_pattern_and_removed(model: Path) -> None:
    before = values(model)
    edit(model, Changes(rename={"layers.*.up.*": "blocks.*.in.*"}, remove=("layers.1.*",)))
    expected = {
        name.replace("layers.", "blocks.").replace(".up.", ".in."): array
        for name, array in before.items()
        if not name.startswith("layers.1.")
    }
    assert equal(values(model), expected)
    assert is_clean(model)


def test_tensors_are_added_and_replaced(model: Path, tmp_path: Path) -> None:
    before = values(model)
    more = {"extra": np.arange(64, dtype=np.float16).reshape(2, 32)}
    squish.save(tmp_path / "more.safetensors", more)
    squish.save(tmp_path / "other.safetensors", {"norm": np.zeros(5, np.float16)})
    with squish.open(tmp_path / "more.safetensors") as add, squish.open(tmp_path / "other.safetensors") as replace:
        edit(model, Changes(add=add, replace=replace))
    assert equal(values(model), {**before, **more, "norm": np.zeros(5, np.float16)})
    assert squish.verify(model, deep=True).ok


def test_copy_leaves_the_file_as_it_is(model: Path, tmp_path: Path) -> None:
    before, output = values(model), tmp_path / f"copy{model.suffix}"
    report = edit(model, Changes(put={"license": "MIT"}), output)
    copy = Path(report.file)
    assert report.how == "copied"
    assert copy.name.removeprefix("copy") == (FIRST[1:] if model.name == FIRST else model.suffix)
    assert equal(values(model), before)
    assert equal(values(copy), before)
    if model.is_dir():
        assert {*files_of(model)} == {*files_of(copy)}
    with squish.open(model) as old, squish.open(copy) as new:
        assert "license" not in old.metadata
        assert new.metadata["license"] == "MIT"


def test_chat_template_is_where_the_engine_looks(model: Path) -> None:
    edit(model, Changes(template="{{ new }}"))
    with squish.open(model) as file:
        if file.format in ("gguf", "ztensor", "squizd") or not model.is_dir():
            assert file.metadata["tokenizer.chat_template"] == "{{ new }}"
        else:
            assert bytes(file.assets["chat_template.jinja"].raw) == b"{{ new }}"
            assert all(b"old" not in bytes(file.assets[each].raw) for each in file.assets if each.endswith(".json"))


@pytest.mark.parametrize(
    "changes",
    [
        Changes(unset=("absent",)),
        Changes(rename={"layers.*": "one"}),
        Changes(rename={"nothing*": "x*"}),
        Changes(rename={"a": "*"}),
        Changes(remove=("nothing*",)),
        Changes(rename_keys={"absent": "x"}),
    ],
)
def test_change_that_cannot_apply_changes_nothing(models: Path, tmp_path: Path, changes: Changes) -> None:
    path = copied(models / "m.gguf", tmp_path / "m.gguf")
    with pytest.raises(squish.SquishError):
        edit(path, changes)
    assert path.read_bytes() == (models / "m.gguf").read_bytes()
    assert os.listdir(tmp_path) == ["m.gguf"]


@pytest.mark.parametrize(
    ("key", "text", "stored"),
    [
        ("count", "7", Typed("u32", 7)),
        ("new:f32", "0.5", Typed("f32", 0.5)),
        ("new:bool", "true", Typed("bool", True)),
        ("new:array:i32", "[1, 2]", Typed("array:i32", [1, 2])),
        ("text", "7", Typed("str", "7")),
        ("a:b", "x", "x"),
    ],
)
def test_values_have_the_type_of_the_key(tmp_path: Path, key: str, text: str, stored: object) -> None:
    path = tmp_path / "m.gguf"
    squish.save(path, WEIGHTS, metadata={"count": Typed("u32", 5), "text": "x"})
    edit(path, Changes(put={key: text}))
    with squish.open(path) as file:
        value = file.index.meta[key if key in file.index.meta else key.partition(":")[0]]
    if isinstance(stored, Typed):
        assert value.type == stored.type
        assert value.value == stored.value
    else:
        assert value.value == stored


@pytest.mark.parametrize(("key", "text"), [("count", "x"), ("count", "-1"), ("count", "[1]"), ("n:u8", "256")])
def test_value_of_another_type_is_refused(tmp_path: Path, key: str, text: str) -> None:
    path = tmp_path / "m.gguf"
    squish.save(path, WEIGHTS, metadata={"count": Typed("u32", 5)})
    with pytest.raises(squish.SquishError) as caught:
        edit(path, Changes(put={key: text}))
    assert caught.value.code == "usage"


def test_small_change_is_in_place_and_keeps_every_other_byte(models: Path, tmp_path: Path) -> None:
    path = copied(models / "m.gguf", tmp_path / "m.gguf")
    before, inode = path.read_bytes(), path.stat().st_ino
    assert edit(path, Changes(put={"general.name": "tinY"})).how == "in place"
    assert path.stat().st_ino == inode
    assert path.read_bytes() == before.replace(b"tiny", b"tinY")


def inodes(folder: Path) -> dict[str, int]:
    return {name: (folder / name).stat().st_ino for name in os.listdir(folder)}


def test_set_is_named_by_any_file_and_each_keeps_what_does_not_change(models: Path, tmp_path: Path) -> None:
    first = copied(models / "set", tmp_path / "set")
    folder, second = first.parent, first.with_name(first.name.replace("00001", "00002", 1))
    old, place, rest = inodes(folder), folder.stat().st_ino, second.read_bytes()
    assert edit(second, Changes(put={"license": "MIT"})).how == "rewritten"
    assert second.read_bytes() == rest
    assert inodes(folder)[second.name] == old[second.name]
    (folder / "other.txt").write_text("kept")
    report = edit(second, Changes(remove=("layers.1.*",), put={"license": "GPL"}))
    assert report.size == first.stat().st_size + second.stat().st_size
    assert (folder.stat().st_ino, (folder / "other.txt").read_text()) == (place, "kept")
    with pytest.raises(squish.UsageError) as caught:
        edit(first, Changes(put={"a": "b"}), folder / "m.gguf")
    assert (caught.value.code, caught.value.file) == ("usage", str(first))


def test_foreign_keys_of_a_set_stay_in_their_files(models: Path, tmp_path: Path) -> None:
    first = copied(models / "set", tmp_path / "set")
    second = first.with_name(first.name.replace("00001", "00002", 1))
    arrays = {"x": np.ones(4, np.float32), "y": np.ones(4, np.float32)}
    squish.save(tmp_path / "one.gguf", arrays, metadata={"own": "key", "general.name": "tiny"})
    keys = {"split.no": Typed("u16", 1), "split.count": Typed("u16", 2), "split.tensors.count": Typed("i32", 4)}
    with squish.open(first) as file:
        kept = [spec.name for spec in file.index.tensors.values()][:2]
    squish.convert(tmp_path / "one.gguf", second, "gguf", rename="keep")
    edit(second, Changes(put=keys))
    edit(first, Changes(put={"general.name": "other"}))
    assert [data.count(b"own") for data in (first.read_bytes(), second.read_bytes())] == [0, 1]
    with squish.open(first) as file:
        assert (file.metadata["general.name"], file.metadata["own"], list(file)) == ("other", "key", [*kept, "x", "y"])


def test_files_that_appear_in_a_folder_meanwhile_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "a").write_text("old")
    (folder / "gone").write_text("old")
    inode = folder.stat().st_ino
    with replaced_folder(folder) as copy:
        (folder / "appeared").write_text("meanwhile")
        os.replace(shutil.copy(copy / "a", tmp_path / "new"), copy / "a")
        (copy / "gone").unlink()
        (copy / "b").write_text("new")
    assert {name: data.decode() for name, data in files_of(folder).items()} == {
        "a": "old", "appeared": "meanwhile", "b": "new",
    }  # fmt: skip
    assert folder.stat().st_ino == inode
    assert os.listdir(tmp_path) == ["model"]


def test_new_key_that_may_be_mistyped_is_named(models: Path, tmp_path: Path) -> None:
    path = copied(models / "m.gguf", tmp_path / "m.gguf")
    report = edit(path, Changes(put={"general.nmae": "x", "general.license": "MIT", "note": "z"}))
    assert report.notes == ("the key general.nmae is new; did you mean general.name? unset='general.nmae' deletes it",)


def test_shards_that_do_not_change_are_not_written(models: Path, tmp_path: Path) -> None:
    path = copied(models / "hf", tmp_path / "hf")
    old = {name: (path / name).stat().st_ino for name in os.listdir(path)}
    edit(path, Changes(rename={"layers.0.*": "first.*"}))
    new = {name: (path / name).stat().st_ino for name in os.listdir(path)}
    changed = {name for name in old if old[name] != new[name]}
    assert old.keys() == new.keys()
    assert changed == {"model-00001-of-00003.safetensors", "model.safetensors.index.json"}
    assert (path / "README.md").read_text() == "hello"


@pytest.mark.parametrize(
    "name", ["hf/model-00001-of-00003.safetensors", "hf/model.safetensors.index.json", "uqff/model-0.uqff"]
)
def test_shard_of_a_folder_is_not_edited_alone(models: Path, tmp_path: Path, name: str) -> None:
    folder = copied(models / name.partition("/")[0], tmp_path / "model")
    before = files_of(folder)
    with pytest.raises(squish.UsageError) as caught:
        edit(folder / name.partition("/")[2], Changes(put={"a": "b"}))
    assert caught.value.code == "file-kind"
    assert files_of(folder) == before


@pytest.mark.parametrize(("name", "to"), [("m.gguf.zst", None), ("m.zt.zst", "ztensor:digest=sha256")])
def test_compressed_file_stays_compressed(tmp_path: Path, name: str, to: str | None) -> None:
    squish.save(tmp_path / name, WEIGHTS, format=to)
    edit(tmp_path / name, Changes(put={"license": "MIT"}, remove=("norm",)))
    assert (tmp_path / name).read_bytes()[:4] == b"\x28\xb5\x2f\xfd"
    with squish.open(tmp_path / name) as file:
        assert (file.metadata["license"], "norm" in file) == ("MIT", False)
        parts = [part for spec in file.index.tensors.values() for part in spec.encodings[0].parts.values()]
        assert {(part.digest or "none").partition(":")[0] for part in parts} == {"sha256" if to else "none"}


def test_formats_with_a_graph_are_refused_by_name(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parents[1] / "data" / "sample.onnx", tmp_path / "m.onnx")
    with pytest.raises(squish.UsageError) as caught:
        edit(tmp_path / "m.onnx", Changes(put={"a": "b"}))
    assert (caught.value.code, caught.value.found) == ("usage", "onnx")


WORK = """
import shutil
from pathlib import Path
from squish_convert.editing.changes import Changes
from squish_convert.editing.edit import edit

def prepare(folder):
    source = Path({source!r})
    (shutil.copytree if source.is_dir() else shutil.copyfile)(source, folder / source.name)

def work(folder):
    edit(folder / {path!r}, Changes(put={{"license": {value!r}}}, rename={{"layers.*": "blocks.*"}}))
"""


KILLED = ("set", "m.safetensors", "hf", "m.squizd", "npydir", "uqff")


@pytest.mark.skipif(sys.platform != "linux", reason="needs SIGKILL")
@pytest.mark.parametrize(
    "name",
    [
        "m.gguf",
        *(pytest.param(name, marks=pytest.mark.fuzz) for name in ("set", "m.safetensors", "hf", "m.squizd", "uqff")),
    ],
)
def test_killed_edit_leaves_the_old_or_the_new_model(models: Path, tmp_path: Path, name: str) -> None:
    root = tmp_path / "killed"
    root.mkdir()
    name = f"set/{FIRST}" if name == "set" else name
    work = WORK.format(source=str(models / name.split("/")[0]), path=name, value="MIT")
    old, seen = values(models / name), set[bool]()
    new = {key.replace("layers.", "blocks."): array for key, array in old.items()}
    for folder in kills.kill_everywhere(work, root, least=3):
        found = values(folder / name)
        assert equal(found, old) or equal(found, new)
        seen.add("blocks.0.up.weight" in found)
        with squish.open(folder / name) as file:
            assert ("license" in file.metadata) is ("blocks.0.up.weight" in found)
        edit(folder / name, Changes(put={"again": "yes"}))
        assert is_clean(folder / name)
    assert False in seen


@pytest.mark.skipif(sys.platform == "win32", reason="no locks")
@pytest.mark.parametrize("name", ["m.gguf", "hf", "set"])
def test_edits_at_the_same_time_are_all_kept(models: Path, tmp_path: Path, name: str) -> None:
    path = copied(models / name, tmp_path / name)
    code = """
import sys
from squish_convert.editing.changes import Changes
from squish_convert.editing.edit import edit
edit(sys.argv[1], Changes(put={sys.argv[2]: "x"}))
"""
    running = [subprocess.Popen([sys.executable, "-c", code, str(path), f"key{number}"]) for number in range(2)]
    assert [process.wait(60) for process in running] == [0] * 2
    with squish.open(path) as file:
        assert {f"key{number}" for number in range(2)} <= file.metadata.keys()
    assert is_clean(path)
