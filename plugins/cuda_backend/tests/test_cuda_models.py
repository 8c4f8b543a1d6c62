"""Whole models on a device that has forms for their weights: the CPU stands for it, interpreted.

Prompts have as many tokens as run as tiles, which the interpreter does in a fraction of the time of single rows.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import squish_torch
import torch
import transformers
from squish_torch import SquishConfig, device_forms
from squish_torch.evaluation.activations import column_sums
from squish_torch.experts import CompressedExperts
from squish_torch.modules import Compressed
from stored_tensors import DEVICE
from tiny_models import IDS, SIZES, converted, logits, tiny_llama

import squish_core as squish


@pytest.fixture(autouse=True)
def _cpu_is_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(device_forms.BACKENDS, DEVICE.type, "cuda")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "hf")


@pytest.fixture(scope="module")
def path(folder: Path) -> Path:
    return converted(folder, folder.parent / "m.gguf", ["q4_0", "*norm*=keep", "*embed*=q8_0"])


@pytest.fixture(scope="module")
def expected(path: Path) -> torch.Tensor:
    """The logits of the decoded values."""
    return logits(squish_torch.from_pretrained(path).dequantize())


def ids() -> torch.Tensor:
    return IDS.to(DEVICE)


def there(path: Path, **options: Any) -> Any:
    return squish_torch.from_pretrained(path, device=DEVICE, **options)


def compressed(model: Any) -> list[Compressed]:
    return [module for module in model.modules() if isinstance(module, Compressed)]


def test_a_model_has_forms_and_the_logits_of_its_values(path: Path, expected: torch.Tensor) -> None:
    model = there(path)
    modules = compressed(model)
    assert len(modules) == 16
    assert all(module.arrays for module in modules)
    assert (logits(model, ids()).cpu() - expected).abs().max() <= 1e-3
    settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "use_cache": False}
    tokens = model.generate(ids(), max_new_tokens=2, attention_mask=torch.ones_like(ids()), **settings)
    assert int(tokens[0, IDS.shape[1]]) == int(expected[0, -1].argmax())


def test_copies_and_folders_of_a_model_are_its_equals(path: Path, expected: torch.Tensor, tmp_path: Path) -> None:
    model = there(path)
    other = copy.deepcopy(model)
    torch.save(model, tmp_path / "model.pt")
    again = torch.load(tmp_path / "model.pt", weights_only=False)
    model.save_pretrained(tmp_path / "folder")
    from_folder = there(tmp_path / "folder")
    for each in (other, again, from_folder):
        assert all(module.arrays for module in compressed(each))
        assert (logits(each, ids()).cpu() - expected).abs().max() <= 1e-3


def test_a_device_map_loads_forms(folder: Path, tmp_path: Path) -> None:
    encode = ["int4:group_size=32", "*norm*=keep", "*embed*=keep", "lm_head*=keep"]
    squish.convert(folder, tmp_path / "q", to="hf:method=compressed-tensors", encode=encode)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "q",
        config=squish_torch.config_of(tmp_path / "q"),
        dtype=torch.float32,
        quantization_config=SquishConfig(),
        device_map={"": DEVICE},
    )
    assert len(compressed(model)) == 14
    assert all(module.arrays for module in compressed(model))
    exact = logits(squish_torch.from_pretrained(tmp_path / "q").dequantize())
    assert (logits(model, ids()).cpu() - exact).abs().max() <= 1e-3


def test_the_experts_of_a_model_run_as_stacks(tmp_path: Path) -> None:
    sizes = {**SIZES, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "num_hidden_layers": 1}
    config = transformers.Qwen3MoeConfig(**sizes, norm_topk_prob=True, initializer_range=0.2)
    torch.manual_seed(0)
    model = transformers.Qwen3MoeForCausalLM(config)
    model.save_pretrained(tmp_path / "hf")
    encode = ["q4_0", "*norm*=keep", "*embed*=q8_0", "*gate.weight=keep", "*gate_inp*=keep"]
    path = converted(tmp_path / "hf", tmp_path / "m.gguf", encode)
    prompt = IDS.repeat(1, 3)
    exact = logits(squish_torch.from_pretrained(path).dequantize(), prompt)
    model = there(path)
    experts = model.model.layers[0].mlp.experts
    assert isinstance(experts, CompressedExperts)
    assert len(experts._stacks) == 3
    assert (logits(model, prompt.to(DEVICE)).cpu() - exact).abs().max() <= 1e-3
    with column_sums(model) as sums:
        logits(model, prompt.to(DEVICE))
    assert sum(name.endswith("down_proj.weight") for name in sums) > 1
    model.dequantize()
    assert not list(experts.buffers())
