"""DeepSeek 2 and 3: latent attention, a few dense layers, then experts beside shared ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Interleave, Model, Rule, Transpose

from squish_core.api import ErrorCode, FormatError

from ..config.keys import SIZES, VOCABULARY, Key
from ..config.rope import rope_kind
from ..config.spelling import BEHIND, all_layers
from ..declared import Declared
from ..rules import fused_experts, fused_gguf_experts, stacked_experts
from ..settings import CONFIG
from ..tables import BLOCK, LAYER, SWITCH, Row, embeddings, experts, gated_mlp, norm, prediction, router

DENSE, EXPERTS = "dense", "experts"
ATTENTION = f"{LAYER}self_attn."
KEYS, VALUES = f"{ATTENTION}k_b_proj.weight", f"{ATTENTION}v_b_proj.weight"
FUSED = Interleave(((KEYS, "qk_nope_head_dim"), (VALUES, "v_head_dim")), axes=2)
"""Hugging Face alternates key and value rows by head; llama.cpp multiplies queries with the transposed keys."""
SOFTMAX, SIGMOID = 1, 2
"""Ids of llama.cpp's gating functions."""
SIGMOIDS = ("deepseek_v3", "glm4_moe_lite", "deepseek_v32", "glm_moe_dsa", "kimi_k2", "kimi_k25")
"""Model types that weigh each expert by itself."""
SCALES = {
    "deepseek_v2": 1.0, "deepseek_v3": 2.5, "glm4_moe_lite": 1.8, "deepseek_v32": 2.5, "glm_moe_dsa": 2.5,
}  # fmt: skip
"""Transformers' `routed_scaling_factor` if config.json does not state it; llama.cpp does not scale then."""
SCORES = {SOFTMAX: "softmax", SIGMOID: "sigmoid"}
FUSED_RULE = (Rule(f"{ATTENTION}kv_b_proj.weight", FUSED),)
ABSENT = {"first_k_dense_replace": 0, "norm_topk_prob": False, "n_group": 1, "topk_group": 1}
"""Values that llama.cpp assumes for absent keys, for which folder engines have other defaults."""
LITE = (26, 27)
"""Numbers of layers for which llama.cpp expects no query rank; otherwise it requires one, or 0."""
STACKED = stacked_experts("mlp", "switch_mlp", zip(SWITCH, SWITCH), reading=False)
LATENT = (
    Key("latent_heads", "attention.head_count_kv"),
    Key("latent_key_size", "attention.key_length"),
    Key("latent_value_size", "attention.value_length"),
    Key("whole_key_size", "attention.key_length_mla", required=False),
    Key("v_head_dim", "attention.value_length_mla", required=False),
    Key("kv_lora_rank", "attention.kv_lora_rank"),
    Key("query_rank", "attention.q_lora_rank", required=False),
)
"""Attention sizes: GGUF has one head of keys and values, the latent one."""
MIXTURE = (
    Key("first_k_dense_replace", "leading_dense_block_count", required=False),
    Key("n_routed_experts", "expert_count"),
    Key("num_experts_per_tok", "expert_used_count"),
    Key("n_shared_experts", "expert_shared_count"),
    Key("moe_intermediate_size", "expert_feed_forward_length"),
    Key("routed_scaling_factor", "expert_weights_scale", "f32", required=False),
    Key("norm_topk_prob", "expert_weights_norm", "bool", required=False),
    Key("gating_function", "expert_gating_func", required=False),
    Key("n_group", "expert_group_count", required=False),
    Key("topk_group", "expert_group_used_count", required=False),
)


def _of_experts(rows: Sequence[Row]) -> tuple[Row, ...]:
    return tuple(evolve(row, kind=EXPERTS) for row in rows)


