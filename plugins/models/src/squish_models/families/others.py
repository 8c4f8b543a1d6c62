"""Families of one model each."""

from __future__ import annotations

from typing import ClassVar

from ..config.keys import COMMON, SIZES, Key
from ..family import TextModel
from ..rules import fused_attention
from ..tables import Row, attention, embeddings, fused_mlp, gated_mlp, norm, pre_norm_model


class Phi3(TextModel):
    """Phi 3 and 4: fused projections, which GGUF keeps fused."""

    model_type, architecture, class_name = "phi3", "phi3", "Phi3ForCausalLM"
    rows = pre_norm_model(
        (
            Row("self_attn.qkv_proj", "attn_qkv", ("qkv_rows", "hidden_size")),
            Row("self_attn.o_proj", "attn_output", ("hidden_size", "q_rows")),
        ),
        fused_mlp(),
    )
    constants = ("rope_factors_long.weight", "rope_factors_short.weight")
    keys = (*COMMON, Key("sliding_window", "attention.sliding_window", required=False))
    fixed: ClassVar = {"hidden_act": "silu"}


class Olmo2(TextModel):
    """OLMo 2: norms after attention and MLP, and one norm over all queries (and all keys) of a token."""

    model_type, architecture, class_name = "olmo2", "olmo2", "Olmo2ForCausalLM"
    rows = (
        *embeddings(),
        *attention(bias=False),
        norm("self_attn.q_norm", "attn_q_norm", size="q_rows"),
        norm("self_attn.k_norm", "attn_k_norm", size="kv_rows"),
        norm("post_attention_layernorm", "post_attention_norm"),
        *gated_mlp(),
        norm("post_feedforward_layernorm", "post_ffw_norm"),
    )
    more: ClassVar = {"gguf": fused_attention(permute=False)}
    keys = COMMON
    fixed: ClassVar = {"hidden_act": "silu", "tie_word_embeddings": False}


class Glm4(TextModel):
    """GLM 4: norms before and after attention and MLP, fused gate and up, half of each head rotated."""

    model_type, architecture, class_name = "glm4", "glm4", "Glm4ForCausalLM"
    rows = (
        *embeddings(),
        norm("input_layernorm", "attn_norm"),
        *attention(),
        norm("post_self_attn_layernorm", "post_attention_norm"),
        norm("post_attention_layernorm", "ffn_norm"),
        *fused_mlp(),
        norm("post_mlp_layernorm", "post_ffw_norm"),
    )
    more: ClassVar = {"gguf": fused_attention(permute=False)}
    keys = COMMON
    fixed: ClassVar = {"hidden_act": "silu"}
    rotated_by_default = 0.5


class Starcoder2(TextModel):
    """StarCoder 2: layer norms, and biases everywhere."""

    model_type, architecture, class_name = "starcoder2", "starcoder2", "Starcoder2ForCausalLM"
    rows = pre_norm_model(
        attention(biased=True),
        (
            Row("mlp.c_fc", "ffn_up", ("intermediate_size", "hidden_size"), biased=True),
            Row("mlp.c_proj", "ffn_down", ("hidden_size", "intermediate_size"), biased=True),
        ),
        biased=True,
    )
    more: ClassVar = {"gguf": fused_attention(permute=False)}
    keys = (*SIZES, Key("norm_epsilon", "attention.layer_norm_epsilon", "f32"))
    fixed: ClassVar = {"hidden_act": "gelu_pytorch_tanh", "use_bias": True}
    tied_by_default = True
    windowless = ("gguf", "mlx")
