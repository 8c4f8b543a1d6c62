"""`--output sarif|github` of `verify` and `check-model`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft4Validator
from squish_cli import main
from squish_cli.annotations import Finding, finding_lines

from squish_core.errors import Problem

DATA = Path(__file__).parents[1] / "data"
TEXT = {"type": "string"}
LOCATION = {
    "type": "object",
    "properties": {
        "physicalLocation": {
            "type": "object",
            "required": ["artifactLocation"],
            "properties": {"artifactLocation": {"properties": {"uri": {"type": "string", "format": "uri-reference"}}}},
        },
        "logicalLocations": {"type": "array", "items": {"properties": {"fullyQualifiedName": TEXT}}},
    },
    "additionalProperties": False,
}
SARIF: dict[str, Any] = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"enum": ["2.1.0"]},
        "runs": {
            "type": "array",
            "items": {
                "required": ["tool"],
                "properties": {
                    "tool": {
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "required": ["name"],
                                "properties": {"rules": {"items": {"required": ["id"], "properties": {"id": TEXT}}}},
                            }
                        },
                    },
                    "results": {
                        "type": "array",
                        "items": {
                            "required": ["message"],
                            "properties": {
                                "message": {"required": ["text"], "properties": {"text": TEXT}},
                                "level": {"enum": ["none", "note", "warning", "error"]},
                                "ruleId": TEXT,
                                "ruleIndex": {"type": "integer", "minimum": 0},
                                "locations": {"type": "array", "items": LOCATION},
                            },
                            "additionalProperties": False,
                        },
                    },
                },
                "additionalProperties": False,
            },
        },
    },
    "additionalProperties": False,
}
"""The part of the published schema (draft 4) that concerns what is printed."""


@pytest.fixture(autouse=True)
def samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(DATA / "sample.gguf", "m.gguf")
    Path("a short, one: 50%.gguf").write_bytes(Path("m.gguf").read_bytes()[:-9])


@pytest.mark.parametrize(
    ("words", "code", "rules"),
    [
        (["verify", "m.gguf"], 0, []),
        (["verify", "a short, one: 50%.gguf", "m.gguf"], 1, ["bounds"]),
        (["verify", "absent"], 2, ["missing"]),
        (["verify", "absent", "a short, one: 50%.gguf"], 2, ["missing", "bounds"]),
        (["check-model", "m.gguf", "--for", "llama.cpp"], 1, ["engine-key", "tokenizer"]),
    ],
)
def test_sarif_has_a_rule_for_each_code(
    words: list[str], code: int, rules: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--output", "sarif"]) == code
    document = json.loads(capsys.readouterr().out)
    Draft4Validator(SARIF, format_checker=Draft4Validator.FORMAT_CHECKER).validate(document)
    [run] = document["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == rules
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        [location] = result["locations"]
        uri = location["physicalLocation"]["artifactLocation"]["uri"]
        assert uri in ("m.gguf", "absent", "a%20short%2C%20one%3A%2050%25.gguf")


@pytest.mark.parametrize(
    ("words", "code", "starts"),
    [
        (["verify", "m.gguf"], 0, []),
        (["verify", "absent", "m.gguf"], 2, ["::error file=absent::"]),
        (["verify", "a short, one: 50%.gguf"], 1, ["::error file=a short%2C one%3A 50%25.gguf::blk.0.ffn_up.weight: "]),
    ],
)
def test_github_has_an_annotation_for_each_finding(
    words: list[str], code: int, starts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--output", "github"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert [line[: len(start)] for line, start in zip(lines, starts, strict=True)] == starts


@pytest.mark.parametrize(
    ("severity", "command", "level"),
    [
        ("error", "error", "error"),
        ("warning", "warning", "warning"),
        ("note", "notice", "note"),
    ],
)
def test_a_finding_keeps_its_severity_and_stays_on_a_line(severity: str, command: str, level: str) -> None:
    finding = Finding("/models/m.gguf", Problem(code="odd", severity=severity, where="a\nb", message="100% odd"))
    assert finding_lines("github", [finding]) == [f"::{command} file=/models/m.gguf::a%0Ab: 100%25 odd [odd]"]
    [result] = json.loads("\n".join(finding_lines("sarif", [finding])))["runs"][0]["results"]
    assert (result["level"], result["message"]["text"]) == (level, "a\nb: 100% odd")
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "file:///models/m.gguf"


@pytest.mark.parametrize("file", ["https://example.org/a b.gguf", "s3://bucket/key.gguf"])
def test_the_address_of_a_url_is_itself(file: str) -> None:
    finding = Finding(file, Problem(code="odd", severity="error", where="a", message="odd"))
    [result] = json.loads("\n".join(finding_lines("sarif", [finding])))["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == file.replace(" ", "%20")


@pytest.mark.parametrize("words", [["--scheduler", "local"], ["--output", "junit"], ["--json"], ["--json-lines"]])
def test_a_wrong_line_is_an_error_and_no_finding(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "m.gguf", "m.gguf", "--output", "sarif", *words]) == 2
    out, err = capsys.readouterr()
    assert "runs" not in out
    assert "squish/error/1" in out if words[0].startswith("--json") else err.startswith("error: ")


def test_strict_makes_warnings_errors(capsys: pytest.CaptureFixture[str]) -> None:
    import numpy as np

    import squish_core as squish

    squish.save("zeros.safetensors", {"w": np.zeros((4, 4), np.float32)})
    for words, command in (([], "warning"), (["--strict"], "error")):
        assert main(["verify", "--deep", "zeros.safetensors", "--output", "github", *words]) == bool(words)
        assert capsys.readouterr().out.startswith(f"::{command} file=zeros.safetensors::w: ")
