"""The families: tables of tensors, of forms that occur in files, and of settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .config.keys import COMMON, GEMMA, MIXTURE, Key
from .family import TextModel
from .tables import (
    Row,
    attention,
    embeddings,
    experts,
    fused_attention,
    fused_experts,
    fused_gguf_experts,
    gated_mlp,
    norm,
    stacked_experts,
)

SCALED_ROPE = ("rope_freqs.weight",)
PATTERN = 6
"""Of so many layers of Gemma 3 the last one sees everything, the others a window."""
LAYERS_27B = 62
"""Layers of the one Gemma 3 whose attention is scaled by the size that heads would have without head_dim."""
SWITCH = ("gate_proj", "up_proj", "down_proj")


class Llama(TextModel):
    """Llama 1 to 3, SmolLM2, Mistral, Mistral-Nemo: GGUF interleaves the rows of each head of queries and keys."""

    model_type, architecture, class_name = "llama", "llama", "LlamaForCausalLM"
    rows = (
        *embeddings(),
        norm("input_layernorm", "attn_norm"),
        *attention(permute=True),
        norm("post_attention_layernorm", "ffn_norm"),
        *gated_mlp(bias=True),
    )
    more: ClassVar = {"gguf": fused_attention(permute=True)}
    constants = SCALED_ROPE
    keys = (*COMMON, Key("vocab_size", "vocab_size", required=False))
    fixed: ClassVar = {"hidden_act": "silu"}


class Mixtral(TextModel):
    """Mixtral: Llama's attention, and experts."""

    model_type, architecture, class_name = "mixtral", "llama", "MixtralForCausalLM"
    rows = (
        *embeddings(),
        norm("input_layernorm", "attn_norm"),
        *attention(permute=True),
        norm("post_attention_layernorm", "ffn_norm"),
        Row("block_sparse_moe.gate", "ffn_gate_inp", ("experts", "hidden_size"), f32=True),
        *experts("block_sparse_moe", "w1", "w3", "w2", "intermediate_size"),
    )
    more: ClassVar = {
        "gguf": (
            *fused_attention(permute=True), *fused_gguf_experts("block_sparse_moe", "w1", "w3", "intermediate_size"),
        ),
        "hf": fused_experts("block_sparse_moe", "w1", "w3", "w2", "intermediate_size"),
        "mlx": stacked_experts(
            "block_sparse_moe", ((f"block_sparse_moe.switch_mlp.{name}", weight)
                                 for name, weight in zip(SWITCH, ("w1", "w3", "w2"))), reading=False,
        ),
        "uqff": stacked_experts(
            "block_sparse_moe", ((f"block_sparse_moe.experts.{name}", name) for name in ("w1", "w3", "w2")),
            reading=True,
        ),
    }  # fmt: skip
    constants = SCALED_ROPE
    keys = (*COMMON, Key("vocab_size", "vocab_size", required=False), *MIXTURE["num_local_experts"])
    fixed: ClassVar = {"hidden_act": "silu"}


class Qwen2(TextModel):
    """Qwen 2 and 2.5: biases on queries, keys and values."""

    model_type, architecture, class_name = "qwen2", "qwen2", "Qwen2ForCausalLM"
    rows = (
        *embeddings(),
        norm("input_layernorm", "attn_norm"),
        *attention(),
        norm("post_attention_layernorm", "ffn_norm"),
        *gated_mlp(),
    )
    more: ClassVar = {"gguf": fused_attention(permute=False)}
    keys = COMMON
    fixed: ClassVar = {"hidden_act": "silu", "use_sliding_window": False}


class Qwen3(TextModel):
    """Qwen 3: norms of queries and keys."""

    model_type, architecture, class_name = "qwen3", "qwen3", "Qwen3ForCausalLM"
    rows = (
        *embeddings(),
        norm("input_layernorm", "attn_norm"),
        *attention(),
        norm("self_attn.q_norm", "attn_q_norm", size="head_dim"),
        norm("self_attn.k_norm", "attn_k_norm", size="head_dim"),
        norm("post_attention_layernorm", "ffn_norm"),
        *gated_mlp(),
    )
    more: ClassVar = {"gguf": fused_attention(permute=False)}
    keys = COMMON
    fixed: ClassVar = {"hidden_act": "silu", "use_sliding_window": False}
    layer_counts = ("max_window_layers",)


