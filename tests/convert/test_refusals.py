"""Codes that a target has no form for: one error for all tensors, by codec, with the rule that would convert them."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from squish_cli import main
from squish_cli.output import option

import squish_core as squish


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A GGUF of two tensors in q6_k, one in q3_k and one in q8_0."""
    generator = np.random.default_rng(0)
    names = ("blk.0.ffn_down.weight", "blk.1.ffn_down.weight", "blk.0.ffn_up.weight", "blk.0.attn_q.weight")
    arrays = {name: generator.standard_normal((32, 256), np.float32) for name in names}
    rules = {"*ffn_down*": "q6_k", "*ffn_up*": "q3_k", "*attn_q*": "q8_0"}
    squish.save(tmp_path / "mixed.gguf", arrays, encode=rules)
    return tmp_path / "mixed.gguf"


def refusal(source: Path, to: str) -> squish.TensorError:
    with pytest.raises(squish.TensorError) as caught:
        squish.convert(source, source.with_name("out"), to)
    assert not source.with_name("out").exists()
    return caught.value


def test_the_message_groups_tensors_by_codec_before_anything_is_written(mixed: Path) -> None:
    error = refusal(mixed, "mlx")
    assert (error.code, error.tensor) == ("refused", "blk.0.ffn_down.weight")
    assert [(finding.code, finding.where) for finding in error.findings] == [
        ("refused", "ggml.q6_k"),
        ("refused", "ggml.q3_k"),
    ]
    assert "2 tensors of 6.56 bits a weight (blk.0.ffn_down.weight and 1 more)" in error.message


def test_the_rule_that_gives_values_and_the_nearest_codes_are_named(mixed: Path) -> None:
    hint = refusal(mixed, "mlx").hint
    assert hint is not None
    assert "encode='blk.*.ffn_down.weight=bf16' encode='blk.*.ffn_up.weight=bf16'" in hint
    assert "encode='blk.*.ffn_down.weight=q8' and requantize=True (8.5 bits a weight, " in hint
    assert "; or q6: 6.5 bits a weight, " in hint


def test_suggestions_are_ranked_by_measured_error_and_surpass_each_other_in_size(mixed: Path) -> None:
    suggestions = refusal(mixed, "mlx").suggestions
    assert {each["codes"] for each in suggestions} == {"ggml.q6_k", "ggml.q3_k"}
    for codes in ("ggml.q6_k", "ggml.q3_k"):
        ranked = [(each["snr"], each["bits"]) for each in suggestions if each["codes"] == codes]
        assert 1 <= len(ranked) <= 3
        assert ranked == sorted(ranked, reverse=True)
        assert len({bits for _, bits in ranked}) == len(ranked)


def test_the_error_of_a_suggestion_is_the_one_that_converting_measures(mixed: Path, tmp_path: Path) -> None:
    best = next(each for each in refusal(mixed, "mlx").suggestions if each["codes"] == "ggml.q3_k")
    rules = ["blk.*.ffn_down.weight=bf16", *best["encode"]]
    report = squish.convert(mixed, tmp_path / "codes", "mlx", rules, requantize=True)
    (quality,) = [step.quality for step in report.steps if step.name == "blk.0.ffn_up.weight"]
    assert quality is not None
    assert quality.snr == pytest.approx(best["snr"])


