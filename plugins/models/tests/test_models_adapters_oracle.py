"""Adapters in llama.cpp and PEFT: a model with one computes what the model with merged weights computes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import oracles
import pytest
from oracles import engines, families

import squish_core as squish

pytestmark = [pytest.mark.oracle, pytest.mark.peers]
RANK, ALPHA = 4, 8
MODULES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj")
OWN_MODULES = {
    "gpt2": ("attn.c_attn", "attn.c_proj", "mlp.c_fc"),
    "deepseek_v3": ("self_attn.o_proj",),
    "falcon-new": ("self_attention.query_key_value", "self_attention.dense", "mlp.dense_h_to_4h"),
    "gpt_neox": ("attention.query_key_value", "attention.dense", "mlp.dense_4h_to_h"),
    "phi": ("self_attn.q_proj", "self_attn.v_proj", "self_attn.dense", "mlp.fc1"),
    "stablelm": ("self_attn.q_proj", "self_attn.v_proj", "mlp.gate_proj"),
    "bloom": ("self_attention.query_key_value", "mlp.dense_h_to_4h"),
    "mpt": ("attn.Wqkv", "attn.out_proj", "ffn.up_proj"),
    "nemotron": ("self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj"),
    "olmo": ("self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj"),
    "gpt_bigcode": ("attn.c_attn", "attn.c_proj", "mlp.c_fc"),
    "gemma4_text": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.up_proj", "per_layer_projection"),
    "llama4_text": (*MODULES[:4], "feed_forward.shared_expert.up_proj"),
}
LAYERS = {
    **dict.fromkeys(("gpt2", "falcon-new", "bloom", "gpt_bigcode"), "transformer.h"), "mpt": "transformer.blocks",
    "gpt_neox": "gpt_neox.layers",
}  # fmt: skip
GELU = {"falcon-new", "gpt_neox", "phi", "bloom", "mpt", "gpt_bigcode", "gemma4_text"}
"""Families whose GELU llama.cpp reads from a table of f16."""
FAMILIES = ("llama", "qwen3", *OWN_MODULES)
_DELTA = (*MODULES, "linear_attn.out_proj", "mlp.shared_expert.up_proj")
MORE_MODULES = {
    "afmoe": (*MODULES[:4], "self_attn.gate_proj"),  # PEFT mistakes gate_proj for that of the experts
    "qwen3_5_text": (*_DELTA, "linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.in_proj_b"),
    "qwen3_next": (*_DELTA, "linear_attn.in_proj_ba"),
    "lfm2_moe": ("self_attn.q_proj", "self_attn.out_proj", "conv.in_proj", "conv.out_proj", "feed_forward.w1"),
    "kimi_linear": ("mlp.up_proj", "block_sparse_moe.shared_experts.up_proj", "block_sparse_moe.gate"),
    "glm4_moe": (*MODULES, "mlp.shared_experts.down_proj"),
    "qwen2_moe": (*MODULES, "mlp.shared_expert.up_proj"),
    **dict.fromkeys(("minimax_m2", "granitemoe", "olmoe", "cohere2", "exaone4", "seed_oss", "ernie4_5"), MODULES),
    **dict.fromkeys(("smollm3", "ministral3", "gemma", "hunyuan_v1_dense"), MODULES),
}
"""Families and modules for llama.cpp alone."""


def make_adapter(family: str, folder: Path) -> Path:
    """A model in `source`, the same with merged weights in `merged`, and the adapter between them in `lora`."""
    source = families.make(family, folder / "source")
    generator, adapter = np.random.default_rng(0), {}
    with squish.open(source) as file:
        weights = {name: file[name].numpy() for name in file}
        assets = {name: bytes(buffer.raw) for name, buffer in file.assets.items()}
    modules = {**OWN_MODULES, **MORE_MODULES}.get(family, MODULES)
    for name in [name for name in weights if name.endswith(tuple(f".{module}.weight" for module in modules))]:
        columns, rows = weights[name].shape[:: 1 if family == "gpt2" else -1]
        first = generator.standard_normal((RANK, columns), np.float32) / columns**0.5
        second = generator.standard_normal((rows, RANK), np.float32) / 2
        added = ALPHA / RANK * second @ first
        weights[name] = weights[name] + (added.T if family == "gpt2" else added)
        module = f"base_model.model.{name.removesuffix('.weight')}"
        adapter |= {f"{module}.lora_A.weight": first, f"{module}.lora_B.weight": second}
    (folder / "lora").mkdir()
    squish.save(folder / "lora" / "adapter_model.safetensors", adapter)
    targets = [module.rpartition(".")[2] for module in modules]
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": targets}
    (folder / "lora" / "adapter_config.json").write_text(json.dumps(config))
    (folder / "merged").mkdir()
    squish.save(folder / "merged" / "model.safetensors", weights)
    for name, data in assets.items():
        (folder / "merged" / name).write_bytes(data)
    return source


@pytest.mark.parametrize("family", [*FAMILIES, *MORE_MODULES])
def test_llama_cpp_adds_what_the_adapter_says(family: str, tmp_path: Path) -> None:
    source = make_adapter(family, tmp_path)
    for name in ("source", "merged"):
        squish.convert(tmp_path / name, tmp_path / f"{name}.gguf")
    squish.convert(tmp_path / "lora", tmp_path / "lora.gguf", assets=source)
    base, merged = (engines.ask("llama.cpp", tmp_path / f"{name}.gguf", tokens=8) for name in ("source", "merged"))
    with_adapter = engines.ask("llama.cpp", tmp_path / "source.gguf", tokens=8, adapter=tmp_path / "lora.gguf")
    assert engines.difference(merged, with_adapter, 2e-3 if family in GELU else 1e-4) == ""
    assert engines.difference(base, with_adapter, 0.01) != ""


@pytest.mark.parametrize("keep", ["yes", "no"])
@pytest.mark.parametrize("family", FAMILIES)
def test_peft_loads_the_folder_of_an_adapter_from_gguf(family: str, keep: str, tmp_path: Path) -> None:
    source = make_adapter(family, tmp_path)
    squish.convert(tmp_path / "lora", tmp_path / "lora.gguf", f"gguf:keep={keep}", assets=source)
    squish.convert(tmp_path / "lora.gguf", tmp_path / "back", "hf", assets=source)
    merged = engines.ask("transformers", tmp_path / "merged", tokens=1)
    arguments = {"base": str(source), "adapter": str(tmp_path / "back"), "ids": merged.ids}
    logprobs = oracles.peer("transformers").run(with_peft, **arguments)
    np.testing.assert_allclose(logprobs, merged.logprobs, atol=1e-4)


def with_peft(base: str, adapter: str, ids: list[list[int]]) -> np.ndarray:
    """Log-probabilities after each row of ids; runs in the peer."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(base, local_files_only=True, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, adapter).eval()
    with torch.no_grad():
        last = [model(torch.tensor([row])).logits[0, -1].log_softmax(-1).numpy() for row in ids]
    return np.stack(last)
