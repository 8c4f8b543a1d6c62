"""`squish convert --recipe`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from squish_cli import main
from squish_testing import expect_error

import squish_core as squish

for needed in ("squish_ggml", "squish_gguf"):
    pytest.importorskip(needed)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    values = np.random.default_rng(0).standard_normal((4, 64), np.float32)
    squish.save(tmp_path / "model.gguf", {"a.weight": values, "b.weight": values, "c.weight": values})
    return tmp_path / "model.gguf"


def test_rules_apply_in_order_and_encode_adds_to_them(model: Path, tmp_path: Path) -> None:
    policy, target = tmp_path / "policy.toml", tmp_path / "out.gguf"
    policy.write_text('encode = ["q8_0", "b.*=q4_0", "c.*=q4_0"]\n')
    assert main(["convert", str(model), str(target), "--recipe", str(policy), "--encode", "c.*=keep"]) == 0
    with squish.open(target) as file:
        assert [tensor.codec for tensor in file.values()] == ["ggml.q8_0", "ggml.q4_0", "dense"]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, "missing"), (b"\xff", "encode"), (b"encode = [", "encode"), (b'rules = ["q8_0"]', "encode"),
        (b'encode = ["q8_0", 3]', "encode"), (b'encode = "q8_0"', "encode"),
        pytest.param(b"#" * (1 << 24) + b"\n", "encode", id="large"),
    ],
)  # fmt: skip
def test_other_files_are_errors(
    model: Path, tmp_path: Path, content: bytes | None, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    policy, target = tmp_path / "policy.toml", tmp_path / "out.gguf"
    if content is not None:
        policy.write_bytes(content)
    assert main(["convert", str(model), str(target), "--recipe", str(policy), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code
    assert not target.exists()


def test_a_file_of_weights_gives_each_tensor_its_type(model: Path, tmp_path: Path) -> None:
    like, target = tmp_path / "like.gguf", tmp_path / "out.gguf"
    with squish.open(model) as file:
        arrays = file.numpy()
    squish.save(
        like, {"a.weight": arrays["b.weight"], "b.weight": arrays["a.weight"]}, encode={"a.*": "q4_0", "*": "q8_0"}
    )
    report = squish.convert(model, target, recipe=like)
    with squish.open(target) as file, squish.open(like) as recipe:
        assert {name: file[name].codec for name in recipe} == {name: recipe[name].codec for name in recipe}
        assert file["c.weight"].codec == "dense"
    assert any("lacks 1 of 3 tensors" in note and "c.weight" in note for note in report.notes)
    assert main(["convert", str(model), str(target), "--recipe", str(like), "--encode", "b.*=keep", "-q"]) == 0
    with squish.open(target) as file:
        assert [tensor.codec for tensor in file.values()] == ["ggml.q8_0", "dense", "dense"]


def test_a_tensor_that_has_the_type_keeps_its_codes(model: Path, tmp_path: Path) -> None:
    squish.convert(model, tmp_path / "like.gguf", encode={"a.*": "iq4_nl", "b.*": "q8_0", "c.*": "f16"})
    squish.convert(model, tmp_path / "source.gguf", encode={"a.*": "iq4_nl", "b.*": "q8_0"})
    report = squish.convert(tmp_path / "source.gguf", tmp_path / "out.gguf", recipe=tmp_path / "like.gguf")
    assert [step.action for step in report.steps] == ["copy", "copy", "encode"]


def test_rules_may_have_another_suffix(model: Path, tmp_path: Path) -> None:
    (tmp_path / "rules").write_text('encode = ["q8_0"]')
    report = squish.convert(model, tmp_path / "out.gguf", recipe=tmp_path / "rules")
    assert {step.target for step in report.steps} == {"ggml.q8_0"}


def test_a_file_without_these_tensors_is_refused(model: Path, tmp_path: Path) -> None:
    squish.save(tmp_path / "other.gguf", {"d.weight": np.ones((4, 64), np.float32)})
    with expect_error(squish.UsageError, code="usage", file=str(tmp_path / "other.gguf")):
        squish.convert(model, tmp_path / "out.gguf", recipe=tmp_path / "other.gguf")


def test_a_plan_names_the_recipe_and_is_carried_out_with_it(model: Path, tmp_path: Path) -> None:
    squish.convert(model, tmp_path / "like.gguf", encode="q4_0")
    plan, first, second = tmp_path / "plan.json", tmp_path / "one.gguf", tmp_path / "out.gguf"
    squish.convert(model, second, recipe=tmp_path / "like.gguf", plan=plan, dry_run=True)
    squish.convert(plan=plan)
    squish.convert(model, first, recipe=tmp_path / "like.gguf")
    assert first.read_bytes() == second.read_bytes()
