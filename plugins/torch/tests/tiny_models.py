"""Small seeded models of transformers, and files of them in any format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

import squish_core as squish

SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 128, "head_dim": 32,
}  # fmt: skip
IDS = torch.tensor([[3, 14, 15, 92, 65, 35, 89, 79]])


def tiny_llama(folder: Path, *, tied: bool = True, **settings: Any) -> Path:
    """A checkpoint folder of a Llama with two layers, in f32."""
    config = transformers.LlamaConfig(**{**SIZES, "tie_word_embeddings": tied, **settings})
    return _saved(transformers.LlamaForCausalLM(_seeded(config)), folder)


def tiny_gemma(folder: Path) -> Path:
    """A checkpoint folder of a Gemma 3 with two layers, in f32: scaled embeddings, norms that are stored less 1."""
    config = transformers.Gemma3TextConfig(
        **{**SIZES, "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 32}
    )
    return _saved(transformers.Gemma3ForCausalLM(_seeded(config)), folder)


def tiny_phi(folder: Path) -> Path:
    """A checkpoint folder of a Phi 3 with two layers, in f32: q, k and v are one matrix, gate and up another."""
    sizes = {name: size for name, size in SIZES.items() if name != "head_dim"}
    config = transformers.Phi3Config(**sizes, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    return _saved(transformers.Phi3ForCausalLM(_seeded(config)), folder)


def converted(folder: Path, target: Path, encode: Any, **options: Any) -> Path:
    """The same model as GGUF, without a tokenizer."""
    squish.convert(folder, target, encode=encode, rename="gguf", **options)
    return target


def by_transformers(path: Path) -> Any:
    """The model as transformers itself loads a GGUF: all decoded to f32."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()


def logits(model: Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    """The logits of all positions."""
    with torch.no_grad():
        return model(ids).logits


def greedy(model: Any, tokens: int, ids: torch.Tensor = IDS) -> list[int]:
    """Greedy tokens after `ids`."""
    settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "attention_mask": torch.ones_like(ids)}
    return model.generate(ids, max_new_tokens=tokens, **settings)[0].tolist()


def _seeded(config: Any) -> Any:
    torch.manual_seed(0)
    config.initializer_range = 0.2
    return config


def _saved(model: Any, folder: Path) -> Path:
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return folder


TEXT = "The quick brown fox jumps over the lazy dog. " * 12
"""As many tokens of `with_tokenizer` as letters."""


def with_tokenizer(folder: Path) -> Path:
    """A checkpoint folder with a tokenizer of bytes: BOS is 0, then come the bytes in the order of their characters."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, **{letter: number for number, letter in enumerate(letters, 1)}}
    model = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    model.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    transformers.PreTrainedTokenizerFast(tokenizer_object=model, bos_token="<s>").save_pretrained(folder)
    return folder
