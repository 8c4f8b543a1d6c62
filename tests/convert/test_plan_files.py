"""`convert(plan=FILE)`: a conversion as a JSON document, written, then carried out or refused."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squish_cli.app import run
from squish_convert.job.document import JobFile
from squish_convert.plan import plan_conversion

import squish_core as squish
from squish_core.api import FormatError, UsageError

WEIGHT = "model.layers.0.mlp.up_proj.weight"
RULES = {WEIGHT: "q8_0"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    arrays = {WEIGHT: np.ones((4, 64), np.float32), "model.norm.weight": np.ones(64, np.float32)}
    squish.save("in.safetensors", arrays)
    return tmp_path


def test_a_new_plan_is_written_and_carried_out(folder: Path) -> None:
    squish.convert("in.safetensors", "out.gguf", encode=RULES, plan="plan.json")
    squish.convert("in.safetensors", "direct.gguf", encode=RULES)
    assert Path("out.gguf").read_bytes() == Path("direct.gguf").read_bytes()
    document = json.loads(Path("plan.json").read_text())
    assert document["arguments"] == {"src": "in.safetensors", "dst": "out.gguf", "encode": [[WEIGHT, "q8_0"]]}
    assert [tensor["action"] for tensor in document["tensors"]] == ["encode", "copy"]
    assert document["image"]["files"][0]["size"] == Path("out.gguf").stat().st_size
    assert document["lock"]["versions"].keys() >= {"squish-core", "squish-gguf", "squish-safetensors"}
    assert str(folder) not in Path("plan.json").read_text()


def test_a_dry_run_writes_the_plan_alone(folder: Path) -> None:
    report = squish.convert("in.safetensors", "out.gguf", plan="plan.json", dry_run=True)
    assert report.dry_run
    assert (Path("plan.json").exists(), Path("out.gguf").exists()) == (True, False)


def test_an_existing_plan_needs_no_other_argument(folder: Path) -> None:
    squish.convert("in.safetensors", "out.gguf", encode=RULES, plan="plan.json", dry_run=True)
    before = Path("plan.json").read_bytes()
    report = squish.convert(plan="plan.json")
    assert [step.target for step in report.steps] == ["ggml.q8_0", "dense f32"] or report.steps[0].target == "ggml.q8_0"
    assert Path("out.gguf").exists()
    assert Path("plan.json").read_bytes() == before


def test_the_same_conversion_gives_the_same_bytes_of_plan(folder: Path) -> None:
    for name in ("a.json", "b.json"):
        squish.convert("in.safetensors", "out.gguf", encode=RULES, plan=name, dry_run=True)
    assert Path("a.json").read_bytes() == Path("b.json").read_bytes()


def same_values_later() -> None:
    os.utime("in.safetensors", ns=(1, 1))


def other_shape() -> None:
    squish.save("in.safetensors", {WEIGHT: np.ones((8, 64), np.float32), "model.norm.weight": np.ones(64, np.float32)})


@pytest.mark.parametrize(
    ("change", "arguments", "where"),
    [
        (None, {"src": "other.safetensors"}, "arguments.src"),
        (None, {"dst": "other.gguf"}, "arguments.dst"),
        (None, {"encode": {WEIGHT: "q4_0"}}, "arguments.encode"),
        (None, {"requantize": True}, "arguments.requantize"),
        (same_values_later, {}, "source.files[0].modified_ns"),
        (other_shape, {}, "source.files[0]"),
    ],
)
def test_the_message_about_a_difference_from_the_plan_names_it(
    folder: Path, change: Any, arguments: dict[str, Any], where: str
) -> None:
    squish.convert("in.safetensors", "out.gguf", encode=RULES, plan="plan.json", dry_run=True)
    if change:
        change()
    with pytest.raises(UsageError) as caught:
        squish.convert(**arguments, plan="plan.json")
    assert caught.value.code == "plan"
    assert where in caught.value.message
    assert not Path("out.gguf").exists()


def test_the_message_about_another_version_of_a_plugin_names_it(folder: Path) -> None:
    squish.convert("in.safetensors", "out.gguf", plan="plan.json", dry_run=True)
    document = json.loads(Path("plan.json").read_text())
    document["lock"]["versions"]["squish-gguf"] = "0.0.1"
    Path("plan.json").write_text(json.dumps(document))
    with pytest.raises(UsageError) as caught:
        squish.convert(plan="plan.json")
    assert "lock.versions.squish-gguf" in caught.value.message
    assert caught.value.expected == '"0.0.1"'


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"squish_plan": 2}', b"\xff", b"[" * 10**5])
def test_a_file_that_is_no_plan_is_refused_and_stays(folder: Path, data: bytes) -> None:
    Path("plan.json").write_bytes(data)
    with pytest.raises(FormatError) as caught:
        squish.convert("in.safetensors", "out.gguf", plan="plan.json")
    assert (caught.value.code, caught.value.file) == ("plan", "plan.json")
    assert Path("plan.json").read_bytes() == data


@pytest.mark.parametrize(
    "change",
    [
        {"src": 5}, {"src": ["in.safetensors"]}, {"dst": {}}, {"to": 3}, {"rename": ["hf"]}, {"only": 5},
        {"only": [5]}, {"encode": [["q8_0"]]}, {"encode": ["q8_0", ["a", "b"]]}, {"activations": True},
        {"requantize": "yes"}, {"other": "x"},
    ],
)  # fmt: skip
def test_a_plan_with_arguments_of_another_type_is_refused(change: dict[str, Any], folder: Path) -> None:
    arguments = {"src": "in.safetensors", "dst": "out.gguf", **change}
    Path("plan.json").write_text(json.dumps({"squish_plan": 1, "arguments": arguments}))
    with pytest.raises(FormatError) as caught:
        squish.convert(plan="plan.json")
    assert (caught.value.code, caught.value.file) == ("plan", "plan.json")


@pytest.mark.parametrize("start", [b"GGUF", b'{"a"'])
def test_a_file_larger_than_any_plan_is_not_read(folder: Path, start: bytes) -> None:
    """A model, for example; it may be larger than the memory."""
    with open("large", "wb") as file:
        file.write(start)
        file.truncate(1 << 40)
    with pytest.raises(FormatError) as caught:
        squish.convert("in.safetensors", "out.gguf", plan="large")
    assert caught.value.code == "plan"


def test_a_plan_that_appears_meanwhile_is_not_overwritten(folder: Path) -> None:
    """Another process has written it while this one was planning: the same is carried out, another one refused."""
    squish.convert("in.safetensors", "out.gguf", encode=RULES, plan="other.json", dry_run=True)
    other = Path("other.json").read_bytes()

    arguments = {"src": "in.safetensors", "dst": "out.gguf", "encode": RULES}
    with squish.open("in.safetensors") as file:
        for encode, is_same in ((RULES, True), ({WEIGHT: "q4_0"}, False)):
            Path("plan.json").unlink(missing_ok=True)
            job = JobFile(Path("plan.json"), {**arguments, "encode": encode})
            Path("plan.json").write_bytes(other)
            plan = plan_conversion(file, Path("out.gguf"), None, encode)
            with nullcontext() if is_same else pytest.raises(UsageError):
                job.compare_or_write(plan, file)
            assert Path("plan.json").read_bytes() == other


def test_python_and_the_command_line_write_one_rule_alike(folder: Path) -> None:
    squish.convert("in.safetensors", "out.gguf", encode="q8_0", only="*", plan="plan.json", dry_run=True)
    assert run(["convert", "--job-plan", "plan.json", "--encode", "q8_0", "--only", "*"]) == 0
    assert run(["convert", "--job-plan", "plan.json", "--encode", "q4_0"]) == 2


@pytest.mark.parametrize("arguments", [{"encode": lambda spec: "q8_0"}, {"src": {"w": np.ones(3)}}])
def test_what_json_cannot_hold_is_refused(folder: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        squish.convert(**{"src": "in.safetensors", "dst": "out.gguf", **arguments}, plan="plan.json")
    assert caught.value.code == "plan"
    assert not Path("plan.json").exists()


def test_source_and_target_are_needed_without_a_plan() -> None:
    with pytest.raises(UsageError):
        squish.convert()
    assert run(["convert"]) == 2


def test_the_command_line_takes_a_plan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["convert", "in.safetensors", "out.gguf", "--job-plan", "plan.json", "--dry-run"]) == 0
    assert run(["convert", "--job-plan", "plan.json"]) == 0
    assert Path("out.gguf").exists()
    assert run(["convert", "in.safetensors", "other.gguf", "--job-plan", "plan.json"]) == 2
    assert "arguments.dst" in capsys.readouterr().err
