"""Small EAGLE-3 draft heads, seeded or constructed, and a plain reference of what they propose."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tiny_models import with_tokenizer

import squish_core as squish

HIDDEN, VOCABULARY, DRAFT = 64, 264, 100
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": 96,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "num_hidden_layers": 1, "rms_norm_eps": 1e-6,
    "vocab_size": VOCABULARY, "draft_vocab_size": DRAFT, "rope_theta": 5000.0, "rope_scaling": None,
    "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
}  # fmt: skip
NORMS = ("hidden_norm", "input_layernorm", "post_attention_layernorm")


def save_head(folder: Path, tensors: Mapping[str, np.ndarray], **settings: Any) -> Path:
    """A folder of a head, as EAGLE's software writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    squish.save(folder / "model.safetensors", dict(tensors))
    settings = {key: value for key, value in {**CONFIG, **settings}.items() if value != "left out"}
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def random_tensors(seed: int = 0, hidden: int = HIDDEN, width: int = HIDDEN) -> dict[str, np.ndarray]:
    """The tensors of a head with seeded values."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * 0.2).astype(np.float32)

    shapes = {
        "self_attn.q_proj": (128, 2 * hidden), "self_attn.k_proj": (64, 2 * hidden),
        "self_attn.v_proj": (64, 2 * hidden), "self_attn.o_proj": (hidden, 128),
        "mlp.gate_proj": (96, hidden), "mlp.up_proj": (96, hidden), "mlp.down_proj": (hidden, 96),
    }  # fmt: skip
    ids = np.sort(rng.permutation(VOCABULARY)[:DRAFT])
    return {
        "fc.weight": matrix(hidden, 3 * width),
        **{f"midlayer.{name}.weight": matrix(*shape) for name, shape in shapes.items()},
        **{f"midlayer.{name}.weight": rng.uniform(0.5, 1.5, hidden).astype(np.float32) for name in NORMS},
        "norm.weight": rng.uniform(0.5, 1.5, hidden).astype(np.float32),
        "lm_head.weight": matrix(DRAFT, hidden),
        "d2t": ids - np.arange(DRAFT),
        "t2d": np.isin(np.arange(VOCABULARY), ids),
    }


def proposals(
    tensors: Mapping[str, np.ndarray],
    embedding: torch.Tensor,
    states: torch.Tensor,
    ids: torch.Tensor,
    count: int,
    norm_before_residual: bool = False,
) -> list[int]:
    """What a head proposes after hidden states [positions, 3 x columns] and the tokens that follow: without a cache."""
    weight = {name: torch.from_numpy(np.array(values)).float() for name, values in tensors.items()}

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight[f"{name}.weight"]

    def rotated(x: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(len(x))[:, None] * 5000.0 ** (-torch.arange(0, 32, 2) / 32)
        low, high = x[..., :16], x[..., 16:]
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)

    inputs, chain = states @ weight["fc.weight"].T, list[int]()
    for _ in range(count):
        hidden = norm(inputs, "midlayer.hidden_norm")
        both = torch.cat((norm(embedding[ids], "midlayer.input_layernorm"), hidden), dim=-1)
        q, k, v = (
            (both @ weight[f"midlayer.self_attn.{name}_proj.weight"].T).reshape(len(ids), -1, 32) for name in "qkv"
        )
        q, k, v = rotated(q), rotated(k).repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / 32**0.5
        scores = scores.masked_fill(torch.ones(len(ids), len(ids)).triu(1).bool(), -torch.inf).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", scores, v).flatten(1) @ weight["midlayer.self_attn.o_proj.weight"].T
        output = mixed + (hidden if norm_before_residual else inputs)
        x = norm(output, "midlayer.post_attention_layernorm")
        gate, up = (x @ weight[f"midlayer.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        output = output + (torch.nn.functional.silu(gate) * up) @ weight["midlayer.mlp.down_proj.weight"].T
        token = int((norm(output[-1:], "norm") @ weight["lm_head.weight"].T).argmax())
        chain.append(token + int(weight["d2t"][token]))
        inputs, ids = torch.cat((inputs, output[-1:])), torch.tensor([*ids.tolist(), chain[-1]])
    return chain


TOKENS = 16
"""Tokens of `cycling_llama` that follow each other."""


def cycling_llama(folder: Path) -> Path:
    """A checkpoint folder of a Llama in which token t + 1 follows token t, and 0 follows 15, whatever came before.

    Embeddings are rows of the identity, and the layers add nothing.
    """
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        rows = torch.zeros(VOCABULARY, HIDDEN)
        rows[torch.arange(TOKENS), torch.arange(TOKENS)] = 1.0
        model.model.embed_tokens.weight.copy_(rows)
        model.lm_head.weight.copy_(rows[following(torch.arange(VOCABULARY), -1)])
    model.save_pretrained(folder)
    return with_tokenizer(folder)


def following(tokens: torch.Tensor, steps: int) -> torch.Tensor:
    """The tokens that many steps later in the cycle; tokens outside it stay."""
    return torch.where(tokens < TOKENS, (tokens + steps) % TOKENS, tokens)


def agreeing_tensors(reads_tokens: bool) -> dict[str, np.ndarray]:
    """A head of `cycling_llama`: it proposes what follows.

    `reads_tokens`: what follows the last token, which attention copies over the rest: right at each step, with
    `norm_before_residual`. Otherwise it proposes what follows two steps after the token of the hidden state: right
    only at the first step.
    """
    tensors = random_tensors()
    for name in tensors:
        if name.endswith(("_proj.weight", "fc.weight", "lm_head.weight")):
            tensors[name] = np.zeros_like(tensors[name])
        elif "norm" in name:
            tensors[name] = np.ones_like(tensors[name])
    tensors["d2t"], tensors["t2d"] = np.zeros(DRAFT, np.int64), np.arange(VOCABULARY) < DRAFT
    token = np.arange(TOKENS)
    head, steps = tensors["lm_head.weight"], 1 if reads_tokens else 2
    head[(token + steps) % TOKENS, token] = 1.0
    tensors["fc.weight"][token, 2 * HIDDEN + token] = 1.0  # the highest of the three layers
    if reads_tokens:
        queries, keys, values, output = (tensors[f"midlayer.self_attn.{name}_proj.weight"] for name in "qkvo")
        queries[token, token] = keys[token, token] = 30.0
        values[token, token], output[token, token] = 1.0, 10.0
    return tensors