def test_codes_of_integers_are_never_answered_with_floats_of_4_bits(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((32, 256), np.float32)
    squish.save(tmp_path / "model", {"w.weight": values}, format="mlx", encode="q6")
    rules = [rule for each in refusal(tmp_path / "model", "gguf").suggestions for rule in each["encode"]]
    assert rules
    assert not [rule for rule in rules if "fp4" in rule]


def test_suggestions_are_in_the_json_of_the_command_and_survive_pickling(
    mixed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refusal(mixed, "mlx")
    assert pickle.loads(pickle.dumps(error)).suggestions == error.suggestions
    assert main(["convert", str(mixed), str(mixed.with_name("out")), "--to", "mlx", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["suggestions"] == list(error.suggestions)


def test_nearest_keeps_what_the_target_holds_and_encodes_the_rest_with_the_smallest_error(
    mixed: Path, tmp_path: Path
) -> None:
    report = squish.convert(mixed, tmp_path / "codes", "mlx", "nearest")
    actions = {step.name: step.action for step in report.steps}
    assert actions.pop("blk.0.attn_q.weight") == "repack"
    assert set(actions.values()) == {"encode"}
    notes = {step.note.partition(" (")[0] for step in report.steps if step.action == "encode"}
    assert notes == {"q8 is nearest to ggml.q6_k", "q8 is nearest to ggml.q3_k"}


def test_the_nearest_codes_are_those_that_every_tensor_of_the_group_can_have(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    arrays = {f"w{width}.weight": generator.standard_normal((8, width), np.float32) for width in (256, 64)}
    squish.save(tmp_path / "model", arrays, format="mlx", encode={"*": "q6"})
    rules = [rule for each in refusal(tmp_path / "model", "gguf").suggestions for rule in each["encode"]]
    assert rules
    assert not [rule for rule in rules if rule.endswith("_k")]  # they need 256


@pytest.mark.parametrize(
    ("encode", "text"),
    [
        ("gptq:bits=4,group_size=32", "GPTQ, 4 bits, group 32, zero points"),
    ],
)
def test_codes_are_described_in_words(encode: str, text: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((64, 64), np.float32)
    method, _, params = encode.partition(":")
    squish.save(tmp_path / "model", {"model.w.weight": values}, format=f"hf:method={method}", encode=f"int4:{params}")
    assert refusal(tmp_path / "model", "gguf").found == text


def test_the_rules_that_are_named_convert(mixed: Path, tmp_path: Path) -> None:
    squish.convert(mixed, tmp_path / "values", "mlx", ["blk.*.ffn_down.weight=bf16", "blk.*.ffn_up.weight=bf16"])
    rules = ["blk.*.ffn_down.weight=q6", "blk.*.ffn_up.weight=q3"]
    squish.convert(mixed, tmp_path / "codes", "mlx", rules, requantize=True)
    with squish.open(tmp_path / "values") as values, squish.open(tmp_path / "codes") as codes:
        assert (values["blk.0.ffn_up.weight"].dtype, codes["blk.0.ffn_up.weight"].codec) == ("bf16", "affine")


def test_biases_that_are_no_zero_points_have_exact_values_and_nearest_codes_in_ztensor(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((8, 128), np.float32)
    squish.save(tmp_path / "model", {"up.weight": values}, format="mlx", encode="q4")
    with pytest.raises(squish.TensorError) as caught:
        squish.convert(tmp_path / "model", tmp_path / "out.zt")
    rules = re.findall(r"encode='([^']*)'", caught.value.hint or "")
    assert (caught.value.code, rules[:2]) == ("refused", ["*=bf16", "*=f32"])
    reports = [
        squish.convert(tmp_path / "model", tmp_path / f"{number}.zt", encode=rule, requantize=number == 2)
        for number, rule in enumerate(rules[:3])
    ]
    assert [report.steps[0].exactness.kind for report in reports] == ["bounded", "values", "bounded"]
    with squish.open(tmp_path / "model") as source, squish.open(tmp_path / "1.zt") as file:
        assert np.array_equal(file["up.weight"].numpy(), source["up.weight"].numpy())
    assert f"({reports[2].steps[0].bits:.3g} bits a weight" in (caught.value.hint or "")


def test_a_folder_of_plain_floats_has_no_nearest_codes(mixed: Path) -> None:
    error = refusal(mixed, "hf")
    assert error.hint == "Ask for their values with encode='*=bf16', exactly with encode='*=f32'."
    assert [finding.where for finding in error.findings] == ["ggml.q6_k", "ggml.q3_k", "ggml.q8_0"]


def test_hf_without_a_method_is_a_folder_of_plain_floats(mixed: Path, tmp_path: Path) -> None:
    squish.convert(mixed, tmp_path / "floats", "hf", "*=bf16")
    with squish.open(tmp_path / "floats") as file:
        assert (file.format, {file[name].dtype for name in file}) == ("safetensors", {"bf16"})


def test_patterns_are_quoted_for_the_shell() -> None:
    assert (option("encode", "*=bf16"), option("encode", "f32")) == ("--encode '*=bf16'", "--encode f32")


@pytest.fixture
def partly_refused(tmp_path: Path) -> Path:
    """A GGUF of four kinds of refused matrices, and of an embedding and a vector that every target holds."""
    generator = np.random.default_rng(0)
    kinds = ("ffn_down", "ffn_up", "ffn_gate", "attn_q")
    arrays = {f"blk.0.{kind}.weight": generator.standard_normal((32, 256), np.float32) for kind in kinds}
    arrays |= {"token_embd.weight": np.ones((8, 256), np.float32), "blk.0.attn_norm.weight": np.ones(256, np.float32)}
    rules = {"blk.*ffn_*": "q6_k", "*attn_q*": "q3_k"}
    squish.save(tmp_path / "partly.gguf", arrays, encode=rules)
    return tmp_path / "partly.gguf"


def test_a_rule_for_all_keeps_the_matrices_that_the_target_holds(partly_refused: Path, tmp_path: Path) -> None:
    hint = refusal(partly_refused, "mlx").hint
    assert hint is not None
    assert "with encode='*=bf16' encode='token_embd.weight=keep', exactly with encode='*=f32' " in hint
    squish.convert(partly_refused, tmp_path / "values", "mlx", ["*=bf16", "token_embd.weight=keep"])
    with squish.open(tmp_path / "values") as file:
        assert (file["token_embd.weight"].dtype, file["blk.0.attn_q.weight"].dtype) == ("f32", "bf16")


def test_the_rules_of_all_nearest_codes_convert_together(partly_refused: Path, tmp_path: Path) -> None:
    hint = refusal(partly_refused, "mlx").hint
    assert hint is not None
    rules = re.findall(r"encode='([^']*)'", hint.partition("or for ")[2])
    squish.convert(partly_refused, tmp_path / "codes", "mlx", rules, requantize=True)
    with squish.open(tmp_path / "codes") as file:
        assert {name: tensor.codec for name, tensor in file.items()} == {
            **dict.fromkeys(file, "affine"),
            "token_embd.weight": "dense",
            "blk.0.attn_norm.weight": "dense",
        }


def test_patterns_match_only_the_layers_that_are_refused(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    arrays = {f"blk.{n}.ffn_down.weight": generator.standard_normal((8, 256), np.float32) for n in range(12)}
    rules = {"*": "q8_0", "blk.[25].*": "q6_k", "blk.11.*": "q6_k"}
    squish.save(tmp_path / "mixed.gguf", arrays, encode=rules)
    hint = refusal(tmp_path / "mixed.gguf", "mlx").hint
    assert hint is not None
    assert "with encode='blk.[25].ffn_down.weight=bf16' encode='blk.11.ffn_down.weight=bf16', exactly " in hint


def test_a_rule_for_all_by_pattern_skips_vectors(partly_refused: Path, tmp_path: Path) -> None:
    report = squish.convert(partly_refused, tmp_path / "out.gguf", encode="*=q8_0", requantize=True)
    notes = {step.name: step.note for step in report.steps}
    assert notes["blk.0.attn_norm.weight"] == "kept: a vector is not quantized"
