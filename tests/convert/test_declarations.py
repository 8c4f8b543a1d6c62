"""What a source states of how it stores its tensors is not written beside tensors that are stored otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import writeback_samples as samples
from squish_testing.writeback import check_conversion

import squish_core as squish
from squish_core.api import Dropped

HF = samples.ROOT / "plugins/hf/tests/data"
MLX = samples.ROOT / "plugins/mlx_format/tests/data"
SOURCES = {
    "gptq": (HF / "gptq-v1_w4_g64_asym", ("quantization_config",)),
    "compressed-tensors": (HF / "compressed-tensors-w4_g32_sym", ("quantization_config",)),
    "mlx": (MLX / "mlx-affine_b4_g64", ("quantization", "quantization_config")),
}
DENSE_TARGETS = ("safetensors:max_shard_size=8KiB", "npydir", "ztensor", "ztensor:wire=2", "squizd", "uqff")


def config_of(target: Path) -> dict[str, Any]:
    """The config that a written file holds."""
    with squish.open(target) as file:
        return json.loads(bytes(file.assets["config.json"].raw))


def declared(dropped: tuple[Dropped, ...]) -> set[tuple[str, str]]:
    """Where a report says that a declaration was left behind, and its key."""
    return {(item.where, item.name) for item in dropped if item.kind == "declaration"}


@pytest.mark.parametrize("to", DENSE_TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_a_declaration_does_not_go_with_tensors_that_are_stored_otherwise(source: str, to: str, tmp_path: Path) -> None:
    path, keys = SOURCES[source]
    with squish.open(path) as file:
        report = check_conversion(file, tmp_path / "target", to, "f32").report
        before = json.loads(bytes(file.assets["config.json"].raw))
    assert report is not None
    assert declared(report.dropped) == {("config.json", key) for key in keys}
    assert config_of(tmp_path / "target") == {key: value for key, value in before.items() if key not in keys}
    with squish.open(tmp_path / "target") as written:
        assert written.format == to.partition(":")[0]
        assert written.problems == ()


@pytest.mark.parametrize("to", [*(to for to in DENSE_TARGETS if "wire=2" not in to), "uqff:version=0.1.3"])
def test_the_predicted_size_counts_the_config_that_is_written(to: str, tmp_path: Path) -> None:
    path, _ = SOURCES["gptq"]
    planned = squish.convert(path, tmp_path / "target", to, "f32", dry_run=True)
    assert planned.size == squish.convert(path, tmp_path / "target", to, "f32").size


@pytest.mark.parametrize(("to", "encode"), [("mlx", "f16"), ("hf", "f16"), ("uqff:version=0.1.3", "q8_0")])
@pytest.mark.parametrize("source", SOURCES)
def test_a_checkpoint_without_quantized_layers_declares_none(source: str, to: str, encode: str, tmp_path: Path) -> None:
    path, keys = SOURCES[source]
    report = squish.convert(path, tmp_path / "target", to, encode, requantize=True)
    assert declared(report.dropped) == {("config.json", key) for key in keys}
    assert {"quantization", "quantization_config"}.isdisjoint(config_of(tmp_path / "target"))


def test_a_declaration_that_is_rewritten_is_not_dropped(tmp_path: Path) -> None:
    report = squish.convert(SOURCES["gptq"][0], tmp_path / "target", "hf:method=compressed-tensors")
    assert declared(report.dropped) == set()
    assert config_of(tmp_path / "target")["quantization_config"]["quant_method"] == "compressed-tensors"


@pytest.mark.parametrize("part", ["text_config", "text_config.inner_config"])
def test_a_declaration_of_a_part_of_the_model_is_left_out(part: str, tmp_path: Path) -> None:
    path = copied(SOURCES["gptq"][0], tmp_path / "source")
    config = json.loads((path / "config.json").read_text())
    inner: dict[str, Any] = {"quantization_config": config.pop("quantization_config"), "vocab_size": 32}
    for key in reversed(part.split(".")):
        inner = {key: inner}
    (path / "config.json").write_text(json.dumps({**config, **inner}))
    for to in ("safetensors:max_shard_size=1MB", "hf", "mlx"):
        target = tmp_path / to.partition(":")[0]
        report = squish.convert(path, target, to, "f32")
        assert declared(report.dropped) == {("config.json", f"{part}.quantization_config")}
        assert "quantization_config" not in (target / "config.json").read_text()


def test_a_file_of_the_method_is_left_out(tmp_path: Path) -> None:
    path = copied(SOURCES["gptq"][0], tmp_path / "source")
    config = json.loads((path / "config.json").read_text())
    (tmp_path / "blob").write_text(json.dumps(config.pop("quantization_config")))
    (path / "quantize_config.json").unlink()
    (path / "quantize_config.json").symlink_to(tmp_path / "blob")
    (path / "config.json").write_text(json.dumps(config))
    report = squish.convert(path, tmp_path / "target", "safetensors:max_shard_size=1MB", "f32")
    assert [item.name for item in report.dropped if item.kind == "asset"] == ["quantize_config.json"]
    assert not (tmp_path / "target/quantize_config.json").exists()
    (note,) = report.notes  # none about a link whose content is carried
    assert "the model is incomplete" in note


def test_a_declaration_goes_with_the_tensors_as_they_are_stored(tmp_path: Path) -> None:
    """Of a source whose tensors are raw: opened as safetensors, or of a method that Squish does not read."""
    path, _ = SOURCES["gptq"]
    unread = copied(path, tmp_path / "unread")
    config = json.loads((unread / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "later"}
    (unread / "config.json").write_text(json.dumps(config))
    for source, form, to in (
        (path, "safetensors", "safetensors:max_shard_size=1MB"),
        (path, "safetensors", "ztensor"),
        (unread, None, "safetensors:max_shard_size=1MB"),
        (unread, None, "ztensor"),
        (unread, None, "hf:method=gptq"),
    ):
        target = tmp_path / f"{source.name}-{to.partition(':')[0]}"
        with squish.open(source, form) as file:
            report = squish.convert(file, target, to)
            before = json.loads(bytes(file.assets["config.json"].raw))
        assert declared(report.dropped) == set()
        assert config_of(target)["quantization_config"] == before["quantization_config"]


def test_raw_tensors_whose_declaration_is_not_written_are_reported(tmp_path: Path) -> None:
    with squish.open(SOURCES["gptq"][0], "safetensors") as file:
        report = squish.convert(file, tmp_path / "target", "mlx", rename="keep")
    assert declared(report.dropped) == {("config.json", "quantization_config")}


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64}
IGNORED: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "config": ({"config.json": {"quantization_config": GPTQ}}, "config.json", "gptq", "hf"),
    "formerly": ({"config.json": {"compression_config": GPTQ}}, "config.json", "gptq", "hf"),
    "part": ({"config.json": {"a_config": {"b_config": {"quantization_config": GPTQ}}}}, "config.json", "gptq", "hf"),
    "unknown": ({"config.json": {"quantization_config": {"quant_method": "vptq"}}}, "config.json", "vptq", "hf"),
    "no object": ({"config.json": {"quantization_config": "awq"}}, "config.json", "awq", "hf"),
    "own file": ({"config.json": {}, "hf_quant_config.json": {"quantization": {}}}, "hf_quant_config.json", "", "hf"),
    "mlx": ({"config.json": {"quantization": {"bits": 4, "group_size": 64}}}, "config.json", "mlx", "mlx"),
    "both": ({"config.json": {"quantization": {"bits": 4}, "quantization_config": GPTQ}}, "config.json", "mlx", "mlx"),
}


@pytest.mark.parametrize("case", IGNORED)
@pytest.mark.parametrize("form", ["safetensors", "safetensors:scales=ignore"])
def test_reading_as_safetensors_notes_the_declaration_that_it_ignores(case: str, form: str, tmp_path: Path) -> None:
    files, where, method, reader = IGNORED[case]
    squish.save(tmp_path / "model.safetensors", {"a.weight": np.ones((2, 4), np.int32)})
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    for path in (tmp_path, tmp_path / "model.safetensors"):
        with squish.open(path, form, strict=True) as file:
            (problem,) = file.problems
            assert (problem.code, problem.severity, problem.where) == ("quant-method", "note", where)
            assert repr(method) in problem.message or not method
            assert f"format='{reader}'" in problem.message
            assert squish.verify(file).ok
    with squish.open(tmp_path) as file:
        assert (file.format, "reading as safetensors" in str(file.problems)) == (reader, False)


@pytest.mark.parametrize("form", [None, "safetensors"])
def test_nothing_is_noted_without_a_declaration(form: str | None, tmp_path: Path) -> None:
    squish.save(tmp_path / "model.safetensors", {"a.weight": np.ones((2, 4), np.float32)})
    (tmp_path / "config.json").write_text('{"quantization_config": null, "text_config": {}}')
    with squish.open(tmp_path, form) as file:
        assert file.problems == ()


@pytest.mark.parametrize("source", SOURCES)
def test_a_declared_reading_notes_nothing(source: str) -> None:
    with squish.open(SOURCES[source][0]) as file:
        assert file.format != "safetensors"
        assert "quant-method" not in {problem.code for problem in file.problems}


def test_an_overlaid_config_declares_nothing_about_a_gguf_file(tmp_path: Path) -> None:
    squish.save(tmp_path / "source.gguf", {"w": np.ones((2, 32), np.float32)})
    with squish.open(tmp_path / "source.gguf", assets=SOURCES["gptq"][0]) as file:
        assert "quantization_config" in json.loads(bytes(file.assets["config.json"].raw))
        report = squish.convert(file, tmp_path / "target", "safetensors:max_shard_size=1MB")
    assert declared(report.dropped) == {("config.json", "quantization_config")}
    assert "quantization_config" not in config_of(tmp_path / "target")


def test_the_source_may_be_deleted_though_its_declaration_is_not_carried(tmp_path: Path) -> None:
    path = copied(SOURCES["gptq"][0], tmp_path / "source")
    report = squish.convert(path, tmp_path / "target.zt", encode="f32", delete_source=True)
    assert declared(report.dropped)
    assert [Path(name).suffix for name in report.deleted] == [".safetensors"]
    assert (path / "config.json").exists()


def copied(source: Path, target: Path) -> Path:
    """A copy of a checkpoint."""
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target
