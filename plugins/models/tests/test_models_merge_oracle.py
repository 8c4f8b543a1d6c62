"""Merged models in PEFT, transformers and llama.cpp: they compute what base and adapter compute together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import oracles
import pytest
from oracles import engines
from squish_convert.api import merge
from test_models_adapters_oracle import FAMILIES, make_adapter

import squish_core as squish

pytestmark = [pytest.mark.oracle, pytest.mark.peers]


@pytest.mark.parametrize("family", FAMILIES)
def test_llama_cpp_computes_the_same_with_an_adapter_and_with_a_merged_model(family: str, tmp_path: Path) -> None:
    source = make_adapter(family, tmp_path)
    squish.convert(source, tmp_path / "base.gguf")
    squish.convert(tmp_path / "lora", tmp_path / "lora.gguf", assets=source)
    merge(tmp_path / "base.gguf", tmp_path / "lora", tmp_path / "merged.gguf")
    expected = engines.ask("llama.cpp", tmp_path / "base.gguf", tokens=8, adapter=tmp_path / "lora.gguf")
    found = engines.ask("llama.cpp", tmp_path / "merged.gguf", tokens=8)
    assert engines.difference(expected, found, 2e-3) == ""


@pytest.mark.parametrize(
    ("settings", "modules"),
    [
        ({"r": 4, "lora_alpha": 8}, ["q_proj", "k_proj", "v_proj", "o_proj", "down_proj"]),
        ({"r": 4, "lora_alpha": 8, "use_rslora": True, "rank_pattern": {"down_proj": 2}}, ["up_proj", "down_proj"]),
        ({"r": 2, "lora_alpha": 3, "alpha_pattern": {"layers.1.mlp.up_proj": 7, "^model.*v_proj": 1}},
         ["up_proj", "v_proj"]),
        ({"r": 3, "lora_alpha": 5}, ["embed_tokens", "lm_head"]),
    ],
)  # fmt: skip
def test_the_weights_are_those_that_peft_merges(
    settings: dict[str, object], modules: list[str], tmp_path: Path
) -> None:
    source = make_adapter("llama", tmp_path)
    arguments = {"base": str(source), "folder": str(tmp_path), "settings": {**settings, "target_modules": modules}}
    oracles.peer("transformers").run(by_peft, **arguments)
    merge(source, tmp_path / "adapter", tmp_path / "ours", "hf")
    with squish.open(tmp_path / "ours") as ours, squish.open(tmp_path / "theirs") as theirs:
        assert set(ours) == set(theirs)
        for name in theirs:
            np.testing.assert_allclose(ours[name].numpy(), theirs[name].numpy(), atol=1e-6, err_msg=name)


def test_a_model_with_a_tied_head_computes_what_peft_computes(tmp_path: Path) -> None:
    source = make_adapter("qwen3", tmp_path)  # its head is tied
    settings = {"r": 3, "lora_alpha": 5, "target_modules": ["embed_tokens", "q_proj"]}
    logprobs = oracles.peer("transformers").run(
        by_peft, base=str(source), folder=str(tmp_path), settings=settings, ids=[[3, 5, 7, 11], [2, 9]]
    )
    merge(source, tmp_path / "adapter", tmp_path / "ours", "hf")
    found = engines.ask("transformers", tmp_path / "ours", [[3, 5, 7, 11], [2, 9]], tokens=1)
    np.testing.assert_allclose(found.logprobs, logprobs, atol=1e-4)


def by_peft(
    base: str, folder: str, settings: dict[str, object], ids: list[list[int]] | None = None
) -> np.ndarray | None:
    """Make an adapter with PEFT in `adapter`, and what it merges in `theirs`; runs in the peer.

    Returns the log-probabilities after each row of ids before merging.
    """
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(base, local_files_only=True, dtype=torch.float32)
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings)).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape) / 4)
        last = [model(torch.tensor([row])).logits[0, -1].log_softmax(-1).numpy() for row in ids or []]
    model.save_pretrained(f"{folder}/adapter", save_embedding_layers=False)
    if ids:
        return np.stack(last)
    model.merge_and_unload().save_pretrained(f"{folder}/theirs")
    return None


def test_llama_cpp_adds_an_adapter_of_the_embeddings_as_merging_does(tmp_path: Path) -> None:
    squish.convert(make_adapter("llama", tmp_path), tmp_path / "base.gguf")
    with squish.open(tmp_path / "base.gguf") as base:
        rows, columns = base["token_embd.weight"].shape
    generator = np.random.default_rng(0)
    halves = {"lora_a": (rows, 3), "lora_b": (columns, 3)}  # as llama.cpp's converter writes them for this tensor
    arrays = {f"token_embd.weight.{half}": generator.standard_normal(size, np.float32) for half, size in halves.items()}
    keys = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}
    squish.save(tmp_path / "lora.gguf", arrays, metadata={**keys, "adapter.lora.alpha": 6.0})
    merge(tmp_path / "base.gguf", tmp_path / "lora.gguf", tmp_path / "merged.gguf")
    expected = engines.ask("llama.cpp", tmp_path / "base.gguf", tokens=8, adapter=tmp_path / "lora.gguf")
    found = engines.ask("llama.cpp", tmp_path / "merged.gguf", tokens=8)
    assert engines.difference(expected, found, 1e-4) == ""
    assert engines.difference(engines.ask("llama.cpp", tmp_path / "base.gguf", tokens=8), found, 0.01) != ""
