"""Families of one model each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from squish_convert.api import Model

from ..config.keys import COMMON, SIZES, VOCABULARY, Key
from ..config.spelling import FULL, SLIDING
from ..family import TextModel
from ..rules import fused_attention
from ..settings import MOST_BLOCKS
from ..tables import Row, attention, embeddings, fused_mlp, gated_mlp, head_norms, norm, pre_norm_model


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
    keys: ClassVar[Sequence[Key]] = COMMON
    fixed: ClassVar = {"hidden_act": "silu", "tie_word_embeddings": False}


class Exaone4(Olmo2):
    """EXAONE 4: OLMo 2 with head norms. With 64 layers, llama.cpp has windows, and layers without positions."""

    model_type, architecture, class_name = "exaone4", "exaone4", "Exaone4ForCausalLM"
    rows = (
        *(row for row in Olmo2.rows if row.gguf not in ("attn_q_norm", "attn_k_norm")),
        *head_norms(),
    )
    constants = ("rope_freqs.weight",)
    keys = (*COMMON, VOCABULARY, Key("sliding_window", "attention.sliding_window", required=False))
    fixed: ClassVar = {"hidden_act": "silu"}
    windowless = ()
    pattern, windowed = 4, 64

    def kinds(self, layers: int) -> list[str]:
        """Return the kinds of the layers."""
        return [
            FULL if layers != self.windowed or n % self.pattern == self.pattern - 1 else SLIDING for n in range(layers)
        ]

    def implied(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        layers, fixed = settings["num_hidden_layers"], super().implied(settings)
        if layers != self.windowed:
            return {**fixed, "sliding_window": None}
        return {**fixed, "layer_types": self.kinds(layers)}

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = {"rope_scaling": None, **super().spelled(config)}
        pattern, window = (
            settings.get("sliding_window_pattern", self.pattern),
            settings.setdefault("sliding_window", 4096),
        )
        if window is not None and isinstance(pattern, int) and 0 < pattern <= MOST_BLOCKS:
            pattern = "L" * (pattern - 1) + "G"
        return {**settings, "sliding_window_pattern": None if window is None else pattern}

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        layers, window = settings["num_hidden_layers"], settings.get("sliding_window") or 4096
        more: dict[str, Any] = {
            "layer_types": self.kinds(layers),
            "sliding_window": None,
            "sliding_window_pattern": None,
        }
        if layers == self.windowed:
            more |= {"sliding_window": window, "sliding_window_pattern": "LLLG"}
        return {"rope_scaling": None, **settings, **more}


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
