"""The interface of squish-models for other plugins: the rows and settings that define a family, and the check of
a model against what an engine needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from squish_core.api import lazy_exports

_NAMES = {
    "squish_models.config.keys": ("COMMON", "MIXTURE", "SIZES", "VOCABULARY", "Key"),
    "squish_models.engines.check": ("ModelCheck", "check_model"),
    "squish_models.family": ("TextModel",),
    "squish_models.rules": ("fused_attention", "fused_experts", "fused_gguf_experts", "stacked_experts"),
    "squish_models.tables": (
        "SWITCH", "Row", "attention", "embeddings", "experts", "fused_mlp", "gated_mlp", "head_norms", "norm",
        "pre_norm_model", "router",
    ),
}  # fmt: skip

if TYPE_CHECKING:
    from .config.keys import COMMON as COMMON
    from .config.keys import MIXTURE as MIXTURE
    from .config.keys import SIZES as SIZES
    from .config.keys import VOCABULARY as VOCABULARY
    from .config.keys import Key as Key
    from .engines.check import ModelCheck as ModelCheck
    from .engines.check import check_model as check_model
    from .family import TextModel as TextModel
    from .rules import fused_attention as fused_attention
    from .rules import fused_experts as fused_experts
    from .rules import fused_gguf_experts as fused_gguf_experts
    from .rules import stacked_experts as stacked_experts
    from .tables import SWITCH as SWITCH
    from .tables import Row as Row
    from .tables import attention as attention
    from .tables import embeddings as embeddings
    from .tables import experts as experts
    from .tables import fused_mlp as fused_mlp
    from .tables import gated_mlp as gated_mlp
    from .tables import head_norms as head_norms
    from .tables import norm as norm
    from .tables import pre_norm_model as pre_norm_model
    from .tables import router as router
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
