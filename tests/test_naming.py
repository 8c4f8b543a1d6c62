"""Names of Hugging Face and GGUF: one table, both ways."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import toys

import squish_core as squish
from squish_core.conversion.rename import parse_names
from squish_core.errors import FormatError, UsageError

PAIRS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output.weight": "lm_head.weight",
    "output_norm.weight": "model.norm.weight",
    "blk.0.attn_norm.weight": "model.layers.0.input_layernorm.weight",
    "blk.11.attn_q.bias": "model.layers.11.self_attn.q_proj.bias",
    "blk.3.attn_q_norm.weight": "model.layers.3.self_attn.q_norm.weight",
    "blk.3.ffn_norm.weight": "model.layers.3.post_attention_layernorm.weight",
    "blk.3.ffn_down.weight": "model.layers.3.mlp.down_proj.weight",
    "blk.3.ffn_gate_inp.weight": "model.layers.3.mlp.gate.weight",
    "blk.3.ffn_up_exps.weight": "model.layers.3.mlp.experts.up_proj.weight",
}


@pytest.mark.parametrize(("gguf", "hf"), PAIRS.items())
def test_names_go_both_ways_and_others_stay(gguf: str, hf: str) -> None:
    to_hf, to_gguf = parse_names("hf:qwen3"), parse_names("gguf:qwen3")
    assert (to_hf(gguf), to_gguf(hf)) == (hf, gguf)
    assert (to_hf(hf), to_gguf(gguf)) == (hf, gguf)
    assert parse_names(None)(hf) == hf


@pytest.mark.parametrize("text", ["hf", "hf:llama", "hf:gemma3", "mlx:qwen2", ":qwen2", ""])
def test_an_architecture_that_differs_in_more_than_names_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="qwen2 or qwen3"):
        parse_names(text)


def test_a_conversion_writes_under_the_new_names(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    box = toys.box({"blk.0.attn_q.weight": values, "other": values, "blk.0.ffn_up.weight": toys.rows(values)})
    rules = {"blk.0.attn_q.weight": "toy.rows", "other": "f16"}
    made = squish.convert(box, tmp_path / "o.box", "toy.box", rules, rename="hf:qwen2", registry=toys.registry())
    assert [step.name for step in made.steps] == ["blk.0.attn_q.weight", "other", "blk.0.ffn_up.weight"]
    with squish.open(tmp_path / "o.box", registry=toys.registry()) as file:
        assert [(name, file[name].codec) for name in file] == [
            ("model.layers.0.self_attn.q_proj.weight", "toy.rows"), ("other", "dense"),
            ("model.layers.0.mlp.up_proj.weight", "toy.rows"),
        ]  # fmt: skip
        np.testing.assert_array_equal(file["other"].numpy(), values)


def test_two_tensors_never_get_one_name(tmp_path: Path) -> None:
    box = toys.box({"output.weight": np.ones((2, 2), np.float32), "lm_head.weight": np.zeros((2, 2), np.float32)})
    with pytest.raises(FormatError, match="one name"):
        squish.convert(box, tmp_path / "o.box", "toy.box", rename="hf:qwen2", registry=toys.registry())
    assert not list(tmp_path.iterdir())


def stating(architecture: str, place: str) -> bytes:
    """A box that states its architecture as a GGUF file or as a model's config does."""
    tensors = {"blk.0.ffn_up.weight": np.ones((2, 2), np.float32)}
    if place == "meta":
        return toys.box(tensors, meta={"general.architecture": architecture})
    return toys.box(tensors, assets={"config.json": json.dumps({"model_type": architecture}).encode()})


@pytest.mark.parametrize("place", ["meta", "config"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2vl", "qwen3", ""])
def test_names_of_an_architecture_that_the_file_does_not_state_are_refused(
    architecture: str, place: str, tmp_path: Path
) -> None:
    for dry_run in (True, False):
        with pytest.raises(FormatError) as caught:
            squish.convert(
                stating(architecture, place), tmp_path / "o.box", rename="hf:qwen2", dry_run=dry_run,
                registry=toys.registry(),
            )  # fmt: skip
        assert (caught.value.code, caught.value.expected) == ("names", "qwen2")
        assert repr(architecture) in str(caught.value.found)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["meta", "config"])
@pytest.mark.parametrize(("architecture", "names"), [("qwen2", "hf:qwen2"), ("qwen3_moe", "gguf:qwen3moe")])
def test_names_of_the_stated_architecture_are_given(architecture: str, names: str, place: str, tmp_path: Path) -> None:
    done = squish.convert(stating(architecture, place), tmp_path / "o.box", rename=names, registry=toys.registry())
    assert done.size


def test_a_config_that_is_no_json_is_an_error_where_names_depend_on_it(tmp_path: Path) -> None:
    box = toys.box({"w": np.ones((2, 2), np.float32)}, assets={"config.json": b'{"model_type": "qwe'})
    with pytest.raises(FormatError) as caught:
        squish.convert(box, tmp_path / "o.box", rename="hf:qwen2", registry=toys.registry())
    assert (caught.value.code, caught.value.part) == ("json", "config.json")
