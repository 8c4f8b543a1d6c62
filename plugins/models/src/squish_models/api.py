"""The interface of squish-models for other plugins: the rows and settings that define a family, the check of
a model against what an engine needs, and the memory that llama-server takes for it."""

from __future__ import annotations

from squish_core.api import lazy_exports

_NAMES = {
    "squish_models.config.keys": ("COMMON", "MIXTURE", "SIZES", "VOCABULARY", "Key"),
    "squish_models.declarations": ("register_family",),
    "squish_models.engines.check": ("ModelCheck", "check_model"),
    "squish_models.engines.needs": ("EngineNeeds",),
    "squish_models.family": ("TextModel",),
    "squish_models.memory.cache": ("Cache",),
    "squish_models.memory.fit": ("Fit", "Needed", "fit"),
    "squish_models.rules": ("fused_attention", "fused_experts", "fused_gguf_experts", "stacked_experts"),
    "squish_models.small_models": ("small_config", "small_tokenizer"),
    "squish_models.tables": (
        "SWITCH", "Row", "attention", "embeddings", "experts", "fused_mlp", "gated_mlp", "head_norms", "norm",
        "pre_norm_model", "router",
    ),
    "squish_models.tokenizer.pretokenizers": ("Pretokenizer", "pretokenizer_of"),
}  # fmt: skip

__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
