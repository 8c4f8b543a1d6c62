"""`cp --layers` and `--experts`: codes stay, and names and settings are those of a model with these layers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from every_family import FAMILIES, arrays_of, config_of, mapped
from squish_cli import main
from squish_convert.api import with_experts, with_layers
from squish_convert.arrays import in_memory
from squish_convert.mapping.mapped import map_file, naming_of
from squish_models.api import small_config, small_tokenizer
from squish_testing import expect_error, model_arrays

import squish_core as squish
from squish_core.file import File
from squish_core.formats.metadata import untyped

PICKED = {"llama", "qwen3", "gpt2", "gpt_neox", "falcon", "mixtral", "deepseek2", "bert", "mamba", "phi3", "qwen3moe"}
MIXTURE = "qwen3moe"


def as_folder(arrays: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> File:
    """A model under Hugging Face's names, in memory."""
    return in_memory(arrays, assets={"config.json": json.dumps(config).encode()})


def plain(value: Any) -> Any:
    stored = untyped(value)
    return list(stored) if hasattr(stored, "tolist") else stored


@pytest.mark.parametrize("layers", ["0", "1,0", "0-1,0-1"])
@pytest.mark.parametrize("family", [family for family in FAMILIES if family in PICKED])
def test_picking_and_converting_may_change_places(family: str, layers: str) -> None:
    config, arrays = config_of(family), arrays_of(family)
    whole = mapped(arrays, config)
    stored = in_memory({name: whole[name].numpy() for name in whole}, whole.meta)
    try:
        picked = with_layers(as_folder(arrays, config), layers)
    except squish.SquishError as error:
        with expect_error(squish.SquishError, code=error.code):  # the kinds of layers allow no other order
            with_layers(stored, layers)
        return
    converted, of_gguf = map_file(picked, "gguf", {}, naming_of(picked)), with_layers(stored, layers)
    assert set(converted) == set(of_gguf)
    for name in converted:
        np.testing.assert_array_equal(converted[name].numpy(), of_gguf[name].numpy(), err_msg=name)
    own = {
        key: plain(value)
        for key, value in of_gguf.meta.items()
        if key.startswith(f"{whole.meta['general.architecture']}.")
    }
    assert own == {key: plain(converted.meta[key]) for key in own}


def test_layers_are_renumbered_and_keep_their_codes(tmp_path: Path) -> None:
    config = {**small_config("llama"), "num_hidden_layers": 4}
    with as_folder(model_arrays("llama", config), config) as file:
        squish.convert(file, tmp_path / "m.gguf", encode="q8_0", rename="gguf")
    assert main(["cp", str(tmp_path / "m.gguf"), str(tmp_path / "out.gguf"), "--layers", "3,0-1,3", "--quiet"]) == 0
    with squish.open(tmp_path / "m.gguf") as before, squish.open(tmp_path / "out.gguf") as after:
        assert after.meta["llama.block_count"] == 4
        for at, number in enumerate((3, 0, 1, 3)):
            for name in (name for name in before if name.startswith(f"blk.{number}.")):
                parts = [
                    bytes(tensor.parts()["data"].raw)
                    for tensor in (before[name], after[name.replace(f".{number}.", f".{at}.", 1)])
                ]
                assert parts[0] == parts[1]
        assert [name for name in after if not name.startswith("blk.")] == [
            name for name in before if not name.startswith("blk.")
        ]
    assert [*squish.verify(tmp_path / "out.gguf", deep=True).problems] == []


def test_lists_of_layers_follow(tmp_path: Path) -> None:
    config = {**small_config("qwen3"), "num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": 8}
    kinds = ["full_attention", "full_attention", "sliding_attention", "sliding_attention"]
    folder = tmp_path / "model"
    folder.mkdir()
    squish.save(folder / "model.safetensors", model_arrays("qwen3", small_config("qwen3") | {"num_hidden_layers": 4}))
    files = {
        **small_tokenizer(config["vocab_size"]),
        "config.json": json.dumps({**config, "layer_types": kinds}).encode(),
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    with squish.open(folder) as file:
        picked = with_layers(file, [3, 0])
        written = json.loads(bytes(picked.assets["config.json"].raw))
        assert (written["num_hidden_layers"], written["layer_types"]) == (2, ["sliding_attention", "full_attention"])
        assert written["vocab_size"] == config["vocab_size"]


@pytest.mark.parametrize("layers", ["2", "0-2", "1-0", "x", "", "0,,1", [-1], []])
def test_other_numbers_are_refused(layers: Any) -> None:
    config = small_config("llama")
    with as_folder(model_arrays("llama", config), config) as file, expect_error(squish.UsageError, code="usage"):
        with_layers(file, layers)


def test_layers_whose_kind_follows_from_their_number_keep_it() -> None:
    config = config_of("gemma2")
    with as_folder(arrays_of("gemma2"), config) as file:
        assert len(with_layers(file, "0")) < len(file)
        with expect_error(squish.FormatError, part="config.json", code="config"):
            with_layers(file, "1,0")


def test_a_file_without_layers_is_refused() -> None:
    with in_memory({"w": np.ones(3, np.float32)}) as file, expect_error(squish.FormatError, code="unmapped"):
        with_layers(file, "0")


def test_experts_are_stacked_and_separated_again(tmp_path: Path) -> None:
    config, arrays = config_of(MIXTURE), arrays_of(MIXTURE)
    folder = tmp_path / "model"
    folder.mkdir()
    squish.save(folder / "model.safetensors", dict(arrays))
    (folder / "config.json").write_text(json.dumps(config))
    for form, source, target in (("stack", "model", "stacked"), ("unstack", "stacked", "back")):
        line = ["cp", str(tmp_path / source), str(tmp_path / target), "--to", "hf", "--experts", form, "--quiet"]
        assert main(line) == 0
    with squish.open(tmp_path / "stacked") as stacked, squish.open(tmp_path / "back") as back:
        whole = stacked["model.layers.0.mlp.experts.gate_up_proj"].numpy()
        experts = [
            np.concatenate(
                [arrays[f"model.layers.0.mlp.experts.{expert}.{name}.weight"] for name in ("gate_proj", "up_proj")]
            )
            for expert in range(config["num_experts"])
        ]
        np.testing.assert_array_equal(whole, np.stack(experts))
        assert set(back) == set(arrays)
        for name, values in arrays.items():
            np.testing.assert_array_equal(back[name].numpy(), values)
    assert json.loads((tmp_path / "back" / "config.json").read_text()) == config


@pytest.mark.parametrize(("family", "form", "code"), [("llama", "stack", "unmapped"), (MIXTURE, "unstack", "unmapped")])
def test_experts_in_this_form_already_are_refused(family: str, form: str, code: str) -> None:
    with as_folder(arrays_of(family), config_of(family)) as file, expect_error(squish.FormatError, code=code):
        with_experts(file, form)


def test_forms_that_one_engine_alone_reads_stay() -> None:
    config, arrays = config_of(MIXTURE), arrays_of(MIXTURE)
    for layout in ("gguf", "mlx"):
        whole = mapped(arrays, config, layout)
        assets = {name: bytes(buffer.raw) for name, buffer in whole.assets.items()}
        stored = in_memory({name: whole[name].numpy() for name in whole}, whole.meta, assets=assets)
        with expect_error(squish.FormatError, code="engine"):
            with_experts(stored, "unstack")
    with as_folder(arrays, config) as file, expect_error(squish.UsageError, code="usage"):
        with_experts(file, "join")
