"""Nemotron-H and Nemotron 3: each layer is Mamba 2, attention without positions, an MLP, or experts.

Source: llama.cpp, `NemotronHModel` in conversion/nemotron.py and src/models/nemotron-h.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Model, Rule, Stack

from ..config.keys import SIZES, SIZES_LIST, Key
from ..declared import KINDS, Layers
from ..layer_kinds import LayerKinds
from ..settings import TextSettings
from ..tables import Row
from .hybrid import ATTENTION, GROUPS, HEAD_SIZE, HEADS, MAMBA, STATE, TAPS, USUAL, Mamba2Layers, mamba2, state_keys

NAMES = {
    HEADS: "mamba_num_heads", HEAD_SIZE: "mamba_head_dim", GROUPS: "n_groups", STATE: "ssm_state_size",
    TAPS: "conv_kernel",
}  # fmt: skip
MLP, MOE, LATENT = "mlp", "moe", "latent"
BACKBONE = "backbone.layers.{n}."
EMBEDDINGS, SIZE, SHARED = "backbone.embeddings", "moe_intermediate_size", "moe_shared_expert_intermediate_size"
WIDTH, LATENT_SIZE = "expert_width", "moe_latent_size"
KIND_NAMES = {
    MAMBA: ("M", "linear_attention", MAMBA), ATTENTION: ("*", "full_attention", ATTENTION),
    MLP: ("-", MLP), MOE: ("E", MOE),
}  # fmt: skip


def _row(hf: str, gguf: str, shape: tuple[str, ...], kind: str | tuple[str, ...], **fields: Any) -> Row:
    return Row(f"mixer.{hf}", gguf, shape, kind=kind, **fields)


def _rows(*more: Row) -> tuple[Row, ...]:
    in_layers = (
        Row("norm", "attn_norm", ("hidden_size",)),
        *mamba2("mixer"),
        _row("q_proj", "attn_q", ("q_rows", "hidden_size"), ATTENTION, permute="num_attention_heads"),
        _row("k_proj", "attn_k", ("kv_rows", "hidden_size"), ATTENTION, permute="num_key_value_heads"),
        _row("v_proj", "attn_v", ("kv_rows", "hidden_size"), ATTENTION),
        _row("o_proj", "attn_output", ("hidden_size", "q_rows"), ATTENTION),
        *more,
    )
    return (
        Row(EMBEDDINGS, "token_embd", ("vocab_size", "hidden_size"), top=True),
        Row("backbone.norm_f", "output_norm", ("hidden_size",), top=True),
        Row("lm_head", "output", ("vocab_size", "hidden_size"), tied_to=f"{EMBEDDINGS}.weight", top=True),
        *(evolve(row, layer=BACKBONE) for row in in_layers),
    )


class NemotronH(Mamba2Layers):
    """Nemotron-H and Nemotron Nano 2: MLPs, and no experts."""

    model_type, architecture, class_name = "nemotron_h", "nemotron_h", "NemotronHForCausalLM"
    rows = _rows(
        _row("up_proj", "ffn_up", ("intermediate_size", "hidden_size"), MLP),
        _row("down_proj", "ffn_down", ("hidden_size", "intermediate_size"), MLP),
    )
    more: ClassVar[Mapping[str, Sequence[Rule]]] = {}
    keys: ClassVar[Sequence[Key]] = (
        *(key for key in SIZES if key.hf in ("max_position_embeddings", "hidden_size", "num_hidden_layers")),
        *(key for key in SIZES if key.hf in ("num_attention_heads", "head_dim")),
        Key("layer_norm_epsilon", "attention.layer_norm_epsilon", "f32"),
        Key("kv_heads", "attention.head_count_kv", SIZES_LIST),
        Key("ff_sizes", "feed_forward_length", SIZES_LIST),
        *state_keys(NAMES),
    )
    own_names: ClassVar = NAMES
    fixed: ClassVar = {
        "use_conv_bias": True, "mamba_proj_bias": False, "use_bias": False, "mlp_bias": False,
        "attention_bias": False, "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu", "sliding_window": None,
    }  # fmt: skip
    unstated: ClassVar = {"layer_norm_epsilon": 1e-5}
    derived = (*TextSettings.derived, *USUAL, KINDS, "ff_sizes", WIDTH, "rope_theta", "rope_scaling")
    predicting = "num_nextn_predict_layers"
    other_modalities: ClassVar[Sequence[str]] = ("mtp.*",)
    prefixes: ClassVar = {"model.layers.": "backbone.layers."}
    by_layer = LayerKinds(
        names={kind: KIND_NAMES[kind] for kind in (MAMBA, ATTENTION, MLP)},
        setting="hybrid_override_pattern",
        lists=("layers_block_type", "layer_types"),
        counts={"kv_heads": ("num_key_value_heads", ATTENTION), "ff_sizes": ("intermediate_size", MLP)},
    )

    def fits(self, config: Mapping[str, Any]) -> bool:
        lists = [config.get(name) for name in (self.by_layer.setting, *self.by_layer.lists)]
        return not any(name in kinds for kinds in lists if isinstance(kinds, (str, list)) for name in KIND_NAMES[MOE])

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        head = {"head_dim": config["attention_head_dim"]} if "attention_head_dim" in config else {}
        return super().spelled({**head, **config})


class NemotronHMoe(NemotronH):
    """Nemotron 3: experts without gates, in a space of their own in some models, and a shared one."""

    architecture = "nemotron_h_moe"
    rows = _rows(
        _row("gate", "ffn_gate_inp", ("experts", "hidden_size"), MOE, f32=True),
        _row("gate.e_score_correction_bias", "exp_probs_b", ("experts",), MOE, suffix="", gguf_suffix=".bias"),
        _row("experts.{e}.up_proj", "ffn_up_exps", (SIZE, WIDTH), MOE),
        _row("experts.{e}.down_proj", "ffn_down_exps", (WIDTH, SIZE), MOE),
        _row("shared_experts.up_proj", "ffn_up_shexp", (SHARED, "hidden_size"), MOE),
        _row("shared_experts.down_proj", "ffn_down_shexp", ("hidden_size", SHARED), MOE),
        _row("fc1_latent_proj", "ffn_latent_down", (LATENT_SIZE, "hidden_size"), (MOE, LATENT)),
        _row("fc2_latent_proj", "ffn_latent_up", ("hidden_size", LATENT_SIZE), (MOE, LATENT)),
    )
    more: ClassVar[Mapping[str, Sequence[Rule]]] = {
        "mlx": tuple(
            Rule(f"{BACKBONE}mixer.switch_mlp.{ours}.weight", Stack(f"{BACKBONE}mixer.experts.{{e}}.{name}.weight"))
            for ours, name in (("fc1", "up_proj"), ("fc2", "down_proj"))
        ),
    }
    keys: ClassVar[Sequence[Key]] = (
        *NemotronH.keys,
        Key("n_routed_experts", "expert_count"),
        Key("num_experts_per_tok", "expert_used_count"),
        Key(SIZE, "expert_feed_forward_length"),
        Key(SHARED, "expert_shared_feed_forward_length"),
        Key("n_shared_experts", "expert_shared_count"),
        Key("norm_topk_prob", "expert_weights_norm", "bool"),
        Key("routed_scaling_factor", "expert_weights_scale", "f32"),
        Key("n_group", "expert_group_count", required=False),
        Key("topk_group", "expert_group_used_count", required=False),
        Key(LATENT_SIZE, "moe_latent_size", required=False),
    )
    fixed: ClassVar = {**NemotronH.fixed, "n_shared_experts": 1}
    kinds: ClassVar[Mapping[str, Layers]] = {LATENT: Layers(when=LATENT_SIZE)}
    by_layer = evolve(
        NemotronH.by_layer,
        names={kind: KIND_NAMES[kind] for kind in (MAMBA, ATTENTION, MOE)},
        counts={**NemotronH.by_layer.counts, "ff_sizes": (SIZE, MOE)},
    )

    def fits(self, config: Mapping[str, Any]) -> bool:
        return not super().fits(config)

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled(config)  # mlx-lm needs the size of a dense layer, though there is none
        return {"intermediate_size": settings.get(SIZE), **settings}

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        return {"intermediate_size": settings[SIZE], **settings}

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        latent = settings.get(LATENT_SIZE) or 0
        return super().sizes({**settings, LATENT_SIZE: latent, WIDTH: latent or settings["hidden_size"]})
