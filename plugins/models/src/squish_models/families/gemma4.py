"""Gemma 4: heads of two sizes, keys that are also values, embeddings and experts in each layer.

More than a table: the sizes of heads, of keys and of the MLP depend on the layer, and E2B and E4B, 26B-A4B, and the
others have different parts of it.

Source: llama.cpp, `Gemma4Model` in conversion/gemma.py and src/models/gemma4.cpp; Transformers, `Gemma4TextConfig`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Join, Model, Rule, Stack, source_names

from squish_core.api import ErrorCode, FormatError

from ..config.keys import COMMON, LAYER_SIZES, SWITCHES_LIST, Key, check_settings
from ..config.rope import FACTORS, GLOBAL_HEAD, SHARE, rope_kind
from ..config.spelling import FULL, PROPORTIONAL, SLIDING, text_config
from ..declared import OTHERS, WINDOW_LAYERS, Declared, Layers, layer_types
from ..rules import fused_attention
from ..settings import BARE, CONFIG, INEXPRESSIBLE, MOST_BLOCKS, WINDOWS
from ..tables import BLOCK, LAYER, SWITCH, Row, attention, embeddings, experts, gated_mlp, head_norms, norm

PER_LAYER, EXPERTS, VALUES = "per_layer", "experts", "values"
"""Kinds of layers: with embeddings of their own, with experts, and with projections of values."""
SHARED, WIDTH, TOKENS = "num_kv_shared_layers", "hidden_size_per_layer_input", "vocab_size_per_layer_input"
NESTED = "model.language_model."
"""How names of text layers begin in the multimodal model."""
GLOBAL_GROUPS, OVERRIDES = "num_global_key_value_heads", "per_layer_config"
DEFAULTS = {
    "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False,
    "attention_k_eq_v": False,
    SHARED: 0,
    "enable_moe_block": False,
    "use_double_wide_mlp": False,
    "final_logit_softcapping": None,
    "sliding_window": 512,
    GLOBAL_HEAD: 512,
    GLOBAL_GROUPS: None,
    WIDTH: 256,
    TOKENS: 262144,
    "tie_word_embeddings": True,
    "rope_parameters": {
        FULL: {"rope_type": PROPORTIONAL, SHARE: 0.25, "rope_theta": 1000000.0},
        SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
    },
}
"""Defaults of Transformers for keys missing in config.json; those of mlx-lm are the settings of E2B."""
UNIFIED = {WIDTH: 0, "sliding_window": 1024}
"""Defaults of the 12B model, which has a type of its own."""
OWN = ("embed_tokens_per_layer", "per_layer_model_projection", "per_layer_projection_norm")
FILLED = ("rope_parameters", "layer_types")
"""Settings whose null means the default."""
COUNT = Key("num_hidden_layers", "")
SWITCHES = ("attention_k_eq_v", "enable_moe_block", "use_double_wide_mlp")
ROUTING = ("num_experts", "top_k_experts", "moe_intermediate_size")
REPLACED = ("intermediate_size", "num_key_value_heads", "head_dim", "rotary_dim")
NUMBERS = (Key("intermediate_size", ""), Key("num_key_value_heads", ""), Key(GLOBAL_HEAD, ""), Key(TOKENS, ""))
"""Settings whose GGUF keys have a value for each layer, or that have none."""
_STACK = f"{LAYER}experts."
_GATE_UP = Stack(Join(tuple((f"{_STACK}{{e}}.{name}.weight", "moe_intermediate_size") for name in SWITCH[:2])))
_STACKS = (
    Rule(f"{_STACK}gate_up_proj", _GATE_UP),
    Rule(f"{_STACK}down_proj", Stack(f"{_STACK}{{e}}.{SWITCH[2]}.weight")),
)


def _experts() -> tuple[Row, ...]:
    rows = (
        Row("router.proj", "ffn_gate_inp", ("num_experts", "hidden_size"), f32=True),
        Row("router.scale", "ffn_gate_inp", ("hidden_size",), suffix="", gguf_suffix=".scale"),
        Row("router.per_expert_scale", "ffn_down_exps", ("num_experts",), suffix="", gguf_suffix=".scale"),
        *(evolve(row, hf=row.hf.removeprefix(".")) for row in experts("", *SWITCH, "moe_intermediate_size")),
        norm("post_feedforward_layernorm_1", "post_ffw_norm_1"),
        norm("post_feedforward_layernorm_2", "post_ffw_norm_2"),
        norm("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
    )
    return tuple(evolve(row, kind=EXPERTS) for row in rows)


def _per_layer() -> tuple[Row, ...]:
    rows = (
        Row(f"model.{OWN[0]}", "per_layer_token_embd", (TOKENS, "per_layer_rows"), top=True),
        Row(f"model.{OWN[1]}", "per_layer_model_proj", ("per_layer_rows", "hidden_size"), top=True),
        norm(f"model.{OWN[2]}", "per_layer_proj_norm", top=True, size=WIDTH),
        Row("per_layer_input_gate", "inp_gate", (WIDTH, "hidden_size")),
        Row("per_layer_projection", "proj", ("hidden_size", WIDTH)),
        norm("post_per_layer_input_norm", "post_norm"),
    )
    return tuple(evolve(row, kind=PER_LAYER) for row in rows)


class Gemma4(Declared):
    """Gemma 4, its text part, of all sizes."""

    model_type, architecture, class_name = "gemma4_text", "gemma4", "Gemma4ForCausalLM"
    mlx_type = "gemma4_text"
    rows = (
        *embeddings(),
        norm("input_layernorm", "attn_norm"),
        *(evolve(row, kind=VALUES if row.gguf == "attn_v" else "") for row in attention(bias=False)),
        *head_norms(),
        norm("post_attention_layernorm", "post_attention_norm"),
        norm("pre_feedforward_layernorm", "ffn_norm"),
        *gated_mlp(),
        norm("post_feedforward_layernorm", "post_ffw_norm"),
        Row("layer_scalar", "layer_output_scale", ("one",), suffix=""),
        *_experts(),
        *_per_layer(),
    )
    more: ClassVar[Mapping[str, Sequence[Rule]]] = {
        "gguf": (*fused_attention(permute=False), Rule(f"{BLOCK}ffn_gate_up_exps.weight", _GATE_UP)),
        "hf": _STACKS,
        "mlx": (
            *(Rule(f"{_STACK}switch_glu.{name}.weight", Stack(f"{_STACK}{{e}}.{name}.weight")) for name in SWITCH),
            *(evolve(rule, reading=True) for rule in _STACKS),
        ),
    }
    keys: ClassVar[Sequence[Key]] = (
        *(key for key in COMMON if key.hf not in REPLACED),
        Key("mlp_sizes", "feed_forward_length", LAYER_SIZES),
        Key("kv_heads", "attention.head_count_kv", LAYER_SIZES),
        Key(GLOBAL_HEAD, "attention.key_length"),
        Key(GLOBAL_HEAD, "attention.value_length"),
        Key(GLOBAL_HEAD, "rope.dimension_count"),
        Key("head_dim", "attention.key_length_swa"),
        Key("head_dim", "attention.value_length_swa"),
        Key("head_dim", "rope.dimension_count_swa"),
        Key("rope_local_base_freq", "rope.freq_base_swa", "f32"),
        Key("sliding_window", "attention.sliding_window"),
        Key(WINDOW_LAYERS, WINDOWS, SWITCHES_LIST),
        Key(SHARED, "attention.shared_kv_layers"),
        Key(WIDTH, "embedding_length_per_layer_input"),
        Key("final_logit_softcapping", "final_logit_softcapping", "f32", required=False),
        Key("num_experts", "expert_count", required=False),
        Key("top_k_experts", "expert_used_count", required=False),
        Key("moe_intermediate_size", "expert_feed_forward_length", required=False),
    )
    fixed: ClassVar = {"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False}
    constants = (FACTORS,)
    by_kind: ClassVar = {"kv_heads": {FULL: GLOBAL_GROUPS, OTHERS: "num_key_value_heads"}}
    kinds: ClassVar = {EXPERTS: Layers(when="enable_moe_block"), PER_LAYER: Layers(when=WIDTH)}
    derived = (
        *Declared.derived,
        WINDOW_LAYERS,
        "mlp_sizes",
        "rope_theta",
        "rope_scaling",
        "rope_local_base_freq",
    )
    rope_by_kind = True
    tied_by_default = True
    windowless = ()
    gemma_tokenizer = True
    merging = "gemma4"
    unadapted = (OWN[1],)
    prefixes: ClassVar = {
        **BARE,
        **{f"{name}.": f"model.{name}." for name in OWN},
        "language_model.lm_head.": "lm_head.",
        **{f"{outer}language_model.{inner}": "model." for outer, inner in (("model.", ""), ("", "model."))},
    }
    other_modalities: ClassVar[Sequence[str]] = tuple(
        f"{prefix}{part}.*"
        for prefix in ("model.", "")
        for part in ("vision_tower", "audio_tower", "embed_vision", "embed_audio", "vision_embedder", "audio_embedder")
    )

    @cached_property
    def names(self) -> Mapping[str, Sequence[Rule]]:  # type: ignore[override]
        names = super().names
        apart = [
            f"{BLOCK}{row.gguf}.weight" for row in self.rows if row.hf.endswith(SWITCH[:2]) and row.kind == EXPERTS
        ]
        gguf = tuple(evolve(rule, reading=rule.reading or rule.name in apart) for rule in names["gguf"])
        return {**names, "gguf": gguf, "uqff": self._nested()}

    def is_for_mlx(self, config: Mapping[str, Any]) -> bool:
        return "text_config" not in config  # whose names mlx-lm and mistral.rs expect with a prefix

    def _nested(self) -> Sequence[Rule]:
        """The names in the multimodal model, which alone mistral.rs reads."""
        stacked = {name for rule in _STACKS for name in source_names(rule.of)}
        names = [each.name for each in self.tensors if each.name.startswith("model.") and each.name not in stacked]
        rules = (*(Rule(name, name) for name in names), *_STACKS)
        nested = (evolve(rule, name=rule.name.replace("model.", NESTED, 1)) for rule in rules)
        return [*nested, *(evolve(rule, reading=True) for rule in _STACKS)]

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        text = {name: value for name, value in text_config(config).items() if value is not None or name not in FILLED}
        is_unified = str(text.get("model_type")).startswith("gemma4_unified")
        stated = {**DEFAULTS, **(UNIFIED if is_unified else {}), **text}
        stated[WIDTH] = stated[WIDTH] or 0
        check_settings([*(Key(name, "", "bool") for name in SWITCHES), COUNT, Key(SHARED, "")], stated, CONFIG)
        count = min(stated["num_hidden_layers"], MOST_BLOCKS)
        period = [FULL if (layer + 1) % 6 == 0 or layer + 1 == count else SLIDING for layer in range(count)]
        kinds = layer_types({"layer_types": period, **stated})
        stated |= {"layer_types": kinds, **_overridden(stated, kinds)}
        stated.pop(OVERRIDES, None)
        if not stated["attention_k_eq_v"]:
            stated[GLOBAL_GROUPS] = None
        if not stated["enable_moe_block"]:
            stated |= dict.fromkeys(ROUTING)
        check_settings([Key(name, "", required=bool(stated["enable_moe_block"])) for name in ROUTING], stated, CONFIG)
        _check_layers(stated, kinds)
        settings = super().spelled(stated)
        if not rope_kind(settings["rope_scaling"]):  # GGUF's engine wants the factors of all pairs
            settings["rope_scaling"] = {"rope_type": PROPORTIONAL, SHARE: 1.0}
        check_settings(NUMBERS, settings, CONFIG)
        first, size = count - stated[SHARED], settings["intermediate_size"]
        is_wide = settings["use_double_wide_mlp"] and first < count
        settings["mlp_sizes"] = [size] * first + [2 * size] * (count - first) if is_wide else size
        return settings | self._rope_of_kinds(settings)

    def layers_of(self, kind: str, settings: Mapping[str, Any]) -> Collection[int]:
        if kind != VALUES:
            return super().layers_of(kind, settings)
        kinds = settings["layer_types"]
        return [layer for layer, each in enumerate(kinds) if not settings["attention_k_eq_v"] or each == SLIDING]

    def optional(self, settings: Mapping[str, Any]) -> Collection[str]:
        return shared_keys(settings)

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        kinds, width = settings["layer_types"], settings[WIDTH]
        counts = {name: settings.get(name) or 0 for name in ("num_experts", "moe_intermediate_size")}
        rows = {"one": 1, "per_layer_rows": len(kinds) * width, TOKENS: settings[TOKENS] if width else 0}
        sizes = super().sizes({**settings, **counts, **rows}) | rows
        heads = [settings[GLOBAL_HEAD if kind == FULL else "head_dim"] for kind in kinds]
        groups = self._of_layers(settings, "kv_heads")
        return sizes | {
            "head_dim": heads,
            "q_rows": [settings["num_attention_heads"] * head for head in heads],
            "kv_rows": [count * head for count, head in zip(groups, heads)],
            "intermediate_size": self._of_layers(settings, "mlp_sizes"),
        }

    def check_for_gguf(self, settings: Mapping[str, Any]) -> None:
        super().check_for_gguf(settings)
        kind, tokens = rope_kind(settings["rope_scaling"]), settings[TOKENS]
        _check(kind == PROPORTIONAL, f"rope_parameters.{FULL}.rope_type", kind, f"{PROPORTIONAL} or default")
        is_whole = not settings[WIDTH] or tokens == settings["vocab_size"]
        _check(is_whole, TOKENS, tokens, f"the vocab_size of {settings['vocab_size']}, as llama.cpp assumes")

    def _from_keys(self, model: Model) -> dict[str, Any]:
        if FACTORS not in model.vectors:
            raise FormatError(
                "is missing, and llama.cpp does not load the model without it",
                tensor=FACTORS,
                code=ErrorCode.UNMAPPED,
                expected="factors of the rotary positions",
            )
        settings = super()._from_keys(model)
        kinds, sizes = settings["layer_types"], self._of_layers(settings, "mlp_sizes")
        first, size = len(kinds) - settings[SHARED], sizes[0] if sizes else 0
        wide = sizes[first:] == [2 * size] * settings[SHARED] != []
        if sizes != [size] * first + [2 * size if wide else size] * settings[SHARED]:
            settings[INEXPRESSIBLE] = self._inexpressible(
                "feed_forward_length", expected="one size, or twice that in layers that share keys"
            )
        own = [f"blk.{n}.attn_v.weight" in model.tensors for n, kind in enumerate(kinds[:first]) if kind == FULL]
        same = own != [] and not any(own) and "blk.0.attn_qkv.weight" not in model.tensors
        groups = settings.pop(GLOBAL_GROUPS, None)
        if not same and groups not in (None, settings["num_key_value_heads"]):
            settings[INEXPRESSIBLE] = self._inexpressible(
                "attention.head_count_kv", expected="one number, in layers with values of their own"
            )
        return {
            **DEFAULTS,
            **dict.fromkeys(ROUTING),
            **settings,
            "intermediate_size": size,
            "use_double_wide_mlp": wide,
            "attention_k_eq_v": same,
            GLOBAL_GROUPS: groups if same else None,
            "enable_moe_block": bool(settings.get("num_experts")),
            TOKENS: settings["vocab_size"],
        }


def shared_keys(settings: Mapping[str, Any]) -> Collection[str]:
    """Return the projections of keys and values in layers that take those of earlier ones; no engine uses them."""
    count = settings["num_hidden_layers"]
    layers, names = range(max(count - settings[SHARED], 0), count), ("k_proj", "v_proj", "k_norm")
    return {f"model.layers.{layer}.self_attn.{name}.weight" for layer in layers for name in names}


def _overridden(settings: Mapping[str, Any], kinds: Sequence[str]) -> dict[str, Any]:
    """Return the sizes of layers without a window from `per_layer_config`, as Transformers 5 writes them."""
    overrides = settings.get(OVERRIDES)
    if overrides is None:
        return {}
    names = {"head_dim": GLOBAL_HEAD, "num_key_value_heads": GLOBAL_GROUPS}
    stated = overrides if isinstance(overrides, Mapping) else {"": overrides}
    full = {str(layer): kind == FULL for layer, kind in enumerate(kinds)}
    own: Mapping[str, Any] = next((each for layer, each in stated.items() if full.get(layer)), {})
    for layer, each in stated.items():
        legal = isinstance(each, Mapping) and not {*each} - {*names} and each == (own if full.get(layer) else {})
        _check(
            legal,
            f"{OVERRIDES}.{layer}",
            each,
            "the same head_dim and num_key_value_heads for all layers without a window",
        )
    _check(
        not own or all(layer in stated for layer in full if full[layer]),
        OVERRIDES,
        [*stated],
        "each layer without a window",
    )
    groups, base = own.get("num_key_value_heads"), settings.get("num_key_value_heads")
    is_gated = settings["attention_k_eq_v"] or groups in (None, base)
    _check(is_gated, f"{OVERRIDES}.num_key_value_heads", groups, f"{base} without attention_k_eq_v")
    return {names[name]: own.get(name, settings.get(name)) for name in names}


def _check_layers(settings: Mapping[str, Any], kinds: Sequence[str]) -> None:
    """Raise FormatError for layers and rotary positions that some engine computes differently."""
    first, rope = len(kinds) - settings[SHARED], settings["rope_parameters"]
    parts = {kind: rope.get(kind) for kind in {FULL, *kinds}} if isinstance(rope, Mapping) else {FULL: None}
    attended = settings.get("use_bidirectional_attention")
    _check(kinds[-1:] == [FULL], "layer_types", kinds[-1:], f"{FULL} in the last layer")
    _check({*kinds[: max(first, 0)]} == {*kinds}, SHARED, settings[SHARED], "fewer than the layers of each kind")
    _check(attended in (None, "vision"), "use_bidirectional_attention", attended, "null or vision")
    _check(all(isinstance(part, Mapping) for part in parts.values()), "rope_parameters", rope, f"{' and '.join(parts)}")
    _check(not rope_kind(parts.get(SLIDING)), f"rope_parameters.{SLIDING}", parts.get(SLIDING), "default")


def _check(is_legal: bool, name: str, found: Any, expected: str) -> None:
    """Raise FormatError for a setting that engines do not compute alike."""
    if not is_legal:
        raise FormatError(
            "is a setting with which engines compute differently",
            part=f"{CONFIG} {name}",
            code=ErrorCode.CONFIG,
            expected=expected,
            found=repr(found)[:60],
        )
