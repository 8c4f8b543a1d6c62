"""Folders as people have them: variants, overlays, stale or missing indexes, shared tensors, files of other kinds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from squish_safetensors.folder import is_model_asset

import squish_core as squish
from squish_core.api import FormatError

MODEL, INDEX = "model.safetensors", "model.safetensors.index.json"
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
OVERLAY = "model-overlay-00001.safetensors"


def tensors(meta: Mapping[str, str] | None = None, **data: bytes) -> bytes:
    entries: dict[str, Any] = {"__metadata__": dict(meta or {"format": "pt"})}
    at = 0
    for name, content in data.items():
        entries[name] = {"dtype": "U8", "shape": [len(content)], "data_offsets": [at, at + len(content)]}
        at += len(content)
    raw = json.dumps(entries).encode()
    return len(raw).to_bytes(8, "little") + raw + b"".join(data.values())


def index(**places: str) -> bytes:
    return json.dumps({"metadata": {}, "weight_map": places}).encode()


def fill(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


A, B, NEWER = tensors(a=b"a"), tensors(b=b"b"), tensors(a=b"A")
FOLDERS: dict[str, tuple[dict[str, bytes], dict[str, bytes], dict[str, str]]] = {
    # files; the tensors that are read; code and severity of the findings
    "an index of another upload": (
        {MODEL: A, INDEX: index(x=ONE, y=TWO)}, {"a": b"a"}, {"index": "warning"},
    ),
    "an index of other shards that are there, too": (
        {MODEL: A, INDEX: index(b=ONE), ONE: B}, {"a": b"a"}, {"index": "warning", "shard-unlisted": "note"},
    ),
    "an unreadable index": ({MODEL: A, INDEX: b"{"}, {"a": b"a"}, {"index": "warning"}),
    "an index of the file": ({MODEL: A, INDEX: index(a=MODEL)}, {"a": b"a"}, {}),
    "an index of the file and another one": (
        {MODEL: A, INDEX: index(a=MODEL, b="mtp.safetensors"), "mtp.safetensors": B}, {"a": b"a", "b": b"b"}, {},
    ),
    "an overlay": (
        {ONE: tensors(a=b"a", b=b"b"), OVERLAY: NEWER, INDEX: index(a=OVERLAY, b=ONE)}, {"a": b"A", "b": b"b"},
        {"shard-map": "warning"},
    ),
    "an overlay that sorts first": (
        {"a.safetensors": NEWER, ONE: tensors(a=b"a", b=b"b"), INDEX: index(a="a.safetensors", b=ONE)},
        {"a": b"A", "b": b"b"}, {"shard-map": "warning"},
    ),
    "a tensor in another shard than the index says": (
        {ONE: tensors(a=b"a", b=b"b"), TWO: tensors(c=b"c"), INDEX: index(a=ONE, b=TWO, c=TWO)},
        {"a": b"a", "b": b"b", "c": b"c"}, {"shard-map": "warning"},
    ),
    "a tensor that the index omits": (
        {ONE: tensors(a=b"a", b=b"b"), INDEX: index(a=ONE)}, {"a": b"a", "b": b"b"}, {"shard-map": "warning"},
    ),
    "a tensor that no shard has": ({ONE: A, INDEX: index(a=ONE, b=ONE)}, {"a": b"a"}, {"shard-map": "error"}),
    "a draft head beside the shards": (
        {ONE: A, TWO: B, INDEX: index(a=ONE, b=TWO), "mtp.safetensors": tensors(mtp=b"m")}, {"a": b"a", "b": b"b"},
        {"shard-unlisted": "note"},
    ),
    "a draft head beside one file": (
        {MODEL: A, "mtp.safetensors": tensors(mtp=b"m")}, {"a": b"a"}, {"shard-unlisted": "note"},
    ),
    "shards without an index": ({ONE: A, TWO: B}, {"a": b"a", "b": b"b"}, {"index": "note"}),
    "one shard without an index": ({"model-00001-of-00001.safetensors": A}, {"a": b"a"}, {"index": "note"}),
    "an index of a variant": (
        {
            "model.safetensors.index.fp16.json": index(a="model.fp16-00001-of-00002.safetensors"),
            "model.fp16-00001-of-00002.safetensors": A,
        },
        {"a": b"a"}, {},
    ),
    "an old index of a variant": (
        {
            "unet.safetensors.index.fp16.json": index(a="unet-00001-of-00001.fp16.safetensors"),
            "unet-00001-of-00001.fp16.safetensors": A,
        },
        {"a": b"a"}, {},
    ),
    "a variant alone": ({"model.fp16.safetensors": A}, {"a": b"a"}, {}),
    "a model and its variant": (
        {MODEL: A, "model.fp16.safetensors": NEWER}, {"a": b"a"}, {"shard-unlisted": "note"},
    ),
    "a component of diffusers and its variant": (
        {"diffusion_pytorch_model.safetensors": A, "diffusion_pytorch_model.fp16.safetensors": NEWER}, {"a": b"a"},
        {"shard-unlisted": "note"},
    ),
    "any file and its variant": (
        {"unet.safetensors": A, "unet.fp16.safetensors": NEWER}, {"a": b"a"}, {"shard-unlisted": "note"},
    ),
    "an adapter and a training state": (
        {"adapter_model.safetensors": A, "optimizer.safetensors": B}, {"a": b"a"}, {"shard-unlisted": "note"},
    ),
    "shared tensors that save_model left out": (
        {MODEL: tensors({"format": "pt", "head": "a"}, a=b"a")}, {"a": b"a", "head": b"a"}, {"alias": "note"},
    ),
    "metadata that names no tensor": ({MODEL: tensors({"format": "a", "x": "y"}, a=b"a")}, {"a": b"a"}, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLDERS)
def test_a_folder_opens_as_its_own_software_opens_it(case: str, tmp_path: Path) -> None:
    files, expected, findings = FOLDERS[case]
    with squish.open(fill(tmp_path, files)) as file:
        assert {name: bytes(file[name].parts()["data"].raw) for name in file} == expected
        assert {problem.code: problem.severity for problem in file.problems} == findings


REFUSED: dict[str, tuple[dict[str, bytes], str, str]] = {
    "two files": ({"a.safetensors": A, "b.safetensors": B}, "folder", "several safetensors files"),
    "two variants": ({"a.fp16.safetensors": A, "a.bf16.safetensors": B}, "folder", "a.bf16.safetensors, a.fp16"),
    "a set that lacks a shard": ({TWO: B}, "shard-missing", ONE),
    "an index of a missing shard": ({TWO: B, INDEX: index(a=ONE, b=TWO)}, "shard-missing", ONE),
    "two shards with one name and no index": ({ONE: A, TWO: A}, "shard-map", TWO),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_message_about_a_folder_that_does_not_say_what_to_open(case: str, tmp_path: Path) -> None:
    files, code, text = REFUSED[case]
    with pytest.raises(FormatError) as caught:
        squish.open(fill(tmp_path, files))
    assert caught.value.code == code
    assert text in str(caught.value)


CARRIED = (
    "config.json", "video_preprocessor_config.json", "image_processor_config.json", "modules.json",
    "1_Pooling/config.json", "config_sentence_transformers.json", "sentence_bert_config.json", "vocab.txt",
    "spiece.model", "qwen.tiktoken", "tekken.json", "modeling_tiny.py", "configuration_tiny.py",
)  # fmt: skip
NOT_READ = ("README.md", "runs.log", "mtp.safetensors", "onnx/", "2_Dense/")


def test_the_files_of_a_folder_are_carried_to_a_folder_or_listed(tmp_path: Path) -> None:
    source = fill(tmp_path / "in", {MODEL: A, **dict.fromkeys(CARRIED, b"{}")})
    others = ("README.md", "runs.log", "onnx/model.bin", "2_Dense/config.json", "2_Dense/model.safetensors")
    fill(source, dict.fromkeys((*others, ".gitattributes", ".cache/x"), b"{}"))
    fill(source, {"mtp.safetensors": B})
    report = squish.convert(source, tmp_path / "out", "safetensors:max_shard_size=1GB")
    assert sorted(item.name for item in report.dropped) == sorted(NOT_READ)
    written = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*")}
    assert set(CARRIED) <= written
    assert all(map(is_model_asset, CARRIED))
    with squish.open(source / MODEL) as file:  # a file by name: what lies beside it is not its own
        assert file.index.ignored == ()


def test_the_files_of_a_folder_do_not_keep_its_weights_from_being_deleted(tmp_path: Path) -> None:
    source = fill(tmp_path / "in", {MODEL: A, "config.json": b"{}", "README.md": b"read me"})
    report = squish.convert(source, tmp_path / "out", "safetensors:max_shard_size=1GB", delete_source=True)
    assert [item.name for item in report.dropped] == ["README.md"]
    assert sorted(path.name for path in source.iterdir()) == ["README.md", "config.json"]


MODULES = b"""[{"path": "", "type": "sentence_transformers.models.Transformer"},
 {"path": "2_Dense", "type": "sentence_transformers.models.Dense"},
 {"path": "../3_Dense", "type": "sentence_transformers.models.Dense"}]"""


def test_weights_of_modules_in_subfolders_are_tensors_of_the_folder(tmp_path: Path) -> None:
    source = fill(tmp_path / "in", {MODEL: A, "modules.json": MODULES, "2_Dense/model.safetensors": B})
    with squish.open(source) as file:
        assert {*file} == {"a", "2_Dense/b"}
        assert bytes(file["2_Dense/b"].parts()["data"].raw) == b"b"
        assert file.index.ignored == ()
    report = squish.convert(source, tmp_path / "out", "safetensors:max_shard_size=1GB")
    assert report.dropped == ()
    with squish.open(tmp_path / "out") as file, squish.open(tmp_path / "out" / "2_Dense" / MODEL) as module:
        assert {*file} == {"a", "2_Dense/b"}
        assert {*module} == {"b"}


def test_a_damaged_file_of_a_module_is_named(tmp_path: Path) -> None:
    source = fill(tmp_path / "in", {MODEL: A, "modules.json": MODULES, "2_Dense/model.safetensors": b"{}"})
    with pytest.raises(squish.SquishError) as caught:
        squish.open(source)
    assert caught.value.file is not None
    assert caught.value.file.endswith("2_Dense/model.safetensors")


@pytest.mark.parametrize("modules", [b"{}", b"[", b'"a"', b"[1, {}]", b'[{"type": "Dense", "path": "/2_Dense"}]'])
def test_a_list_of_modules_that_lists_none_is_no_error(modules: bytes, tmp_path: Path) -> None:
    source = fill(tmp_path / "in", {MODEL: A, "modules.json": modules, "2_Dense/model.safetensors": B})
    with squish.open(source) as file:
        assert {*file} == {"a"}
