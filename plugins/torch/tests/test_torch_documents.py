"""What the commands print with `--json` and `--json-lines` has the keys of their schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from squish_cli import main
from squish_cli.output import PROGRESS
from squish_cli.schema import schemas
from tiny_models import TEXT, tiny_llama, with_tokenizer

SCHEMAS = {schema["title"]: schema for schema in schemas().values()}
LINES = {
    "run": ["run hf --prompt ab --max-new-tokens 4", "run hf --prompt ab --max-new-tokens 4 --raw --greedy --explain"],
    "eval": [
        "eval hf --text text.txt --window 32 --limit 2",
        "eval hf --text text.txt --window 32 --definition lm-eval",
        "eval hf --text text.txt --window 32 --limit 1 --against hf --by layer",
    ],
    "activations": ["activations hf --text text.txt --window 32 -o imatrix.gguf"],
    "tune": ["tune hf --text text.txt --window 64 --target bpw=9 --encode q8_0"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("documents")
    (root / "text.txt").write_text(TEXT[:260])
    with_tokenizer(tiny_llama(root / "hf", vocab_size=257, num_hidden_layers=1))
    return root


def has_the_keys(document: dict[str, Any]) -> bool:
    schema = SCHEMAS[document["schema"]]
    return list(document) in [list(form["properties"]) for form in schema.get("anyOf", [schema])]


@pytest.mark.parametrize(("command", "line"), [(name, line) for name, lines in LINES.items() for line in lines])
@pytest.mark.parametrize("option", ["--json", "--json-lines"])
def test_a_document_has_the_keys_of_its_schema(
    folder: Path,
    command: str,
    line: str,
    option: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    assert main([*line.split(), option]) == 0
    printed = capsys.readouterr().out
    documents = [json.loads(each) for each in (printed.splitlines() if option == "--json-lines" else [printed])]
    assert documents[-1]["schema"] == f"squish/{command}/1"
    assert all(map(has_the_keys, documents))
    pieces = [document["text"] for document in documents if document["schema"] == "squish/text/1"]
    if command == "run" and option == "--json-lines":
        assert pieces
        assert "".join(pieces).rstrip("\n") == documents[-1]["text"].rstrip("\n")
    else:
        assert not pieces
    assert {document["schema"] for document in documents[:-1]} >= ({PROGRESS} if option == "--json-lines" else set())
