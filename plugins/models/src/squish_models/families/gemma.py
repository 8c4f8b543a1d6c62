"""Gemma: norms in GGUF are greater by 1, and layers have norms before and after attention and MLP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from squish_convert.api import Model

from ..config.keys import COMMON, VOCABULARY, Key
from ..dense_modules import DENSE_KEYS, DENSE_ROWS, check_dense, dense_settings
from ..engines.needs import EngineNeeds
from ..family import TextModel
from ..general import MODULES
from ..rules import fused_attention
from ..settings import BARE
from ..tables import BASE_PREFIXES, Row, attention, base_rows, embeddings, gated_mlp, head_norms, norm

PATTERN, BIDIRECTIONAL = "sliding_window_pattern", "use_bidirectional_attention"
CAPS = (
    Key("attn_logit_softcapping", "attn_logit_softcapping", "f32"),
    Key("final_logit_softcapping", "final_logit_softcapping", "f32"),
)


def is_bidirectional(config: Mapping[str, Any]) -> bool:
    """Return whether tokens attend to those behind them, as in EmbeddingGemma."""
    return config.get(BIDIRECTIONAL) not in (None, False)


def sandwich_norm_model(*more: Row) -> tuple[Row, ...]:
    """Return the weights of a Gemma; `more`: attention weights besides the projections."""
    return (
        *embeddings(add=1.0),
        norm("input_layernorm", "attn_norm", add=1.0),
        *attention(bias=False),
        *more,
        norm("post_attention_layernorm", "post_attention_norm", add=1.0),
        norm("pre_feedforward_layernorm", "ffn_norm", add=1.0),
        *gated_mlp(),
        norm("post_feedforward_layernorm", "post_ffw_norm", add=1.0),
    )


class Gemma2(TextModel):
    """Gemma 2: every second layer attends to a window; scores and logits are capped.

    Attributes
    ----------
    pattern
        One in this many layers, the last of them, attends to everything, the others to a window.
    layers_27b
        Number of layers of the only model that scales attention by the head size that it would have without head_dim.
    """

    model_type, architecture, class_name = "gemma2", "gemma2", "Gemma2ForCausalLM"
    rows = sandwich_norm_model()
    more: ClassVar = {"gguf": fused_attention(permute=False)}
    keys: ClassVar[Sequence[Key]] = (*COMMON, Key("sliding_window", "attention.sliding_window"), *CAPS)
    fixed: ClassVar = {"hidden_activation": "gelu_pytorch_tanh"}
    unstated: ClassVar = {"query_pre_attn_scalar": 256}
    tied_by_default = True
    windowless: ClassVar[Sequence[str]] = ("mlx",)
    gemma_tokenizer = True
    pattern: ClassVar[int] = 2
    layers_27b: ClassVar[int] = 46

    def implied(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        heads, layers = settings["num_attention_heads"], settings["num_hidden_layers"]
        scale = settings["hidden_size"] // heads if layers == self.layers_27b else settings["head_dim"]
        pattern = settings.get(PATTERN, self.pattern)
        same_kinds = pattern == self.pattern or (isinstance(pattern, int) and min(pattern, self.pattern) > layers)
        return {
            **{key: value for key, value in self.fixed.items() if key not in settings or key == "hidden_activation"},
            PATTERN: pattern if same_kinds else self.pattern,
            "query_pre_attn_scalar": scale,
        }


class Gemma3(Gemma2):
    """The text part of Gemma 3: query and key norms, and separate rotary positions in the windows."""

    model_type, architecture, class_name = "gemma3_text", "gemma3", "Gemma3ForCausalLM"
    rows = sandwich_norm_model(*head_norms(add=1.0))
    keys = (
        *COMMON,
        Key("window", "attention.sliding_window", required=False),
        Key("rope_local_base_freq", "rope.freq_base_swa", "f32", required=False),
        Key("final_logit_softcapping", "final_logit_softcapping", "f32", required=False),
        VOCABULARY,
    )
    fixed: ClassVar = {**Gemma2.fixed, "rope_local_base_freq": 10000.0}
    unstated: ClassVar = {
        **Gemma2.unstated, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "sliding_window": 4096,
    }  # fmt: skip
    windowless = ()
    pattern = 6
    layers_27b = 62
    other_modalities = (
        "vision_tower.*", "multi_modal_projector.*", "model.vision_tower.*", "model.multi_modal_projector.*",
    )  # fmt: skip

    prefixes: ClassVar = {
        **BARE,
        "language_model.model.": "model.", "model.language_model.": "model.", "language_model.lm_head.": "lm_head.",
    }  # fmt: skip
    derived = (*Gemma2.derived, "window")

    def fits(self, config: Mapping[str, Any]) -> bool:
        return not is_bidirectional(config)

    def implied(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        implied = super().implied(settings)
        return {**implied, PATTERN: 1} if settings.get(PATTERN) == 1 else implied

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled(config)
        return {**settings, "window": None if settings.get(PATTERN) == 1 else settings.get("sliding_window")}

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        window = settings.get("window")
        if window is None:  # llama.cpp then has no layers with a window, but folder engines assume some
            return {**settings, "sliding_window": settings["max_position_embeddings"], PATTERN: 1}
        return {**settings, "sliding_window": window}


class EmbeddingGemma(Gemma2):
    """EmbeddingGemma: Gemma 3 that attends in both directions, with dense modules behind the pooling."""

    model_type, architecture, class_name = "gemma3_text", "gemma-embedding", "Gemma3TextModel"
    rows = (*base_rows(row for row in Gemma3.rows if row.gguf != "output"), *DENSE_ROWS)
    prefixes: ClassVar = BASE_PREFIXES
    keys = (
        *(key for key in COMMON if key.hf != "is_causal"),
        Key("sliding_window", "attention.sliding_window"),
        Key("rope_local_base_freq", "rope.freq_base_swa", "f32", required=False),
        *DENSE_KEYS,
    )
    fixed = Gemma3.fixed
    unstated: ClassVar = {name: value for name, value in Gemma3.unstated.items() if name != "sliding_window"}
    derived = (*Gemma2.derived, *(key.hf for key in DENSE_KEYS))
    windowless = ()
    pattern = Gemma3.pattern
    layers_27b = 0
    engines: ClassVar = {"mlx": EngineNeeds(supported=False), "mistralrs": EngineNeeds(supported=False)}

    def fits(self, config: Mapping[str, Any]) -> bool:
        return is_bidirectional(config)

    def implied(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**super().implied(settings), "attn_logit_softcapping": None, BIDIRECTIONAL: True}

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().sizes(settings), **{key.hf: settings.get(key.hf, 0) for key in DENSE_KEYS}}

    def _from_config(self, model: Model) -> dict[str, Any]:
        settings = {**super()._from_config(model), **dense_settings(model)}
        check_dense(settings, MODULES)
        return settings

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        check_dense(settings, f"{self.architecture}.{DENSE_KEYS[0].gguf}")
        return settings
