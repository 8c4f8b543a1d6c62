"""Vectors of encoders that Transformers does not have, computed step by step as their published code does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from . import peer


def vectors(run: Any, folder: Path, texts: list[str]) -> tuple[list[list[int]], np.ndarray]:
    """Token ids and mean vectors of unit length for texts; `run` is one of the functions of this module."""
    answer = peer("torch").run(run, folder=str(folder), texts=texts)
    lengths = np.linalg.norm(answer["vectors"], axis=1, keepdims=True)
    return answer["ids"], answer["vectors"] / lengths


def jina(folder: str, texts: list[str]) -> dict[str, Any]:
    """Jina Embeddings 2, with GELU from a table in f16 as in llama.cpp; runs in the peer."""
    import json
    from pathlib import Path

    import torch
    from safetensors.torch import load_file
    from torch.nn.functional import layer_norm, linear
    from transformers import AutoTokenizer

    config = json.loads(Path(folder, "config.json").read_text())
    weights = {
        name: each.float() for file in Path(folder).glob("*.safetensors") for name, each in load_file(file).items()
    }
    width, heads = config["hidden_size"], config["num_attention_heads"]
    size, inner = width // heads, config["intermediate_size"]
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)

    def norm(name: str, values: Any) -> Any:
        return layer_norm(
            values, (width,), weights[f"{name}.weight"], weights[f"{name}.bias"], config["layer_norm_eps"]
        )

    def dense(name: str, values: Any) -> Any:
        return linear(values, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def gelu(values: Any) -> Any:
        return torch.nn.functional.gelu(values.half().float(), approximate="tanh").half().float()

    def attention(layer: str, values: Any) -> Any:
        names = [f"{layer}.attention.self.{name}" for name in ("query", "key", "value")]
        query, key, value = (dense(name, values).reshape(-1, heads, size).transpose(0, 1) for name in names)
        places = torch.arange(len(values))
        slopes = 2 ** (-8 * torch.arange(1, heads + 1) / heads)  # for a power of two of heads
        bias = -slopes[:, None, None] * (places[:, None] - places).abs()
        mixed = torch.softmax(query @ key.transpose(1, 2) / size**0.5 + bias, -1) @ value
        return dense(f"{layer}.attention.output.dense", mixed.transpose(0, 1).reshape(len(values), width))

    def encode(ids: list[int]) -> Any:
        types = weights["embeddings.token_type_embeddings.weight"][0]
        states = norm("embeddings.LayerNorm", weights["embeddings.word_embeddings.weight"][ids] + types)
        for number in range(config["num_hidden_layers"]):
            layer = f"encoder.layer.{number}"
            states = norm(f"{layer}.attention.output.LayerNorm", attention(layer, states) + states)
            both = dense(f"{layer}.mlp.gated_layers", states)
            mixed = dense(f"{layer}.mlp.wo", gelu(both[:, :inner]) * both[:, inner:])
            states = norm(f"{layer}.mlp.layernorm", mixed + states)
        return states.mean(0).numpy()

    ids = [tokenizer(text)["input_ids"] for text in texts]
    with torch.inference_mode():
        return {"ids": ids, "vectors": np.stack([encode(each) for each in ids])}


def nomic_moe(folder: str, texts: list[str]) -> dict[str, Any]:
    """Nomic Embed 2, with GELU from a table in f16 as in llama.cpp; runs in the peer."""
    import json
    from pathlib import Path

    import torch
    from safetensors.torch import load_file
    from torch.nn.functional import layer_norm, linear
    from transformers import AutoTokenizer

    config = json.loads(Path(folder, "config.json").read_text())
    weights = {
        name: each.float() for file in Path(folder).glob("*.safetensors") for name, each in load_file(file).items()
    }
    width, heads, size = config["n_embd"], config["n_head"], config["n_embd"] // config["n_head"]
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)

    def norm(name: str, values: Any) -> Any:
        return layer_norm(
            values, (width,), weights[f"{name}.weight"], weights[f"{name}.bias"], config["layer_norm_epsilon"]
        )

    def dense(name: str, values: Any) -> Any:
        return linear(values, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def gelu(values: Any) -> Any:
        return torch.nn.functional.gelu(values.half().float(), approximate="tanh").half().float()

    def rotated(values: Any) -> Any:
        angles = torch.arange(values.shape[1])[:, None] / config["rotary_emb_base"] ** (torch.arange(0, size, 2) / size)
        cos, sin = (torch.cat([each, each], -1) for each in (angles.cos(), angles.sin()))
        one, other = values.chunk(2, -1)
        return values * cos + torch.cat([-other, one], -1) * sin

    def attention(layer: str, values: Any) -> Any:
        parts = dense(f"{layer}.attn.Wqkv", values).reshape(len(values), 3, heads, size).permute(1, 2, 0, 3)
        query, key, value = rotated(parts[0]), rotated(parts[1]), parts[2]
        mixed = torch.softmax(query @ key.transpose(1, 2) / size**0.5, -1) @ value
        return dense(f"{layer}.attn.out_proj", mixed.transpose(0, 1).reshape(len(values), width))

    def experts(layer: str, values: Any) -> Any:
        shares, chosen = torch.softmax(dense(f"{layer}.mlp.router.layer", values), -1).topk(config["moe_top_k"])
        shape = (config["num_experts"], config["n_inner"], width)
        up, down = (weights[f"{layer}.mlp.experts.mlp.{name}"].view(shape) for name in ("w1", "w2"))
        out = torch.zeros_like(values)
        for token, (numbers, parts) in enumerate(zip(chosen.tolist(), shares)):
            for number, share in zip(numbers, parts):
                out[token] += share * (gelu(values[token] @ up[number].T) @ down[number])
        return out

    def mlp(number: int, layer: str, values: Any) -> Any:
        if number % config["moe_every_n_layers"] == 1:
            return experts(layer, values)
        return dense(f"{layer}.mlp.fc2", gelu(dense(f"{layer}.mlp.fc1", values)))

    def encode(ids: list[int]) -> Any:
        types = weights["embeddings.token_type_embeddings.weight"][0]
        states = norm("emb_ln", weights["embeddings.word_embeddings.weight"][ids] + types)
        for number in range(config["n_layer"]):
            layer = f"encoder.layers.{number}"
            states = norm(f"{layer}.norm1", attention(layer, states) + states)
            states = norm(f"{layer}.norm2", mlp(number, layer, states) + states)
        return states.mean(0).numpy()

    ids = [tokenizer(text)["input_ids"] for text in texts]
    with torch.inference_mode():
        return {"ids": ids, "vectors": np.stack([encode(each) for each in ids])}


def jina3(folder: str, texts: list[str]) -> dict[str, Any]:
    """Jina Embeddings 3 without adapters, as Transformers' own model of this kind; runs in the peer.

    GELU is from a table in f16 as in llama.cpp.
    """
    import json
    import re
    from pathlib import Path

    import torch
    from safetensors.torch import load_file
    from transformers import AutoTokenizer, JinaEmbeddingsV3Config, JinaEmbeddingsV3Model

    stated = json.loads(Path(folder, "config.json").read_text())
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
             "max_position_embeddings", "type_vocab_size", "layer_norm_eps", "pad_token_id")  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": stated["rotary_emb_base"]}
    config = JinaEmbeddingsV3Config(**{name: stated[name] for name in names}, rope_parameters=rope)
    model = JinaEmbeddingsV3Model(config, add_pooling_layer=False).eval()
    renamed = {"roberta.": "", ".parametrizations.weight.original": ".weight", "emb_ln": "embeddings.LayerNorm",
               "encoder.layers": "layers", "mixer.out_proj": "self_attn.o_proj", "norm1": "post_attention_layernorm",
               "norm2": "post_mlp_layernorm"}  # fmt: skip
    weights = {}
    for file in Path(folder).glob("*.safetensors"):
        for name, each in load_file(file).items():
            for old, new in renamed.items():
                name = name.replace(old, new)
            if "mixer.Wqkv" in name:
                for kind, part in zip("qkv", each.float().chunk(3)):
                    weights[name.replace("mixer.Wqkv", f"self_attn.{kind}_proj")] = part
            elif not re.search("lora_|pooler", name):
                weights[name] = each.float()
    model.load_state_dict(weights)

    class Table(torch.nn.Module):
        def forward(self, values: Any) -> Any:
            return torch.nn.functional.gelu(values.half().float(), approximate="tanh").half().float()

    for layer in model.layers:
        layer.mlp.activation_fn = Table()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    ids = [tokenizer(text)["input_ids"] for text in texts]
    with torch.inference_mode():
        return {
            "ids": ids,
            "vectors": np.stack([model(torch.tensor([each])).last_hidden_state[0].mean(0) for each in ids]),
        }
