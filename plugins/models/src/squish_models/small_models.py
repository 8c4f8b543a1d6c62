"""The config.json and the tokenizer of a small model, for the tests of families."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from squish_convert.api import Model

from squish_core.api import ErrorCode, FormatError, UsageError, registry

from .family import TextModel
from .settings import CONFIG
from .tokenizer import Tokenizer, Vocabulary, huggingface_files

LAYERS = 2
SETTINGS: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "vocab_size": 256,
    "rope_theta": 10000.0, "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
}  # fmt: skip
"""Settings of every family."""
OTHERS: dict[str, Any] = {
    **dict.fromkeys(("layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"), 1e-5),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4), "num_experts_per_tok": 2,
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32), "n_shared_experts": 1,
    "first_k_dense_replace": 1, "num_dense_layers": 1, "norm_topk_prob": True, "sliding_window": 64,
    "query_pre_attn_scalar": 16, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    "kv_lora_rank": 32, "q_lora_rank": 48, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 48,
    "routed_scaling_factor": 1.5, "logit_scale": 0.25, "embedding_multiplier": 12.0, "attention_multiplier": 0.125,
    "residual_multiplier": 0.25, "logits_scaling": 8.0, "conv_L_cache": 3, "rotary_dim": 8,
    "layer_types": ["full_attention"] * LAYERS, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16,
    "vocab_size_per_layer_input": SETTINGS["vocab_size"],
}  # fmt: skip
"""Settings that some families have."""
LATENT = ("q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "first_k_dense_replace")
"""Settings beside `kv_lora_rank`."""


def small_config(family: str) -> dict[str, Any]:
    """Return the `config.json` of a small model of a family.

    Parameters
    ----------
    family
        The family's id.

    Returns
    -------
    dict
        Two layers with 64 rows, and a value for every setting that the family requires.

    Raises
    ------
    UsageError
        The family requires a setting for which no small value is known.

    Examples
    --------
    >>> from squish_models.api import small_config
    >>> small_config("qwen3moe")["hidden_size"]
    64
    """
    model = registry().implementation("family", family) if family in registry().families else None
    if not isinstance(model, TextModel):
        hint = "`squish families` lists all."
        raise UsageError("is not a family of text models", code=ErrorCode.USAGE, found=repr(family), hint=hint)
    config = {"model_type": model.model_type, "architectures": [model.class_name], **SETTINGS}
    config |= {name: OTHERS[name] for name in sorted(_names(model) & OTHERS.keys())}
    try:
        config |= model.implied({**SETTINGS, **config})
        config |= {own: config.pop(name) for name, own in model.own_names.items() if name in config}
        assets = {CONFIG: json.dumps(config).encode()}
        settings = model.settings(Model(name=family, layout="hf", meta={}, assets=assets, tensors={}, vectors={}))
        model.sizes(settings)
        model.absent(settings)
        model.check_for_gguf(settings)
    except FormatError as error:
        raise UsageError(
            f"no small model of {family} is known: {error.reason()}",
            code=ErrorCode.USAGE,
            hint="Start from another family, or write the config.json of a small model by hand.",
        ) from None
    return config


def _names(family: TextModel) -> set[str]:
    """The settings that a family requires, with those of latent attention, which its code reads."""
    names = {name for row in family.rows for name in row.shape} | {key.hf for key in family.keys if key.required}
    names |= {family.experts or "", getattr(family, "rotary_setting", "")}
    names |= {key.hf for key in getattr(family, "scales", ())}
    names |= {factor for product in getattr(family, "products", {}).values() for factor in product}
    return names | ({*LATENT} if "kv_lora_rank" in names else set())


def small_tokenizer(size: int) -> dict[str, bytes]:
    """Return the files of a tokenizer for small models, with which llama.cpp loads them.

    Parameters
    ----------
    size
        Number of tokens, at least 4.

    Returns
    -------
    dict of str to bytes
        Contents by file name.

    Examples
    --------
    >>> sorted(small_tokenizer(64))
    ['generation_config.json', 'tokenizer.json', 'tokenizer_config.json']
    """
    tokens = ("a", "b", "ab", "<|end|>", *(f"t{number}" for number in range(size - 4)))
    kinds = np.array([1, 1, 1, 3, *[1] * (size - 4)], np.int32)
    vocabulary = Vocabulary(tokens=tokens, kinds=kinds, merges=(("a", "b"),))
    return dict(huggingface_files(Tokenizer(model="bpe", vocabulary=vocabulary, pre="qwen2", special={"eos": 3})))
