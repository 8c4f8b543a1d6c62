"""Reading a UQFF model: its shards, names and companion files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from squish_testing import expect_error

import squish_core as squish

SHARDS = [f"afq4-3shards-{number}.uqff" for number in range(3)]


@pytest.fixture
def dense_file(uqff: SimpleNamespace) -> Any:
    """A function that builds unquantized blobs by shape."""

    def make(*shapes: tuple[int, int], version: int = 0x000103) -> list[bytes]:
        blobs = (uqff.tensor(6, list(shape), bytes(4 * shape[0] * shape[1])) for shape in shapes)
        return [uqff.head(1, version) + b"\0" + blob for blob in blobs]

    return make


def test_an_index_of_no_shards_is_not_uqff(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    with squish.open(tmp_path) as file:
        assert (file.format, list(file)) == ("safetensors", [])


@pytest.mark.parametrize("member", ["", *SHARDS])
def test_a_sharded_set_opens_by_any_member_or_the_folder(
    member: str, data: Path, expected: Any, uqff: SimpleNamespace
) -> None:
    with squish.open(data / "1.2.0-afq4-3shards" / member) as file:
        assert (file.format, file.index.version, file.index.attrs["uqff.shards"]) == ("uqff", "1.2.0", 3)
        assert set(expected["1.2.0-afq4-3shards"]) <= set(file)
        assert not uqff.codes(file)


def test_a_gap_between_shards_names_the_missing_one(data: Path, tmp_path: Path) -> None:
    for name in (SHARDS[0], SHARDS[2]):
        shutil.copy(data / "1.2.0-afq4-3shards" / name, tmp_path)
    for target in (tmp_path, tmp_path / SHARDS[0], tmp_path / SHARDS[2]):
        with expect_error(squish.FormatError, code="shard-missing", expected="3 shards", found="2 of these"):
            squish.open(target)


def test_the_report_lists_the_shards(data: Path, tmp_path: Path) -> None:
    for name in SHARDS:
        shutil.copy(data / "1.2.0-afq4-3shards" / name, tmp_path)
    listed = [*SHARDS, "afq4-3shards-3.uqff"]
    (tmp_path / "uqff_report.json").write_text(json.dumps({"outputs": [{"shards": listed}]}))
    with expect_error(squish.FormatError, code="shard-missing", expected="4 shards", found="3 of these"):
        squish.open(tmp_path / SHARDS[0])


def test_before_0_1_3_a_number_in_the_name_is_not_a_shard_number(
    uqff: SimpleNamespace, dense_file: Any, tmp_path: Path
) -> None:
    target = tmp_path / "llama-7.uqff"
    target.write_bytes(uqff.legacy(*dense_file((1, 2), version=0x000102)))
    assert list(squish.open(target)) == ["0.weight"]
    target.write_bytes(uqff.legacy(*dense_file((1, 2))))
    with expect_error(squish.FormatError, code="shard-missing", expected="2 shards", found="0 of these"):
        squish.open(target)


def test_a_folder_with_two_models_is_refused(data: Path, tmp_path: Path) -> None:
    for name in ("1.0.0-q4k/q4k-0.uqff", "1.0.0-mxfp4/mxfp4-0.uqff"):
        shutil.copy(data / name, tmp_path)
    with expect_error(
        squish.FormatError, code="folder", expected="one set of shards", found="mxfp4-0.uqff, q4k-0.uqff"
    ):
        squish.open(tmp_path)


def test_residual_and_assets_are_part_of_the_model(data: Path) -> None:
    folder = data / "1.2.0-moe-afq4"
    with squish.open(folder / "afq4-0.uqff") as file:
        assert list(file.assets) == ["config.json"]
        assert file.assets["config.json"].numpy().tobytes() == (folder / "config.json").read_bytes()
        assert file["model.norm.weight"].codec == "dense"
        assert file["model.layers.0.mlp.experts.up_proj.weight"].shape == (4, 64, 128)


def test_a_matching_config_names_the_layers_of_0_x(data: Path, uqff: SimpleNamespace) -> None:
    with squish.open(data / "0.1.3-hqq4") as file:
        names = [name for name in file if "self_attn" in name]
        assert names == [f"model.layers.0.self_attn.{each}_proj.{part}" for each in "kv" for part in ("weight", "bias")]
        assert file[names[0]].spec.attrs["uqff.index"] == 2
        assert uqff.codes(file) == ["absent"]


def test_without_a_config_0_x_layers_have_numbers_and_a_hint(data: Path, tmp_path: Path, uqff: SimpleNamespace) -> None:
    shutil.copy(data / "0.1.3-hqq4" / "hqq4-0.uqff", tmp_path)
    with squish.open(tmp_path) as file:
        assert list(file) == ["2.weight", "2.bias", "3.weight", "3.bias"]
        assert uqff.codes(file) == ["names"]
        assert "config.json" in next(problem.message for problem in file.problems if problem.code == "names")


def test_a_config_that_does_not_match_names_no_layers(data: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(data / "0.1.3-hqq4", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_key_value_heads": 4}))
    with squish.open(folder) as file:
        assert "2.weight" in file
        assert "layer 2 should be model.layers.0.self_attn.k_proj" in next(
            problem.message for problem in file.problems if problem.code == "names"
        )


CONFIG = {
    "hidden_size": 4, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 3, "intermediate_size": 8,
    "vocab_size": 10, "num_hidden_layers": 1,
}  # fmt: skip
ATTENTION = [(6, 4), (3, 4), (3, 4), (4, 6)]
DENSE = [(10, 4), *ATTENTION, (8, 4), (8, 4), (4, 8)]


@pytest.mark.parametrize("model", ["llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3_text"])
def test_the_layer_order_of_dense_models(model: str, uqff: SimpleNamespace, dense_file: Any, tmp_path: Path) -> None:
    (tmp_path / "q-0.uqff").write_bytes(uqff.legacy(*dense_file(*DENSE)))
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "model_type": model}))
    with squish.open(tmp_path) as file:
        order = ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down")
        assert list(file) == ["lm_head.weight", *(f"model.layers.0.{name}_proj.weight" for name in order)]
        assert not uqff.codes(file)


@pytest.mark.parametrize("model", [["llama"], {"llama": 1}, None, 3])
def test_an_invalid_model_type_names_no_layers(
    model: Any, uqff: SimpleNamespace, dense_file: Any, tmp_path: Path
) -> None:
    (tmp_path / "q-0.uqff").write_bytes(uqff.legacy(*dense_file(*DENSE)))
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "model_type": model}))
    with squish.open(tmp_path) as file:
        assert uqff.codes(file) == ["names"]


def test_the_layer_order_of_qwen3_moe_is_by_expert(uqff: SimpleNamespace, dense_file: Any, tmp_path: Path) -> None:
    experts = [(2, 4), (2, 4), (4, 2)] * 2
    (tmp_path / "q-0.uqff").write_bytes(uqff.legacy(*dense_file((10, 4), *ATTENTION, *experts)))
    config = {**CONFIG, "model_type": "qwen3_moe", "num_experts": 2, "moe_intermediate_size": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with squish.open(tmp_path) as file:
        tails = [name.removeprefix("model.layers.0.mlp.experts.") for name in list(file)[5:]]
        assert tails == [f"{expert}.{name}_proj.weight" for expert in "01" for name in ("gate", "up", "down")]


def test_blobs_in_memory_are_recognized_by_their_version(uqff: SimpleNamespace, dense_file: Any) -> None:
    assert squish.open(uqff.legacy(*dense_file((1, 2)))).format == "uqff"
    other = uqff.safetensors({"0": ("U8", [4], b"abcd"), "1": ("U8", [4], b"abcd")})
    assert squish.open(other).format == "safetensors"


def test_one_file_may_mix_types(uqff: SimpleNamespace, dense_file: Any) -> None:
    eight = np.zeros(16, np.float32).tobytes()
    gguf = uqff.head(0) + np.array([64], "<u4").tobytes() + b"\0" + np.array([0, 2, 2, 8], "<u4").tobytes() + eight
    with squish.open(uqff.legacy(*dense_file((1, 2)), gguf)) as file:
        assert [file[name].spec.attrs["uqff.type"] for name in file] == ["unquant", "gguf"]


def test_equal_versions_may_repeat(uqff: SimpleNamespace, tmp_path: Path) -> None:
    def version(minor: int) -> dict[str, Any]:
        numbers = {"major": 1, "minor": minor, "patch": 0}
        return {f"uqff.version.{key}": ("U32", [], number.to_bytes(4, "little")) for key, number in numbers.items()}

    def layer(key: str) -> dict[str, Any]:
        return {f"{key}.weight": ("F32", [1], bytes(4)), f"{key}.weight.format": ("U8", [], b"\1")}

    (tmp_path / "q-0.uqff").write_bytes(uqff.safetensors({**layer("a"), **version(2)}))
    (tmp_path / "q-1.uqff").write_bytes(uqff.safetensors({**layer("b"), **version(2)}))
    assert list(squish.open(tmp_path)) == ["a.weight", "b.weight"]
    (tmp_path / "q-1.uqff").write_bytes(uqff.safetensors({**layer("b"), **version(1)}))
    with expect_error(squish.FormatError, code="version", tensor="uqff.version.minor"):
        squish.open(tmp_path)
    (tmp_path / "q-1.uqff").write_bytes(uqff.safetensors(layer("a")))
    with expect_error(squish.FormatError, code="duplicate", tensor="a.weight", expected="q-0.uqff", found="q-1.uqff"):
        squish.open(tmp_path)


def test_info_shows_types_sizes_bits_versions_and_fallbacks(data: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(data / "1.2.0-moe-afq4", tmp_path / "model")
    layers = [{"resolved_target": "q4k", "stored": "q4_1"}, {"resolved_target": "q6k", "stored": "q5_1"}] * 2
    layers += [{"resolved_target": "afq4", "stored": "afq4"}, {"stored": 3}, "?"]
    report = {"outputs": [{"shards": ["afq4-0.uqff"], "fallback_count": 0, "layer_details": layers}]}
    (folder / "uqff_report.json").write_text(json.dumps(report))
    with squish.open(folder) as file:
        summary = file.summary()
        assert summary.version == "1.2.0"
        kinds = {kind.stored_as: (kind.tensors, kind.bits) for kind in summary.codecs}
        # two floats for 64 codes
        assert (kinds["affine:bits=4"], kinds["affine:bits=6"]) == ((7, 5.0), (2, 7.0))
        assert "reports layers with a fallback type: 2 q4k -> q4_1, 2 q6k -> q5_1" in "".join(summary.lines())
