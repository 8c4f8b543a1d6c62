"""Qwen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Carried, Model, Rule, Stack, Transpose

from squish_core.api import ErrorCode, FormatError, Options

from ..config.keys import COMMON, MIXTURE, SIZES_LIST, Key, shortest
from ..config.rope import DYNAMIC, rope_kind
from ..config.spelling import THINKER, text_config
from ..family import TextModel
from ..reranking import SCORES, check_scores, with_scores
from ..rules import expert_matrices, fused_attention, fused_experts, fused_gguf_experts, stacked_experts
from ..settings import BARE, CONFIG
from ..tables import LAYER, SWITCH, attention, experts, gated_mlp, head_norms, norm, pre_norm_model, router


class Qwen2(TextModel):
    """Qwen 2 and 2.5: biases on queries, keys and values."""

    model_type, architecture, class_name = "qwen2", "qwen2", "Qwen2ForCausalLM"
    rows = pre_norm_model(attention(), gated_mlp())
    more: ClassVar[Mapping[str, Sequence[Rule]]] = {"gguf": fused_attention(permute=False)}
    keys: ClassVar[Sequence[Key]] = COMMON
    fixed: ClassVar = {"hidden_act": "silu", "use_sliding_window": False}


class Qwen2VL(Qwen2):
    """The text part of Qwen 2 and 2.5 VL: Qwen 2, since the three positions of a token are equal in text."""

    architecture = "qwen2vl"
    keys: ClassVar[Sequence[Key]] = (
        *COMMON,
        Key("mrope_section", "rope.dimension_sections", SIZES_LIST, required=False),
    )
    unstated: ClassVar[Mapping[str, Any]] = {"rope_theta": 1000000.0}
    other_modalities: ClassVar[Sequence[str]] = ("visual.*", "model.visual.*")
    prefixes: ClassVar = {**BARE, "model.language_model.": "model."}

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        text_settings = text_config(config)
        rope = text_settings.get("rope_parameters") or text_settings.get("rope_scaling")
        sections = rope.get("mrope_section") if isinstance(rope, dict) else None
        padded = [*sections, 0, 0, 0, 0][:4] if isinstance(sections, list) else sections
        return {**super().spelled(config), "mrope_section": padded}

    def check_for_gguf(self, settings: Mapping[str, Any]) -> None:
        super().check_for_gguf(settings)
        if settings.get("mrope_section") is None:
            raise FormatError(
                "has no mrope_section, which llama.cpp requires",
                part=f"{CONFIG} rope_scaling",
                code=ErrorCode.CONFIG,
            )


class Qwen3(Qwen2):
    """Qwen 3: norms of queries and keys."""

    model_type, architecture, class_name = "qwen3", "qwen3", "Qwen3ForCausalLM"
    rows = pre_norm_model((*attention(), *head_norms()), gated_mlp())
    biases: ClassVar = {"attention_bias": ("q_proj", "k_proj", "v_proj", "o_proj")}
    layer_counts: ClassVar[Sequence[str]] = ("max_window_layers",)
    leftovers: ClassVar[Sequence[str]] = (*Qwen2.leftovers, SCORES)

    def carry(self, model: Model, settings: Mapping[str, Any], layout: str, options: Options) -> Carried:
        check_scores(self.architecture, model, layout)
        return with_scores(self.architecture, model, super().carry(model, settings, layout, options), layout)


class Qwen3VL(Qwen2VL):
    """The text part of Qwen 3 VL. GGUF states how many of its layers receive image features."""

    model_type, architecture, class_name = "qwen3", "qwen3vl", "Qwen3ForCausalLM"
    rows = Qwen3.rows
    keys = (*Qwen2VL.keys, Key("deepstack_layers", "n_deepstack_layers", required=False))
    derived = (*Qwen2VL.derived, "deepstack_layers")
    unstated: ClassVar = {"rope_theta": 500000.0}
    layer_counts = Qwen3.layer_counts

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        vision = config.get("vision_config")
        indexes = vision.get("deepstack_visual_indexes") if isinstance(vision, dict) else None
        return {**super().spelled(config), "deepstack_layers": len(indexes) if isinstance(indexes, list) else None}


class HunyuanDense(Qwen3):
    """The dense models of HunYuan 1: norms after RoPE, whose base grows by a power of a fixed `alpha`."""

    model_type, architecture, class_name = "hunyuan_v1_dense", "hunyuan-dense", "HunYuanDenseV1ForCausalLM"
    rows = pre_norm_model(
        (
            *attention(),
            norm("self_attn.query_layernorm", "attn_q_norm", size="head_dim"),
            norm("self_attn.key_layernorm", "attn_k_norm", size="head_dim"),
        ),
        gated_mlp(),
    )
    keys = tuple(evolve(key, hf="freq_base") if key.hf == "rope_theta" else key for key in COMMON)
    fixed: ClassVar = {"hidden_act": "silu", "use_qk_norm": True}
    derived = (*Qwen3.derived, "freq_base")
    layer_counts = ()

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled(config)
        scaling, size = settings.get("rope_scaling") or {}, settings.get("head_dim") or _quotient(settings)
        theta, alpha = settings.get("rope_theta", 10000.0), scaling.get("alpha")
        if rope_kind(scaling) == DYNAMIC and alpha:
            numbers = (theta, alpha, size)
            if not all(isinstance(each, (int, float)) and each > 0 for each in numbers) or size <= 2:
                raise FormatError(
                    "has an alpha without a usable rope_theta and head_dim",
                    part=f"{CONFIG} rope_scaling",
                    code=ErrorCode.ROPE,
                    expected="positive numbers",
                    found=str(numbers)[:60],
                )
            theta = _grown(theta, alpha, size)
            others = {key: value for key, value in scaling.items() if key not in ("type", "rope_type")}
            # mlx-lm needs `type`; mistral.rs rejects a config.json with both names.
            settings["rope_scaling"] = {"type": DYNAMIC, **others}
        return {**settings, "freq_base": theta}

    def ignored(self, settings: Mapping[str, Any], layout: str) -> tuple[str, ...]:
        scaling = settings.get("rope_scaling") or {}
        return super().ignored({**settings, "rope_scaling": None} if scaling.get("alpha") else settings, layout)

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        base, size = settings["freq_base"], settings["head_dim"]
        alpha = round((base / 10000.0) ** ((size - 2) / size), 3) if size > 2 else 1.0
        if alpha == 1 or shortest(_grown(10000.0, alpha, size)) != base:
            return {**settings, "rope_theta": base}
        scaling = {"type": DYNAMIC, "alpha": alpha, "factor": 1.0}
        return {**settings, "rope_theta": 10000.0, "rope_scaling": scaling}


def _quotient(settings: Mapping[str, Any]) -> int:
    """Return the size of heads as wide together as the embeddings; 0 without the two numbers."""
    width, heads = (settings.get(name) for name in ("hidden_size", "num_attention_heads"))
    return width // heads if type(width) is type(heads) is int and heads > 0 else 0


def _grown(theta: float, alpha: float, size: int) -> float:
    """Return the RoPE base for heads of a size, with an `alpha`."""
    return float(theta * alpha ** (size / (size - 2)))


class Qwen3Moe(Qwen3):
    """Qwen 3 with experts."""

    model_type, architecture, class_name = "qwen3_moe", "qwen3moe", "Qwen3MoeForCausalLM"
    rows = pre_norm_model(
        (*attention(), *head_norms()), (router("mlp.gate"), *experts("mlp", *SWITCH, "moe_intermediate_size"))
    )
    more: ClassVar = {
        "gguf": (
            *fused_attention(permute=False), *fused_gguf_experts("mlp", *SWITCH[:2], "moe_intermediate_size"),
        ),
        "hf": fused_experts("mlp", *SWITCH, "moe_intermediate_size"),
        "mlx": stacked_experts("mlp", "switch_mlp", zip(SWITCH, SWITCH), reading=False),
        "uqff": stacked_experts("mlp", "experts", zip(SWITCH, SWITCH), reading=False),
    }  # fmt: skip
    keys: ClassVar[Sequence[Key]] = (
        *COMMON,
        *MIXTURE["num_experts"],
        Key("moe_intermediate_size", "expert_feed_forward_length"),
    )
    fixed: ClassVar = {**Qwen2.fixed, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
    unstated: ClassVar = {"norm_topk_prob": False}

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)  # no layer is dense, so files may leave out the size of dense ones
        return {**settings, "intermediate_size": settings["intermediate_size"] or settings["moe_intermediate_size"]}


class Qwen3VLMoe(Qwen3VL, Qwen3Moe):
    """The text part of Qwen 3 VL with experts: as [in, out] in the published models, as [out, in] where Transformers
    has saved them; and of Qwen 3 Omni, whose experts are apart and whose other parts lie beside the one that thinks."""

    model_type, architecture, class_name = "qwen3_moe", "qwen3vlmoe", "Qwen3MoeForCausalLM"
    rows = Qwen3Moe.rows
    more: ClassVar = {
        **Qwen3Moe.more,
        "hf": fused_experts("mlp", *SWITCH, "moe_intermediate_size", either_way=True),
    }
    keys = (*Qwen3VL.keys, *Qwen3Moe.keys[len(COMMON) :])
    fixed: ClassVar = Qwen3Moe.fixed
    unstated: ClassVar = {"norm_topk_prob": True}
    other_modalities: ClassVar[Sequence[str]] = (
        *Qwen3VL.other_modalities, "thinker.visual.*", "thinker.audio_tower.*", "talker.*", "code2wav.*",
    )  # fmt: skip
    prefixes: ClassVar = {**Qwen3VL.prefixes, "thinker.model.": "model.", "thinker.lm_head.": "lm_head."}

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = {**self.unstated, **super().spelled(config)}
        return {**settings, "deepstack_layers": 0} if THINKER in config else settings


class Qwen3VLMoeBesideTower(Qwen3VLMoe):
    """The same in a folder with the tower, where Transformers loads only stacks of experts: [in, out], as published."""

    id = "qwen3vlmoe"
    more: ClassVar = {
        **Qwen3VLMoe.more,
        "hf": tuple(
            Rule(f"{LAYER}mlp.experts.{name}", Stack(Transpose(matrix)))
            for name, matrix in expert_matrices("mlp", *SWITCH, "moe_intermediate_size").items()
        ),
    }


class HunyuanMoe(HunyuanDense):
    """HunYuan 1 with experts beside one that all tokens pass, all as large as a dense layer."""

    model_type, architecture, class_name = "hunyuan_v1_moe", "hunyuan-moe", "HunYuanMoEV1ForCausalLM"
    rows = (
        *(row for row in HunyuanDense.rows if not row.hf.startswith("mlp.")),
        router("mlp.gate.wg"),
        *experts("mlp", *SWITCH, "intermediate_size"),
        *(
            evolve(row, hf=row.hf.replace("mlp.", "mlp.shared_mlp."), gguf=f"{row.gguf}_shexp", bias=False)
            for row in gated_mlp()
        ),
    )
    more: ClassVar = {
        "gguf": (*fused_attention(permute=False), *fused_gguf_experts("mlp", *SWITCH[:2], "intermediate_size")),
        "hf": fused_experts("mlp", *SWITCH, "intermediate_size"),
        "uqff": stacked_experts("mlp", "experts", zip(SWITCH, SWITCH), reading=False),
    }
    keys = (
        *HunyuanDense.keys,
        Key("num_experts", "expert_count"),
        Key("moe_topk", "expert_used_count"),
        Key("intermediate_size", "expert_feed_forward_length"),
        Key("intermediate_size", "expert_shared_feed_forward_length", required=False),
    )
    fixed: ClassVar = {**HunyuanDense.fixed, "num_shared_expert": 1, "use_mixed_mlp_moe": True, "use_cla": False}

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = {**self.fixed, **super().spelled(config)}  # mistral.rs has other defaults
        for name in ("num_experts", "moe_topk", "num_shared_expert", "moe_intermediate_size"):
            values = settings.get(name)  # one for each layer in the published models
            if isinstance(values, list) and values and all(each == values[0] for each in values):
                settings[name] = values[0]
        return settings

    def implied(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**super().implied(settings), "moe_intermediate_size": settings["intermediate_size"]}
