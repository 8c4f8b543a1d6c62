"""Tiny models of families of 2022 to 2024; those that Transformers does not have are another family's, respelled."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from attrs import field, frozen

import squish_core as squish

BOS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
END = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
SIZE = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 512, "vocab_size": 640,
}  # fmt: skip
"""Sizes of models without groups of heads."""
GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512, "vocab_size": 640}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


@frozen
class Respelling:
    """A model of another family under other names.

    `modules` are pairs of a regex of a module and what replaces it, `fused` names, for a module within a layer, its
    parts with their rows in a group, `config` renames settings, and `more` are settings of its own.
    """

    modules: Sequence[tuple[str, str]] = ()
    fused: Mapping[str, Sequence[tuple[str, int]]] = field(factory=dict)
    config: Mapping[str, str] = field(factory=dict)
    more: Mapping[str, Any] = field(factory=dict)

    def apply(self, folder: Path) -> None:
        """Rewrite a folder; the model that Transformers runs stays beside it."""
        folder.rename(reference(folder))
        folder.mkdir()
        for path in reference(folder).iterdir():
            if path.suffix != ".safetensors":
                (folder / path.name).write_bytes(path.read_bytes())
        with squish.open(reference(folder) / "model.safetensors") as file:
            arrays = {name: file[name].numpy() for name in file}
        for module, replacement in self.modules:
            arrays = {re.sub(module, replacement, name): values for name, values in arrays.items()}
        for module, parts in self.fused.items():
            layers = {name.partition(parts[0][0])[0] for name in arrays if f".{parts[0][0]}." in name}
            for layer, suffix in product(layers, (".weight", ".bias")):
                if f"{layer}{parts[0][0]}{suffix}" not in arrays:
                    continue
                pieces = [arrays.pop(f"{layer}{part}{suffix}") for part, _ in parts]
                rest = pieces[0].shape[1:]
                groups = [each.reshape(-1, rows, *rest) for each, (_, rows) in zip(pieces, parts)]
                arrays[f"{layer}{module}{suffix}"] = np.concatenate(groups, 1).reshape(-1, *rest)
        squish.save(folder / "model.safetensors", arrays, metadata={"format": "pt"})
        config = json.loads((folder / "config.json").read_text())
        spelled = {self.config.get(name, name): value for name, value in config.items()}
        (folder / "config.json").write_text(json.dumps({**spelled, **self.more}, indent=2))


def reference(folder: Path) -> Path:
    """Where the model lies that Transformers runs, if it does not have the one in the folder."""
    return folder.with_name(f"{folder.name}-reference")


INTERNLM2 = Respelling(
    (
        ("model.embed_tokens", "model.tok_embeddings"),
        ("lm_head", "output"),
        ("input_layernorm", "attention_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "feed_forward.w1"),
        ("mlp.up_proj", "feed_forward.w3"),
        ("mlp.down_proj", "feed_forward.w2"),
        ("self_attn.o_proj", "self_attn.wo"),
        ("self_attn", "attention"),
    ),
    {"attention.wqkv": [("attention.q_proj", 32), ("attention.k_proj", 16), ("attention.v_proj", 16)]},
    more={"model_type": "internlm2", "architectures": ["InternLM2ForCausalLM"], "bias": False},
)
EXAONE = Respelling(
    (
        ("model.embed_tokens", "transformer.wte"),
        ("model.norm", "transformer.ln_f"),
        ("model.layers", "transformer.h"),
        ("input_layernorm", "ln_1"),
        ("post_attention_layernorm", "ln_2"),
        ("self_attn.o_proj", "self_attn.out_proj"),
        ("self_attn", "attn.attention"),
        ("mlp.gate_proj", "mlp.c_fc_0"),
        ("mlp.up_proj", "mlp.c_fc_1"),
        ("mlp.down_proj", "mlp.c_proj"),
    ),
    config={
        "num_hidden_layers": "num_layers",
        "rms_norm_eps": "layer_norm_epsilon",
        "hidden_act": "activation_function",
    },
    more={"model_type": "exaone", "architectures": ["ExaoneForCausalLM"]},
)
PHI4MM = Respelling(
    ((r"(self_attn|mlp)\.(\w+)\.weight", r"\1.\2.base_layer.weight"),),
    more={
        "model_type": "phi4mm",
        "architectures": ["Phi4MMForCausalLM"],
        "img_processor": None,
        "audio_processor": {"name": "cascades"},
        "vision_lora": {"r": 4},
        "speech_lora": {"r": 4},
    },
)
MINICPM = Respelling(
    more={
        "model_type": "minicpm",
        "architectures": ["MiniCPMForCausalLM"],
        "scale_emb": 12,
        "scale_depth": 0.44,
        "dim_model_base": 8,
    },
)
"""A Granite with the same scales."""
ORION = Respelling(
    config={"layer_norm_eps": "rms_norm_eps"},
    more={"model_type": "orion", "architectures": ["OrionForCausalLM"]},
)
CODESHELL = Respelling(
    (
        ("model.embed_tokens", "transformer.wte"),
        ("model.norm", "transformer.ln_f"),
        ("model.layers", "transformer.h"),
        ("input_layernorm", "ln_1"),
        ("post_attention_layernorm", "ln_2"),
        ("self_attn.o_proj", "attn.c_proj"),
        ("self_attn", "attn"),
    ),
    {"attn.c_attn": [("attn.q_proj", 64), ("attn.k_proj", 32), ("attn.v_proj", 32)]},
    {
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "num_key_value_heads": "num_query_groups",
        "intermediate_size": "n_inner",
        "norm_epsilon": "layer_norm_epsilon",
        "max_position_embeddings": "n_positions",
        "hidden_act": "activation_function",
    },
    {"model_type": "codeshell", "architectures": ["CodeShellForCausalLM"], "position_embedding_type": "rope"},
)
"""A StarCoder 2 with one matrix for queries, keys and values."""

FAMILIES: dict[str, dict[str, Any]] = {
    "falcon": {
        "size": SIZE, "config": {"num_kv_heads": 4, "pad_token_id": 0}, "tokenizer": "starcoder", "special": END,
    },
    "falcon-new": {
        "model_type": "falcon", "size": SIZE, "tokenizer": "starcoder", "special": END,
        "config": {"num_kv_heads": 2, "new_decoder_architecture": True, "tie_word_embeddings": False},
    },
    "falcon-one-norm": {
        "model_type": "falcon", "size": SIZE, "tokenizer": "starcoder", "special": END,
        "config": {"num_kv_heads": 2, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
    },
    "gpt_neox": {
        "size": {**SIZE, "intermediate_size": 256}, "config": {"use_parallel_residual": True}, "tokenizer": "gpt-2",
        "special": END,
    },
    "gpt_neox-sequential": {
        "model_type": "gpt_neox", "size": {**SIZE, "intermediate_size": 256}, "tokenizer": "gpt-2", "special": END,
        "config": {"use_parallel_residual": False, "rope_parameters": {
            "rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 1.0,
        }},
    },
    "phi": {"size": {**SIZE, "intermediate_size": 256}, "config": {"bos_token_id": None}, "tokenizer": "gpt-2",
            "special": END},
    "phi-groups": {"model_type": "phi", "config": {"bos_token_id": None}, "tokenizer": "gpt-2", "special": END},
    "stablelm": {"config": {"use_qkv_bias": True}, "tokenizer": "gpt-2", "special": END},
    "stablelm-parallel": {
        "model_type": "stablelm", "config": {"use_parallel_residual": True}, "tokenizer": "gpt-2", "special": END,
    },
    "internlm2": {
        "model_type": "llama", "config": {"tie_word_embeddings": False}, "tokenizer": "sentencepiece", "special": BOS,
        "lacking": ("transformers",), "respelling": INTERNLM2,
    },
    "internlm3": {"config": {"head_dim": 16}, "tokenizer": "sentencepiece", "special": BOS},
    "bloom": {
        "size": {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 640},
        "config": {"seq_length": 512}, "tokenizer": "gpt-2", "special": END,
    },
    "mpt": {
        "size": {"d_model": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 640, "max_seq_len": 512},
        "config": {"attn_config": {"clip_qkv": 2.0}}, "tokenizer": "gpt-2", "special": END,
    },
    "nemotron": {"config": {"head_dim": 16}, "tokenizer": "sentencepiece", "special": BOS},
    "olmo": {"config": {"clip_qkv": 1.0}, "tokenizer": "dbrx", "special": END},
    "gpt_bigcode": {"size": GPT, "config": {"bos_token_id": None}, "tokenizer": "starcoder", "special": END},
    "exaone": {
        "model_type": "llama", "config": {"rope_parameters": LLAMA3, "tie_word_embeddings": False},
        "tokenizer": "gpt-2", "special": END, "lacking": ("transformers",), "respelling": EXAONE,
    },
    "phi4mm": {
        "model_type": "phi3", "tokenizer": "gpt-4o", "special": END, "respelling": PHI4MM,
        "not_run": (("hf",),),
        "config": {
            "sliding_window": None, "original_max_position_embeddings": 512, "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75},
        },
    },
    "minicpm": {
        "model_type": "granite", "tokenizer": "sentencepiece", "special": BOS, "lacking": ("transformers",),
        "respelling": MINICPM,
        "config": {
            "num_hidden_layers": 4, "embedding_multiplier": 12.0, "attention_multiplier": 0.25,
            "residual_multiplier": 0.22, "logits_scaling": 8.0, "tie_word_embeddings": True,
        },
    },
    "orion": {
        "model_type": "stablelm", "tokenizer": "sentencepiece", "special": BOS, "lacking": ("transformers",),
        "respelling": ORION,
        "config": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}},
    },
    "codeshell": {
        "model_type": "starcoder2", "tokenizer": "starcoder", "special": END, "lacking": ("transformers",),
        "respelling": CODESHELL,
        "config": {"sliding_window": None, "bos_token_id": None, "tie_word_embeddings": False},
    },
    "xverse": {
        "model_type": "llama", "config": {"tie_word_embeddings": False}, "tokenizer": "sentencepiece", "special": BOS,
        "lacking": ("transformers",),
        "respelling": Respelling(more={"model_type": "xverse", "architectures": ["XverseForCausalLM"]}),
    },
}  # fmt: skip
"""As in `families`; `respelling` makes the model of another family one of this, `lacking` are engines
that lack it, and `not_run` formats in which none has it."""
GELU = (
    "falcon", "falcon-new", "falcon-one-norm", "gpt_neox", "gpt_neox-sequential", "phi", "phi-groups", "bloom", "mpt",
    "gpt_bigcode", "codeshell",
)  # fmt: skip
"""Those whose GELU llama.cpp reads from a table of f16."""