class Qwen3Moe(TextModel):
    """Qwen 3 with experts."""

    model_type, architecture, class_name = "qwen3_moe", "qwen3moe", "Qwen3MoeForCausalLM"
    rows = (
        *Qwen3.rows[:-3],
        Row("mlp.gate", "ffn_gate_inp", ("experts", "hidden_size"), f32=True),
        *experts("mlp", *SWITCH, "moe_intermediate_size"),
    )
    more: ClassVar = {
        "gguf": (
            *fused_attention(permute=False), *fused_gguf_experts("mlp", *SWITCH[:2], "moe_intermediate_size"),
        ),
        "hf": fused_experts("mlp", *SWITCH, "moe_intermediate_size"),
        "mlx": stacked_experts("mlp", ((f"mlp.switch_mlp.{name}", name) for name in SWITCH), reading=False),
        "uqff": stacked_experts("mlp", ((f"mlp.experts.{name}", name) for name in SWITCH), reading=True),
    }  # fmt: skip
    keys = (*COMMON, *MIXTURE["num_experts"], Key("moe_intermediate_size", "expert_feed_forward_length"))
    fixed: ClassVar = {
        "hidden_act": "silu", "use_sliding_window": False, "norm_topk_prob": True, "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }  # fmt: skip
    unstated: ClassVar = {"norm_topk_prob": False}
    layer_counts = ("max_window_layers",)


class Gemma3(TextModel):
    """Gemma 3, its text part: GGUF's norms hold 1 more, and layers have norms around attention and MLP."""

    model_type, architecture, class_name = "gemma3_text", "gemma3", "Gemma3ForCausalLM"
    rows = (
        *embeddings(add=1.0),
        norm("input_layernorm", "attn_norm", add=1.0),
        *attention(bias=False),
        norm("self_attn.q_norm", "attn_q_norm", size="head_dim", add=1.0),
        norm("self_attn.k_norm", "attn_k_norm", size="head_dim", add=1.0),
        norm("post_attention_layernorm", "post_attention_norm", add=1.0),
        norm("pre_feedforward_layernorm", "ffn_norm", add=1.0),
        *gated_mlp(),
        norm("post_feedforward_layernorm", "post_ffw_norm", add=1.0),
    )
    more: ClassVar = {"gguf": fused_attention(permute=False)}
    keys = (*COMMON, *GEMMA)
    fixed: ClassVar = {"hidden_activation": "gelu_pytorch_tanh", "rope_local_base_freq": 10000.0}
    unstated: ClassVar = {"query_pre_attn_scalar": 256}
    tied_by_default = True
    gemma_tokenizer = True
    beside = (
        "vision_tower.*", "multi_modal_projector.*", "model.vision_tower.*", "model.multi_modal_projector.*",
    )  # fmt: skip
    prefixes: ClassVar = {
        "language_model.model.": "model.", "model.language_model.": "model.", "language_model.lm_head.": "lm_head.",
    }  # fmt: skip

    def implied(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        heads, layers = settings["num_attention_heads"], settings["num_hidden_layers"]
        scale = settings["hidden_size"] // heads if layers == LAYERS_27B else settings["head_dim"]
        pattern = settings.get("sliding_window_pattern", PATTERN)
        same_kinds = pattern == PATTERN or min(pattern, PATTERN) > layers
        return {
            **{key: value for key, value in self.fixed.items() if key not in settings or key == "hidden_activation"},
            "sliding_window_pattern": pattern if same_kinds else PATTERN,
            "query_pre_attn_scalar": scale,
        }


class Phi3(TextModel):
    """Phi 3: fused projections, which GGUF keeps fused."""

    model_type, architecture, class_name = "phi3", "phi3", "Phi3ForCausalLM"
    rows = (
        *embeddings(),
        norm("input_layernorm", "attn_norm"),
        Row("self_attn.qkv_proj", "attn_qkv", ("qkv_rows", "hidden_size")),
        Row("self_attn.o_proj", "attn_output", ("hidden_size", "q_rows")),
        norm("post_attention_layernorm", "ffn_norm"),
        Row("mlp.gate_up_proj", "ffn_up", ("gate_up_rows", "hidden_size")),
        Row("mlp.down_proj", "ffn_down", ("hidden_size", "intermediate_size")),
    )
    constants = ("rope_factors_long.weight", "rope_factors_short.weight")
    keys = (*COMMON, Key("sliding_window", "attention.sliding_window", required=False))
    fixed: ClassVar = {"hidden_act": "silu"}
