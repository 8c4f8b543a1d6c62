"""How folder engines differ: the files that they open, their tensor names, and their biases."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

ATTENTION = tuple(f"model.layers.{{n}}.self_attn.{name}_proj.bias" for name in "qkvo")
MLP = tuple(f"model.layers.{{n}}.mlp.{name}_proj.bias" for name in ("gate", "up", "down"))
LATENT = tuple(f"model.layers.{{n}}.self_attn.{name}.bias" for name in ("kv_a_proj_with_mqa", "o_proj"))
STARCODER = (*ATTENTION, *(f"model.layers.{{n}}.mlp.{name}.bias" for name in ("c_fc", "c_proj")))
ALWAYS = ""
Biases = Mapping[str, Mapping[str, tuple[str, ...]]]
"""`model_type` -> setting that requires them, or ALWAYS -> biases of a layer."""
NEWER: Biases = {
    "qwen2_moe": {ALWAYS: ATTENTION[:3]},
    "phi": {ALWAYS: ATTENTION[:3]},
    "stablelm": {"use_qkv_bias": ATTENTION[:3]},
    "glm4_moe": {"attention_bias": ATTENTION[:3]},
    "seed_oss": {"attention_bias": ATTENTION[:3], "attention_out_bias": ATTENTION[3:], "mlp_bias": MLP},
    "smollm3": {"attention_bias": ATTENTION, "mlp_bias": MLP},
    "ernie4_5": {"use_bias": (*ATTENTION, *MLP)},
    **{
        kind: {"attention_bias": ATTENTION}
        for kind in ("cohere", "cohere2", "gemma", "granitemoe", "hunyuan_v1_dense", "olmo3", "olmoe")
    },
}
"""Biases that the models of all folder engines have."""


@frozen(kw_only=True)
class FolderEngine:
    """How an engine opens a folder.

    Attributes
    ----------
    id, title
        The engine's id and name.
    weights, index
        Pattern of the weights that it opens without an index, and whether it reads an index.
    prefixes
        `model_type` -> prefixes that its tensors may have, among those that a family knows besides its own.
    required
        `model_type` -> prefixes, one of which each of its tensors must have.
    strict
        Whether a tensor that the model does not have is an error.
    drops_head
        Model types for which it ignores a head that config.json ties.
    takes_head
        Model types for which it uses a stored head, whatever config.json says.
    biases
        Biases that its models have.
    leftovers
        `model_type` -> parts of tensor names that it ignores although it is strict.
    fp8
        Model types whose FP8 weights it reads; None for all.
    """

    id: str
    title: str
    weights: tuple[str, ...]
    index: bool
    strict: bool
    prefixes: Mapping[str, tuple[str, ...]] = field(factory=dict)
    required: Mapping[str, tuple[str, ...]] = field(factory=dict)
    drops_head: frozenset[str] = frozenset()
    takes_head: frozenset[str] = frozenset()
    biases: Biases = field(factory=dict)
    leftovers: Mapping[str, tuple[str, ...]] = field(factory=dict)
    fp8: frozenset[str] | None = None


TRANSFORMERS = FolderEngine(
    id="transformers",
    title="Transformers",
    weights=("model.safetensors",),
    index=True,
    strict=False,
    prefixes={
        **dict.fromkeys(("gemma3", "mistral3"), ("language_model.", "model.language_model.")),
        **dict.fromkeys(
            ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "qwen3_5_moe", "gemma4", "gemma4_unified"),
            ("model.language_model.",),
        ),
        "gpt2": ("wte.", "wpe.", "ln_f.", "h."),
        "kimi_k25": ("language_model.", "model.language_model."),
    },
    takes_head=frozenset(
        ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "granite", "olmo2", "phi3", "glm4", "gpt_oss")
    ),
    biases={
        **{kind: {"attention_bias": ATTENTION, "mlp_bias": MLP} for kind in ("llama", "granite")},
        **{kind: {ALWAYS: ATTENTION[:3]} for kind in ("qwen2", "qwen2_vl", "qwen2_5_vl")},
        **{
            kind: {"attention_bias": ATTENTION}
            for kind in ("qwen3", "qwen3_moe", "gemma2", "gemma3_text", "gemma3", "olmo2", "gpt_oss")
        },
        "glm4": {"attention_bias": ATTENTION[:3]},
        "starcoder2": {"use_bias": STARCODER},
        **NEWER,
        **{kind: {"attention_bias": LATENT} for kind in ("deepseek_v2", "deepseek_v3")},
    },
)
MLX = FolderEngine(
    id="mlx",
    title="mlx-lm",
    weights=("model*.safetensors",),
    index=False,
    strict=True,
    prefixes={
        "gemma3": ("language_model.",),
        **dict.fromkeys(
            ("mistral3", "gemma4", "gemma4_unified"),
            ("language_model.", "model.language_model."),
        ),
        **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "qwen3_5_moe"), ("model.language_model.",)),
        "gpt2": ("wte.", "wpe.", "ln_f.", "h."),
        "kimi_k25": ("language_model.",),
    },
    required={
        "gemma3": ("language_model.",),
        "kimi_k25": ("language_model.",),
        "gpt2": ("h.", "wte.", "wpe.", "ln_f.", "model."),
    },
    drops_head=frozenset(("llama", "mistral", "mixtral", "granite", "qwen2", "qwen3", "qwen3_moe")),
    takes_head=frozenset(("gemma3_text", "gemma3")),
    biases={
        **{kind: {"attention_bias": ATTENTION, "mlp_bias": MLP} for kind in ("llama", "mistral", "granite", "olmo2")},
        **{kind: {ALWAYS: ATTENTION[:3]} for kind in ("qwen2", "qwen2_vl", "qwen2_5_vl")},
        "gpt_oss": {ALWAYS: ATTENTION},
        "glm4": {"attention_bias": ATTENTION[:3]},
        "starcoder2": {ALWAYS: STARCODER},
        **NEWER,
        **{kind: {"attention_bias": LATENT} for kind in ("deepseek_v2", "deepseek_v3")},
    },
    leftovers={
        **dict.fromkeys(("llama", "mistral", "qwen2", "olmo2"), ("self_attn.rotary_emb.inv_freq",)),
        **dict.fromkeys(("qwen2_vl", "qwen2_5_vl"), ("vision_tower.", "self_attn.rotary_emb.inv_freq")),
        "gemma3": ("vision_tower.", "multi_modal_projector."),
        "kimi_k25": ("vision_tower.", "mm_projector."),
    },
    fp8=frozenset(("deepseek_v3",)),
)
FOLDER_ENGINES = {engine.id: engine for engine in (TRANSFORMERS, MLX)}
