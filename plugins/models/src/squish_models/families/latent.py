"""Families with DeepSeek's latent attention and more: an indexer (DeepSeek 3.2, GLM 5), or scaled queries (Mistral 4).

Source: llama.cpp, `DeepseekV32Model` in conversion/deepseek.py, `GlmMoeDsaModel` in glm.py and `Mistral4Model` in
mistral3.py, and src/models/deepseek32.cpp, glm-dsa.cpp and deepseek2.cpp.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Model

from squish_core.api import ErrorCode, FormatError, UsageError

from ..config.gguf_defaults import LoadedKeys
from ..config.keys import SWITCHES_LIST, Key
from ..config.rope import rope_kind
from ..config.spelling import all_layers, text_config
from ..rules import fused_experts
from ..settings import CONFIG, ELSEWHERE
from ..tables import SWITCH, Row
from .deepseek import FUSED_RULE, SOFTMAX, Deepseek
from .llama import Mistral3

INDEXED = "indexed"
FULL, SHARED = "full", "shared"
"""A layer with an indexer of its own, and one that attends to the tokens that an earlier layer chose."""


class DeepseekV32(Deepseek):
    """DeepSeek 3.2: an indexer in each layer chooses the tokens to attend to."""

    model_type, architecture, class_name = "deepseek_v32", "deepseek32", "DeepseekV32ForCausalLM"
    rows = (
        *(row for row in Deepseek.rows if row.hf != "self_attn.q_proj"),
        Row("self_attn.indexer.wq_b", "indexer.attn_q_b", ("index_rows", "q_lora_rank"), kind=INDEXED),
        Row("self_attn.indexer.wk", "indexer.attn_k", ("index_head_dim", "hidden_size"), kind=INDEXED),
        Row("self_attn.indexer.k_norm", "indexer.k_norm", ("index_head_dim",), biased=True, kind=INDEXED),
        Row("self_attn.indexer.weights_proj", "indexer.proj", ("index_n_heads", "hidden_size"), kind=INDEXED),
    )
    keys: ClassVar[Sequence[Key]] = (
        *Deepseek.keys,
        Key("index_n_heads", "attention.indexer.head_count"),
        Key("index_head_dim", "attention.indexer.key_length"),
        Key("index_topk", "attention.indexer.top_k"),
    )
    products: ClassVar = {"index_rows": ("index_n_heads", "index_head_dim")}
    unadapted = (*Deepseek.unadapted, "wq_b", "wk", "weights_proj")
    fixed: ClassVar = {**Deepseek.fixed, "indexer_rope_interleave": False}
    unstated: ClassVar = {"indexer_rope_interleave": False}

    def layers_of(self, kind: str, settings: Mapping[str, Any]) -> Collection[int]:
        return range(all_layers(settings)) if kind == INDEXED else super().layers_of(kind, settings)

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled(config)
        if not settings.get("q_lora_rank"):
            raise FormatError(
                "has no q_lora_rank, and the indexer of its attention reads those queries",
                part=CONFIG,
                code=ErrorCode.CONFIG,
                expected="a size",
                found=settings.get("q_lora_rank"),
            )
        return settings


class GlmMoeDsa(DeepseekV32):
    """GLM 5 to 5.2: in the last of them, some layers attend to the tokens that the indexer of an earlier one chose."""

    model_type, architecture, class_name = "glm_moe_dsa", "glm-dsa", "GlmMoeDsaForCausalLM"
    keys = (*DeepseekV32.keys, Key("full_indexers", "attention.indexer.types", SWITCHES_LIST, required=False))
    fixed: ClassVar = {**Deepseek.fixed, "indexer_rope_interleave": True}
    unstated: ClassVar = {"indexer_rope_interleave": True}
    derived = (*Deepseek.derived, "full_indexers")

    def layers_of(self, kind: str, settings: Mapping[str, Any]) -> Collection[int]:
        behind = range(settings["num_hidden_layers"], all_layers(settings))
        if kind != INDEXED:
            return super().layers_of(kind, settings)
        return [*(layer for layer, full in enumerate(settings["full_indexers"]) if full), *behind]

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled(config)
        count, kinds = settings["num_hidden_layers"], _indexer_types(settings)
        if len(kinds) != count or kinds[:1] != [FULL] * min(count, 1) or not {*kinds} <= {FULL, SHARED}:
            raise FormatError(
                "does not say of each layer whether it has an indexer, as the first one must",
                part=f"{CONFIG} indexer_types",
                code=ErrorCode.CONFIG,
                expected=f"{count} of {FULL} and {SHARED}",
                found=str(kinds)[:60],
            )
        own: dict[str, Any] = {"indexer_types": kinds, "full_indexers": [kind == FULL for kind in kinds]}
        scaling = settings.get("rope_scaling") or {"rope_type": "default"}
        # mlx-lm requires these
        own["rope_parameters"] = {**scaling, "rope_theta": settings.get("rope_theta", 10000.0)}
        return {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1, **settings, **own}

    def check_engine(self, layout: str, settings: Mapping[str, Any]) -> None:
        super().check_engine(layout, settings)
        if layout == "mlx" and not all(settings["full_indexers"]):
            raise UsageError(
                "has layers without an indexer of their own, which mlx-lm does not run",
                part=f"{CONFIG} indexer_types",
                code=ErrorCode.ENGINE,
                expected=f"{FULL} for each layer",
                hint=ELSEWHERE,
            )

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        count = settings["num_hidden_layers"]
        switches = settings.get("full_indexers") or LoadedKeys(self.architecture, model.meta)["attention.indexer.types"]
        if len(switches) < count:
            raise FormatError(
                "does not say of each layer whether it has an indexer",
                part=f"{self.architecture}.attention.indexer.types",
                code=ErrorCode.CONTRADICTION,
                expected=f"{count} values",
                found=len(switches),
            )
        full = [bool(switch) for switch in switches[:count]]
        return {**settings, "full_indexers": full, "indexer_types": [FULL if each else SHARED for each in full]}


def _indexer_types(settings: Mapping[str, Any]) -> list[Any]:
    """Which layers have an indexer, as Transformers reads it: a list, a pattern of letters, or a frequency."""
    stated, letters = settings.get("indexer_types"), settings.get("index_topk_pattern")
    if isinstance(stated, list):
        return stated
    if isinstance(letters, (str, list)):
        return [{"F": FULL, "S": SHARED}.get(each, each) if isinstance(each, str) else each for each in letters]
    every, offset = settings.get("index_topk_freq") or 1, settings.get("index_skip_topk_offset", 2)
    if type(every) is not int or type(offset) is not int or every < 1:
        return []
    layers = range(settings["num_hidden_layers"])
    return [SHARED if max(layer - offset + 1, 0) % every else FULL for layer in layers]


_STACKED = fused_experts("mlp", *SWITCH, "moe_intermediate_size")


class Mistral4(Deepseek):
    """Mistral 4, its text part: stacks of experts, and queries that are scaled by position."""

    model_type, architecture, class_name = "mistral4", "mistral4", "Mistral4ForCausalLM"
    more: ClassVar = {
        **Deepseek.more,
        "hf": (*FUSED_RULE, *(evolve(rule, reading=False) for rule in _STACKED)),
        "mlx": (*Deepseek.more["mlx"], *_STACKED),
    }
    keys = (
        *Deepseek.keys,
        Key("llama_4_scaling_beta", "attention.temperature_scale", "f32", required=False),
        Key("temperature_length", "attention.temperature_length", required=False),
    )
    derived = (*Deepseek.derived, "llama_4_scaling_beta", "temperature_length")
    other_modalities: ClassVar[Sequence[str]] = Mistral3.other_modalities
    prefixes: ClassVar = Mistral3.prefixes
    unstated: ClassVar = {"norm_topk_prob": True}

    def fits(self, config: Mapping[str, Any]) -> bool:
        return text_config(config).get("model_type") == "mistral4"

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled(config)
        share, rotated = settings.pop("partial_rotary_factor", None), settings["qk_rope_head_dim"]
        if share is not None and abs(share * settings["whole_key_size"] - rotated) > 1e-3:
            raise FormatError(
                "rotates another share of a key than its qk_rope_head_dim",
                part=f"{CONFIG} partial_rotary_factor",
                code=ErrorCode.CONTRADICTION,
                expected=rotated / settings["whole_key_size"],
                found=share,
            )
        return _with_temperature(settings)

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        beta, length = settings.get("llama_4_scaling_beta"), settings.get("temperature_length")
        scaling = settings.get("rope_scaling") or {}
        if rope_kind(scaling) != "yarn" or (beta and length != scaling["original_max_position_embeddings"]):
            raise FormatError(
                "scales queries otherwise than any Mistral 4",
                part=f"{self.architecture}.attention.temperature_length",
                code=ErrorCode.CONTRADICTION,
                expected="YaRN, and its original_context_length",
                found=length,
            )
        return _with_temperature({**settings, "rope_scaling": {**scaling, "llama_4_scaling_beta": beta or 0.0}})


class MistralLarge3(Mistral4):
    """Mistral Large 3, whose GGUF files are those of DeepSeek; its folders are Mistral 4's, which computes the same."""

    architecture = "deepseek2"

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        if settings["gating_function"] != SOFTMAX:
            raise FormatError(
                "is not the gating function of any Mistral Large 3",
                part=f"{self.architecture}.expert_gating_func",
                code=ErrorCode.CONTRADICTION,
                expected=SOFTMAX,
                found=settings["gating_function"],
            )
        return {**settings, "model_type": self.model_type, "architectures": [self.class_name]}


def _with_temperature(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, with those of YaRN where every engine reads them."""
    scaling = settings.get("rope_scaling")
    if not isinstance(scaling, dict):
        return dict(settings)
    rotated, whole = settings["qk_rope_head_dim"], settings["whole_key_size"]
    scaling = {**scaling, "partial_rotary_factor": rotated / whole}
    parameters = {**scaling, "rope_theta": settings.get("rope_theta", 10000.0)}
    length = scaling.get("original_max_position_embeddings")
    beta = scaling.get("llama_4_scaling_beta") or None
    return {
        **settings, "rope_scaling": scaling, "rope_parameters": parameters, "llama_4_scaling_beta": beta,
        "temperature_length": length if beta else None,
    }  # fmt: skip