class Deepseek(Declared):
    """DeepSeek 2, 2-Lite and 3; GGUF tells them apart by the gating function."""

    model_type, architecture, class_name = "deepseek_v2", "deepseek2", "DeepseekV2ForCausalLM"
    rows = (
        *embeddings(),
        norm("input_layernorm", "attn_norm"),
        Row("self_attn.q_proj", "attn_q", ("q_rows", "hidden_size")),
        Row("self_attn.q_a_proj", "attn_q_a", ("q_lora_rank", "hidden_size")),
        norm("self_attn.q_a_layernorm", "attn_q_a_norm", size="q_lora_rank"),
        Row("self_attn.q_b_proj", "attn_q_b", ("q_rows", "q_lora_rank")),
        Row("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa", ("kv_a_rows", "hidden_size")),
        norm("self_attn.kv_a_layernorm", "attn_kv_a_norm", size="kv_lora_rank"),
        Row(
            "self_attn.k_b_proj", "attn_k_b", ("num_attention_heads", "qk_nope_head_dim", "kv_lora_rank"),
            transpose=True,
        ),
        Row("self_attn.v_b_proj", "attn_v_b", ("num_attention_heads", "v_head_dim", "kv_lora_rank")),
        Row("self_attn.o_proj", "attn_output", ("hidden_size", "v_rows")),
        norm("post_attention_layernorm", "ffn_norm"),
        *(evolve(row, kind=DENSE) for row in gated_mlp()),
        *_of_experts((
            router("mlp.gate"),
            Row("mlp.gate.e_score_correction_bias", "exp_probs_b", ("experts",), suffix="", gguf_suffix=".bias"),
            *experts("mlp", *SWITCH, "moe_intermediate_size"),
            Row("mlp.shared_experts.gate_proj", "ffn_gate_shexp", ("shared_size", "hidden_size")),
            Row("mlp.shared_experts.up_proj", "ffn_up_shexp", ("shared_size", "hidden_size")),
            Row("mlp.shared_experts.down_proj", "ffn_down_shexp", ("hidden_size", "shared_size")),
        )),
        *prediction(),
    )  # fmt: skip
    predicting = "num_nextn_predict_layers"
    more: ClassVar = {
        "gguf": (
            Rule(f"{BLOCK}attn_kv_b.weight", FUSED, reading=True),
            *fused_gguf_experts("mlp", *SWITCH[:2], "moe_intermediate_size"),
        ),
        "hf": (*FUSED_RULE, *fused_experts("mlp", *SWITCH, "moe_intermediate_size")),
        "mlx": (
            *FUSED_RULE, *STACKED,
            Rule(f"{ATTENTION}embed_q.weight", Transpose(KEYS), reading=True),
            Rule(f"{ATTENTION}unembed_out.weight", VALUES, reading=True),
        ),
        "uqff": (*FUSED_RULE, *stacked_experts("mlp", "experts", zip(SWITCH, SWITCH), reading=False)),
    }  # fmt: skip
    keys: ClassVar[Sequence[Key]] = (
        *(key for key in SIZES if key.hf not in ("num_key_value_heads", "head_dim")),
        Key("rms_norm_eps", "attention.layer_norm_rms_epsilon", "f32"),
        *LATENT, *MIXTURE, VOCABULARY,
        Key("yarn_log_multiplier", "rope.scaling.yarn_log_multiplier", "f32", required=False),
    )  # fmt: skip
    fixed: ClassVar = {"hidden_act": "silu", "moe_layer_freq": 1, "rope_interleave": True, "attention_bias": False}
    derived = (
        *Declared.derived, BEHIND, "latent_heads", "latent_key_size", "latent_value_size", "whole_key_size",
        "query_rank", "gating_function", "yarn_log_multiplier", "mlp_bias", "head_dim", "repeated",
    )  # fmt: skip

    unadapted: ClassVar[Sequence[str]] = ("q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "lm_head")

    def layer_kinds(self, settings: Mapping[str, Any]) -> Sequence[str]:
        dense = settings["first_k_dense_replace"] or 0
        return [DENSE if layer < dense else EXPERTS for layer in range(all_layers(settings))]

    def absent(self, settings: Mapping[str, Any]) -> Collection[str]:
        attention = ("q_a_proj", "q_a_layernorm", "q_b_proj") if not settings.get("q_lora_rank") else ("q_proj",)
        names = [f"self_attn.{name}.weight" for name in attention]
        if settings["gating_function"] == SOFTMAX:
            names.append("mlp.gate.e_score_correction_bias")
        layers = range(all_layers(settings))
        return {*super().absent(settings), *(f"model.layers.{layer}.{name}" for layer in layers for name in names)}

    def left_out(self, settings: Mapping[str, Any]) -> Collection[str]:
        return [*super().left_out(settings), *settings.get("repeated", ())]

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        heads, latent = settings["num_attention_heads"], settings["kv_lora_rank"]
        rotated, unrotated, values = (settings[key] for key in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
        own = {
            "q_lora_rank": settings.get("q_lora_rank") or 0,
            "kv_lora_rank": latent,
            "q_rows": heads * (unrotated + rotated),
            "kv_a_rows": latent + rotated,
            "v_rows": heads * values,
            "qk_nope_head_dim": unrotated,
            "v_head_dim": values,
            "shared_size": settings["moe_intermediate_size"] * settings["n_shared_experts"],
        }
        return super().sizes({**settings, **own}) | own

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled(config)
        for name in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "kv_lora_rank"):
            if type(settings.get(name)) is not int or settings[name] < 1:
                raise FormatError(
                    f"has no {name}, and the model cannot be run without it",
                    part=CONFIG,
                    code=ErrorCode.CONFIG,
                    expected="a size",
                    found=repr(settings.get(name))[:60],
                )
        rotated, latent = settings["qk_rope_head_dim"], settings["kv_lora_rank"]
        settings |= {
            "latent_heads": 1, "latent_key_size": latent + rotated, "latent_value_size": latent,
            "whole_key_size": settings["qk_nope_head_dim"] + rotated, "head_dim": rotated,
            "query_rank": settings.get("q_lora_rank") or (None if settings.get("num_hidden_layers") in LITE else 0),
            "gating_function": SIGMOID if settings.get("model_type") in SIGMOIDS else SOFTMAX,
        }  # fmt: skip
        settings["num_key_value_heads"] = settings.get("num_attention_heads")
        kinds = settings.get("mlp_layer_types")
        if settings.get("first_k_dense_replace") is None:
            settings["first_k_dense_replace"] = [*kinds, "sparse"].index("sparse") if isinstance(kinds, list) else 0
        if settings.get("routed_scaling_factor") is None and settings.get("model_type") in SCALES:
            settings["routed_scaling_factor"] = SCALES[settings["model_type"]]
        settings.setdefault("norm_topk_prob", settings["gating_function"] == SIGMOID)
        for name in ("n_group", "topk_group"):  # mistral.rs does not read null
            settings[name] = 1 if settings.get(name) is None else settings[name]
        if rope_kind(settings.get("rope_scaling")) == "yarn":  # mistral.rs needs `type`
            settings["rope_scaling"] = {"type": "yarn", **settings["rope_scaling"]}
        multiplier = _scale(settings, "mscale_all_dim")
        return settings | ({"yarn_log_multiplier": 0.1 * multiplier} if multiplier else {})

    def check_for_folder(self, settings: Mapping[str, Any]) -> None:
        super().check_for_folder(settings)
        if _scales_otherwise(settings):
            raise FormatError(
                "has a scaling with which llama.cpp scales attention by a factor that no other engine applies",
                part=f"{self.architecture}.rope.scaling.yarn_log_multiplier",
                code=ErrorCode.ROPE,
                expected="yarn with this multiplier",
                found=repr(settings["rope_scaling"])[:120],
            )

    def check_for_gguf(self, settings: Mapping[str, Any]) -> None:
        super().check_for_gguf(settings)
        scaling = settings.get("rope_scaling")
        if _scales_otherwise(settings):
            raise FormatError(
                "has a rope_scaling without mscale_all_dim, under which llama.cpp scales attention otherwise",
                part=CONFIG,
                code=ErrorCode.ROPE,
                expected="yarn with a mscale_all_dim",
                found=repr(scaling)[:120],
            )
        if _scale(settings, "mscale") != _scale(settings, "mscale_all_dim"):
            raise FormatError(
                "has a mscale that differs from mscale_all_dim, for which GGUF has no key",
                part=CONFIG,
                code=ErrorCode.ROPE,
                expected=_scale(settings, "mscale_all_dim"),
                found=_scale(settings, "mscale"),
            )
        score = settings.get("scoring_func", SCORES[settings["gating_function"]])
        if score != SCORES[settings["gating_function"]]:
            raise FormatError(
                "has a scoring_func of another model type",
                part=CONFIG,
                code=ErrorCode.CONFIG,
                expected=SCORES[settings["gating_function"]],
                found=repr(score)[:60],
            )

    def ignored(self, settings: Mapping[str, Any], layout: str) -> tuple[str, ...]:
        notes = super().ignored(settings, layout)
        if layout == "gguf" and settings["gating_function"] == SOFTMAX and (settings.get("n_group") or 1) > 1:
            return (*notes, "llama.cpp ranks groups of experts by their two best ones, DeepSeek 2 by the best one")
        return notes

    def _missing(self, key: str, why: str) -> FormatError:
        return FormatError(f"is missing, {why}", part=f"{self.architecture}.{key}", code=ErrorCode.CONFIG)

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        heads, rotated = settings["num_attention_heads"], settings["rotary_dim"]
        is_split = all(settings.get(name) is not None for name in ("whole_key_size", "v_head_dim"))
        key_size = settings["whole_key_size"] if is_split else settings["latent_key_size"]
        if not is_split and any(name.endswith(".attn_k_b.weight") for name in model.tensors):
            raise self._missing("attention.key_length_mla", "although keys and values are separate tensors")
        if (settings.get("n_group") or 1) > 1 and settings.get("topk_group") is None:
            raise self._missing("expert_group_used_count", "although experts are in groups")
        gating = settings["gating_function"] = settings.get("gating_function") or SOFTMAX
        if key_size <= rotated or gating not in SCORES:
            raise FormatError(
                "does not fit the other keys",
                part=f"{self.architecture}.attention.key_length_mla",
                code=ErrorCode.CONTRADICTION,
                expected=f"more than {rotated} rotated rows, and a known gating function",
                found=f"{key_size}, gating function {gating}",
            )
        for name, default in ABSENT.items():
            settings.setdefault(name, default)
        settings["q_lora_rank"] = settings.get("query_rank") or None
        settings.pop("partial_rotary_factor", None)
        # ik_llama.cpp stores the whole matrix beside the two that are derived from it
        settings["repeated"] = [
            name
            for name in model.tensors
            if name.endswith(".attn_kv_b.weight")
            and all(name.replace("kv_b", part) in model.tensors for part in ("k_b", "v_b"))
        ]
        version = 3 if gating == SIGMOID else 2
        own = self.architecture != Deepseek.architecture
        name, class_name = f"deepseek_v{version}", f"DeepseekV{version}ForCausalLM"
        is_grouped = (settings.get("n_group") or 1) > 1
        settings |= {
            "model_type": self.model_type if own else name,
            "architectures": [self.class_name if own else class_name],
            "num_key_value_heads": heads, "head_dim": rotated, "qk_rope_head_dim": rotated,
            "qk_nope_head_dim": key_size - rotated, "attention_bias": False, "scoring_func": SCORES[gating],
            "v_head_dim": settings["v_head_dim"] if is_split else settings["latent_value_size"],
            "topk_method": "noaux_tc" if gating == SIGMOID else "group_limited_greedy" if is_grouped else "greedy",
        }  # fmt: skip
        multiplier = settings.get("yarn_log_multiplier")
        if multiplier and rope_kind(settings.get("rope_scaling")) == "yarn":
            scale = round(10 * multiplier, 6)
            settings["rope_scaling"] = {**settings["rope_scaling"], "mscale": scale, "mscale_all_dim": scale}
        return settings


def _scales_otherwise(settings: Mapping[str, Any]) -> bool:
    """Return whether llama.cpp scales attention although Transformers does not."""
    kind = rope_kind(settings.get("rope_scaling"))
    return kind == "linear" or (kind == "yarn" and not _scale(settings, "mscale_all_dim"))


def _scale(settings: Mapping[str, Any], name: str) -> float:
    """Return a factor of YaRN's attention, or 0 if there is none."""
    scaling = settings.get("rope_scaling")
    value = scaling.get(name) if isinstance(scaling, Mapping) and rope_kind(scaling) == "yarn" else None
    return value if isinstance(value, (int, float)) else 0
