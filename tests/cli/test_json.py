"""`--json`: each command prints one object that names its schema first and fits it, and so do errors and progress."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documents import check, schemas
from squish_cli import main
from squish_cli.app import NUMBERS
from squish_cli.schema import EVENTS

import squish_core as squish

DATA = Path(__file__).parents[1] / "data"


def schema_of(command: str) -> str:
    return f"squish/{command}/{NUMBERS.get(command, 1)}"


RESULTS: list[tuple[str, str, int]] = [
    ("ls", "ls m.gguf", 0),
    ("ls", "ls --long m.npydir", 0),
    ("info", "info m.gguf", 0),
    ("info", "m.gguf", 0),
    ("info", "info m.gguf *attn_norm*", 0),
    ("info", "info m.uqff", 0),
    ("info", "info m.gguf --meta general.architecture", 0),
    ("info", "info m.squizd", 0),
    ("info", "info m.onnx", 0),
    ("info", "info m.gguf --by layer", 0),
    ("report", "report m.gguf m.zt --values -o page.html --quiet", 0),
    ("plan", "plan m.gguf", 0),
    ("plan", "plan m.squizd", 0),
    ("plan", "plan --format gguf --feature dtype=q4_k", 0),
    ("plan", "plan m.npydir --backend numpy", 0),
    ("needs", "needs m.gguf --backend cpu", 0),
    ("needs", "needs gguf", 0),
    ("verify", "verify m.gguf --deep", 0),
    ("verify", "verify m.gguf m.zt", 0),
    ("verify", "verify short.gguf", 1),
    ("verify", "verify m.gguf absent", 2),
    ("verify", "verify text.txt m.gguf --strict", 1),
    ("hash", "hash m.gguf", 0),
    ("hash", "hash m.gguf --gguf --manifest ids.json", 0),
    ("prove", "prove m.gguf m.gguf", 0),
    ("merge", "merge m.gguf lora.gguf -o merged.gguf --dry-run", 0),
    ("diff", "diff m.gguf m.gguf", 0),
    ("diff", "diff m.gguf m.safetensors", 1),
    ("convert", "convert m.safetensors out.gguf --encode f16 --names keep", 0),
    ("convert", "convert m.gguf out.zt --dry-run", 0),
    ("cp", "cp m.gguf part.gguf --only *attn_norm*", 0),
    ("card", "card m.gguf --base m.gguf", 0),
    ("matrix", "matrix npydir --backend numpy", 0),
    ("bench", "bench m.safetensors", 0),
    ("formats", "formats", 0),
    ("formats", "formats gguf", 0),
    ("codecs", "codecs", 0),
    ("codecs", "codecs q4_k", 0),
    ("backends", "backends", 0),
    ("backends", "backends numpy", 0),
    ("plugins", "plugins", 0),
    ("plugins", "plugins gguf", 0),
    ("plugins", "plugins --available onnx", 0),
    ("plugins", "plugins --available nonsense", 1),
    ("families", "families", 0),
    ("families", "families llama", 0),
    ("new-plugin", "new-plugin acme-json --kind codec", 0),
    ("install", "install squish-gguf --dry-run", 0),
    ("doctor", "doctor", 0),
    ("doctor", "doctor .", 0),
    ("explain", "explain", 0),
    ("explain", "explain encode", 0),
    ("config", "config", 0),
    ("config-list", "config list", 0),
    ("config-get", "config get threads", 0),
    ("config-set", "config set threads 2", 0),
    ("config-unset", "config unset threads", 0),
    ("cache", "cache", 0),
    ("cache-list", "cache list", 0),
    ("cache-clear", "cache clear", 0),
    ("cache-build", "cache build m.npydir --tier finalized", 0),
    ("check-model", "check-model m.gguf --for llama.cpp", 1),
    ("edit", "edit m.zt --set note=x", 0),
    ("refs", "refs m.safetensors refs.json", 0),
    ("schema", "schema", 0),
    ("schema", "schema cache list", 0),
]
"""Command, line, exit code."""
WITH_TORCH = {"run", "eval", "activations", "tune"}
"""Commands that need torch: the tests of squish-torch print their documents."""
WITH_MODEL = {"fit"}
"""Commands that need a whole model: the tests of squish-models print their documents."""
ERRORS = [
    "ls absent",
    "ls m.gguf --sort none",
    "ls",
    "info m.gguf --nothing",
    "convert m.gguf",
    "verify absent",
    "nonsense",
    "formats nothing",
    "families nothing",
    "cache clear nothing",
    "edit m.onnx --set a=b",
    "schema nothing",
    "plan m.gguf --op sing",
    "serve m.gguf --to nothing",
    "verify m.gguf --output sarif",
    "verify m.gguf --output junit",
]
LISTS = {
    "ls": "tensors",
    "verify": "files",
    "plugins": "plugins",
    "formats": "formats",
    "codecs": "codecs",
    "backends": "backends",
    "families": "families",
    "needs": "plugins",
    "cache": "entries",
}


@pytest.fixture(autouse=True)
def samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SQUISH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SQUISH_CONFIG", str(tmp_path / "config.toml"))
    Path("config.toml").touch()
    for path in DATA.glob("sample.*"):
        copy = shutil.copytree if path.is_dir() else shutil.copy
        copy(path, f"m{path.suffix}")
    Path("short.gguf").write_bytes(Path("m.gguf").read_bytes()[:-9])
    Path("text.txt").write_text("no weights")
    adapter = {
        "blk.0.ffn_up.weight.lora_a": np.ones((1, 64), np.float32),
        "blk.0.ffn_up.weight.lora_b": np.ones((4, 1), np.float32),
    }
    keys = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}
    squish.save("lora.gguf", adapter, metadata=keys)


def answer(capsys: pytest.CaptureFixture[str], line: str, option: str = "--json") -> tuple[int, str]:
    code = main([*line.split(), option])
    return code, capsys.readouterr().out


@pytest.mark.parametrize(("command", "line", "code"), RESULTS, ids=[line for _, line, _ in RESULTS])
def test_a_document_names_its_schema_first_and_fits_it(
    command: str, line: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    found, printed = answer(capsys, line)
    document = json.loads(printed)
    assert (found, document["schema"]) == (code, schema_of(command))
    check(document)
    assert isinstance(document.get(LISTS.get(command, ""), []), list)


def test_a_server_prints_a_document_of_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = "http://127.0.0.1:8000"
    monkeypatch.setattr("squish_remote.serve.run", lambda server, host, port, ready: ready(address))
    code, printed = answer(capsys, "serve m.safetensors --to gguf --names keep")
    [line] = printed.splitlines()
    document = json.loads(line)
    check(document)
    assert (code, document["schema"], document["file"]) == (0, "squish/serve/1", "m.safetensors")
    assert document["urls"] == [f"{address}/m.gguf"]


def test_every_schema_is_in_the_table() -> None:
    names = {title.split("/")[1] for title in schemas()}
    elsewhere = {"serve", "browse"} | WITH_TORCH | WITH_MODEL
    assert names - EVENTS.keys() == {command for command, _, _ in RESULTS} | elsewhere


@pytest.mark.parametrize("line", ERRORS)
@pytest.mark.parametrize("option", ["--json", "--json-lines"])
def test_an_error_is_a_document(line: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = answer(capsys, line, option)
    document = json.loads(printed.splitlines()[-1] if option == "--json-lines" else printed)
    assert (code, document["schema"]) == (2, "squish/error/1")
    check(document)


@pytest.mark.parametrize(
    "line",
    [
        "verify m.gguf",
        "verify m.gguf --deep",
        "verify m.gguf m.zt",
        "verify short.gguf",
        "verify m.gguf absent",
        "convert m.safetensors out.zt --encode int8",
        "convert m.gguf out.zt --dry-run",
        "diff m.gguf m.safetensors",
        "cp m.gguf out.gguf --only *attn_norm*",
        "convert m.safetensors out.zt --encode f16 --scheduler local:1",
        "cache build m.npydir --tier finalized",
    ],
)
def test_progress_is_a_document_a_line_and_the_result_is_the_last(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed = answer(capsys, line, "--json-lines")
    documents = [json.loads(each) for each in printed.splitlines()]
    command = "-".join(line.split()[: 2 if line.startswith("cache") else 1])
    *progress, last = [document["schema"] for document in documents]
    assert last == schema_of(command)
    assert "squish/progress/1" in progress
    assert set(progress) <= {"squish/progress/1", "squish/task/1"}
    assert ("squish/task/1" in progress) == ("--scheduler" in line)
    for document in documents:
        check(document)
    assert answer(capsys, line.replace("out.", "again."))[0] == code


def test_quiet_leaves_the_result_alone(capsys: pytest.CaptureFixture[str]) -> None:
    _, printed = answer(capsys, "verify m.gguf --deep --quiet", "--json-lines")
    [document] = printed.splitlines()
    assert json.loads(document)["schema"] == "squish/verify/1"


def test_a_command_without_progress_takes_no_lines(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = answer(capsys, "ls m.gguf", "--json-lines")
    assert (code, json.loads(printed)["error"]["code"]) == (2, "usage")


@pytest.mark.parametrize("words", ["ls", "cache", "cache list", "cache-build", "families", "error", "text"])
def test_a_schema_is_printed_alone(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", *words.split()]) == 0
    name = words.replace(" ", "-")
    alone = json.loads(capsys.readouterr().out)
    assert alone == schemas()[f"squish/{name}/1"]
    assert json.loads(answer(capsys, f"schema {words}")[1]) == {"schema": "squish/schema/1", "schemas": {name: alone}}


def test_all_schemas_are_one_object_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert {each["title"]: each for each in json.loads(capsys.readouterr().out).values()} == schemas()


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.pop("file"),
        lambda document: document.update(more=1),
        lambda document: document.update(file=1),
        lambda document: document.update(schema="squish/ls/2"),
        lambda document: document.update(file=document.pop("file")),
        lambda document: document["tensors"][0].pop("size"),
        lambda document: document["tensors"][0].update(name=document["tensors"][0].pop("name")),
    ],
    ids=["no key", "another key", "another type", "another schema", "order", "no key below", "order below"],
)
def test_a_document_that_differs_does_not_fit(change: Any, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(answer(capsys, "ls m.gguf")[1])
    check(document)
    change(document)
    with pytest.raises((AssertionError, KeyError)):
        check(document)


@pytest.mark.parametrize("line", ["cache", "cache list"])
def test_the_cache_is_listed_alike(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(answer(capsys, line)[1])
    assert list(document) == ["schema", "folder", "limit", "size", "entries"]
