"""Tiny seeded models of the types that mlx-lm and Transformers 5 have and Squish does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import families, peer

TOKENS = [(7 * number * number + 3 * number + 11) % 600 + 5 for number in range(24)]
"""More than the sliding window of the small models."""
SMALL = {
    **families.SIZE, "num_hidden_layers": 4, "head_dim": 32, "sliding_window": 8, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "d_model": 64, "n_heads": 4, "n_layers": 4, "max_seq_len": 512,
    # experts
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "top_k_experts", "n_group"), 2),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "topk_group"), 1),
    **dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), 32
    ), "num_expert_group": 2, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0,
    # latent attention
    "kv_lora_rank": 32, "q_lora_rank": 48, "qk_rope_head_dim": 16, "v_head_dim": 32, "qk_nope_head_dim": 32,
    "index_topk": 512, "index_head_dim": 32, "index_n_heads": 2,
    # linear attention and states
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "linear_head_dim": 16, "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16,
    "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 1, "state_size": 16,
    # no engine's default, so that one which does not read them differs
    "rms_norm_eps": 1e-3, "layer_norm_eps": 1e-3, "layer_norm_epsilon": 1e-3,
}  # fmt: skip
"""Settings of every model that has them."""
THETA = 5000.0
PLAIN = {"rope_type": "default", "rope_theta": THETA}
DROP = "drop"
"""The value of a setting of SMALL that a model leaves to its config."""
MLA = {"num_key_value_heads": 4, "head_dim": DROP, "rms_norm_eps": 1e-6}
"""mlx-lm computes with 1e-6 in the norms of latent attention."""
OWN_HEAD = {"head_dim": 16}

MODELS: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {**MLA, "layer_group_size": 2}, "bitnet": {},
    "dbrx": {
        **dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads"), DROP),
        "attn_config": {"kv_n_heads": 2, "rope_theta": THETA, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 128, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "glm": {"rope_parameters": {**PLAIN, "partial_rotary_factor": 1.0}},
    "gptj": {"rotary_dim": 8},
    "helium": OWN_HEAD, "iquestcoder": {},
    "llava": {},
    "longcat_flash": {
        **MLA, "head_dim": 16, "num_layers": 2, "num_hidden_layers": DROP, "ffn_hidden_size": 128,
        "expert_ffn_hidden_size": 32, "moe_topk": 2, "zero_expert_num": 0,
    },
    "minicpm3": {**MLA, "v_head_dim": 16, "tie_word_embeddings": False}, "minimax": {},
    "minimax_m3_vl": {
        "text_config": {
            "rotary_dim": 16, "dense_intermediate_size": 64,
            "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5},
        },
    },
    "muse_glimmer": {"projector_hidden_size": 32}, "nanochat": OWN_HEAD,
    "olmo_hybrid": {},
    "phimoe": {**OWN_HEAD, "attention_bias": True, "lm_head_bias": True, "sliding_window": None},
    "recurrent_gemma": {
        **OWN_HEAD, "num_key_value_heads": 1, "rms_norm_eps": 1e-5,
        "rope_parameters": {**PLAIN, "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    },
}  # fmt: skip
"""Model type -> its settings beside SMALL; those of a part replace SMALL's in it."""
NOT_MADE = {"muse_spark": "its towers cannot be made small"}
"""Other types that both have, which are not compared."""


def make(model_type: str, folder: Path, **settings: Any) -> Any:
    """Write a model of a type to a folder; returns its log-probabilities after each of TOKENS."""
    arguments: dict[str, Any] = {
        "small": SMALL,
        "own": {**MODELS[model_type], **settings},
        "theta": THETA,
        "drop": DROP,
    }
    return peer("transformers").run(save, folder=str(folder), model_type=model_type, tokens=TOKENS, **arguments)


def save(
    folder: str, model_type: str, small: dict[str, Any], own: dict[str, Any], theta: float, drop: str, tokens: list[int]
) -> Any:
    """Runs in the peer: saves a model of seeded weights and computes its log-probabilities."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    always = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    tower = {
        "depth": 1, "num_hidden_layers": 1, "num_layers": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2,
        "num_attention_heads": 2, "out_hidden_size": 64, "head_dim": 16, "image_size": 28, "projection_dim": 32,
    }  # fmt: skip

    def settings_of(default: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
        settings = {key: value for key, value in small.items() if key in default or key in always}
        rope = default.get("rope_parameters")
        if isinstance(rope, dict) and any(isinstance(value, dict) for value in rope.values()):
            settings["rope_parameters"] = {
                kind: {**value, "rope_theta": theta * number} for number, (kind, value) in enumerate(rope.items(), 1)
            }
        elif isinstance(rope, dict):
            settings["rope_parameters"] = {**rope, "rope_theta": theta}
        settings |= own
        return {key: value for key, value in settings.items() if value != drop}

    default = type(AutoConfig.for_model(model_type))().to_dict()
    if "text_config" in default:
        settings = {**own, "text_config": settings_of(default["text_config"], own.get("text_config", {}))}
        for part in ("vision_config", "audio_config"):
            stated = default.get(part)
            if isinstance(stated, dict) and part not in own:
                settings[part] = {key: value for key, value in tower.items() if key in stated}
        for part, stated in default.items():
            if isinstance(settings.get(part), dict) and stated.get("model_type"):
                settings[part]["model_type"] = stated["model_type"]
    else:
        settings = settings_of(default, own)
    torch.manual_seed(0)
    causal = model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and "text_config" not in settings
    config = AutoConfig.for_model(model_type, **settings)
    kind = AutoModelForCausalLM if causal else AutoModelForImageTextToText
    model = kind.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(1)
    biases = ("e_score_correction_bias", "expert_bias")
    with torch.no_grad():
        buffers = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith(biases)]
        for name, values in sorted([*model.named_parameters(), *buffers]):
            if "moe_statics" in name:  # mlx-lm ignores them, and the report says so
                values.zero_()
                continue
            scale = 0.1 if values.ndim == 1 else values.shape[-1] ** -0.5
            center = values.clone() if values.ndim == 1 else 0.0
            values.copy_(center + scale * torch.randn(values.shape, generator=generator))
        logits = model(input_ids=torch.tensor([tokens])).logits[0].float()
    model.save_pretrained(folder)
    return torch.log_softmax(logits, -1).numpy()


def mlx_logprobs(path: str, tokens: list[int]) -> Any:
    """Runs in the peer: mlx-lm's log-probabilities after each token, loaded strictly, computed as in generation."""
    from pathlib import Path

    import mlx.core as mx
    import numpy as np
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm.utils import load_model

    mx.set_default_device(mx.cpu)
    model, _ = load_model(Path(path), strict=True)
    logits = model(mx.array([tokens]), cache=make_prompt_cache(model))[0].astype(mx.float32)
    return np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
