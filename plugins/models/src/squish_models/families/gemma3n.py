"""Gemma 3n: AltUp, LAuReL, embeddings in each layer, and sparse activations in the first layers.

More than a table: llama.cpp has the numbers of E2B and E4B in its source, mlx-lm reads only the layout of the
multimodal model, and some tokens have no embedding in the layers.

Source: llama.cpp, `Gemma3NModel` in conversion/gemma.py and src/models/gemma3n.cpp.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Carried, Model, Rule

from squish_core.api import ErrorCode, LazyAssets, Options, TensorError

from ..config.keys import COMMON, LAYER_SIZES, NUMBERS_LIST, SWITCHES_LIST, Key, check_settings
from ..config.spelling import FULL, SLIDING, text_config
from ..config_file import dump_json
from ..declared import WINDOW_LAYERS, Declared
from ..keep import restored_files
from ..settings import BARE, CONFIG, ENGINES, MOST_BLOCKS, WINDOWS
from ..tables import Row, attention, embeddings, gated_mlp, head_norms, norm
from .gemma4 import COUNT, NESTED, OWN, SHARED, TOKENS, WIDTH, shared_keys

OWN_KEYS = 20
"""Layers that compute keys and values in llama.cpp; the others take those of earlier ones."""
SPARSE, SPARSITY, CUTOFF = 10, 0.95, 1.6448533535003662
"""How many layers have sparse activations, the share of zeros in them, and its quantile of a normal distribution."""
PATTERN, INPUTS = "activation_sparsity_pattern", "altup_num_inputs"
DEFAULTS = {
    WIDTH: 256,
    TOKENS: 262144,
    SHARED: 15,
    "sliding_window": 512,
    "final_logit_softcapping": 30.0,
    INPUTS: 4,
    "altup_active_idx": 0,
    "altup_coef_clip": 120.0,
    "altup_correct_scale": True,
    "laurel_rank": 64,
    "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "tie_word_embeddings": True,
}
"""Defaults of Transformers for keys missing in config.json."""
KEYED = (TOKENS, SHARED, "sliding_window", "rope_theta", "rope_local_base_freq", "tie_word_embeddings")
"""Those that differ between models; llama.cpp assumes the others."""


def _altup(hf: str, gguf: str, *shape: str, **fields: Any) -> Row:
    return Row(f"altup.{hf}", f"altup_{gguf}", shape, **fields)


class Gemma3n(Declared):
    """Gemma 3n, its text part."""

    model_type, architecture, class_name = "gemma3n_text", "gemma3n", "Gemma3nForCausalLM"
    rows = (
        *embeddings(),
        Row(f"model.{OWN[0]}", "per_layer_token_embd", (TOKENS, "per_layer_rows"), top=True, pad="vocab_size"),
        Row(f"model.{OWN[1]}", "per_layer_model_proj", ("per_layer_rows", "hidden_size"), top=True),
        norm(f"model.{OWN[2]}", "per_layer_proj_norm", top=True, size=WIDTH),
        Row("model.altup_projections.{e}", "altup_proj", ("hidden_size", "hidden_size"), top=True),
        Row("model.altup_unembed_projections.{e}", "altup_unembd_proj", ("hidden_size", "hidden_size"), top=True),
        norm("input_layernorm", "attn_norm"),
        *attention(bias=False),
        *head_norms(),
        norm("post_attention_layernorm", "post_attention_norm"),
        norm("pre_feedforward_layernorm", "ffn_norm"),
        *gated_mlp(),
        norm("post_feedforward_layernorm", "post_ffw_norm"),
        Row("per_layer_input_gate", "inp_gate", (WIDTH, "hidden_size")),
        Row("per_layer_projection", "proj", ("hidden_size", WIDTH)),
        norm("post_per_layer_input_norm", "post_norm"),
        _altup("correct_output_scale", "correct_scale", "hidden_size", suffix=""),
        _altup("correction_coefs", "correct_coef", INPUTS, INPUTS, f32=True),
        _altup("prediction_coefs", "predict_coef", "altup_pairs", INPUTS, f32=True),
        _altup("modality_router", "router", INPUTS, "hidden_size", f32=True),
        _altup("router_norm", "router_norm", "hidden_size"),
        Row("laurel.linear_left", "laurel_l", ("laurel_rank", "hidden_size"), f32=True),
        Row("laurel.linear_right", "laurel_r", ("hidden_size", "laurel_rank"), f32=True),
        norm("laurel.post_laurel_norm", "laurel_post_norm"),
    )
    keys: ClassVar[Sequence[Key]] = (
        *(key for key in COMMON if key.hf not in ("intermediate_size", "rotary_dim")),
        Key("intermediate_size", "feed_forward_length", LAYER_SIZES),
        Key("rope_local_base_freq", "rope.freq_base_swa", "f32"),
        Key("sliding_window", "attention.sliding_window"),
        Key(WINDOW_LAYERS, WINDOWS, SWITCHES_LIST),
        Key(SHARED, "attention.shared_kv_layers", required=False),
        Key(WIDTH, "embedding_length_per_layer_input", required=False),
        Key("altup_active_idx", "altup.active_idx", required=False),
        Key(INPUTS, "altup.num_inputs", required=False),
        Key("sparsity_scales", "activation_sparsity_scale", NUMBERS_LIST, required=False),
        Key("final_logit_softcapping", "final_logit_softcapping", "f32", required=False),
    )
    fixed: ClassVar = {name: value for name, value in DEFAULTS.items() if name not in KEYED}
    derived = (*Declared.derived, WINDOW_LAYERS, "sparsity_scales")
    tied_by_default = True
    windowless = ()
    gemma_tokenizer = True
    unadapted = (OWN[1],)
    prefixes: ClassVar = {
        **BARE,
        **{f"{name}.": f"model.{name}." for name in (*OWN, "altup_projections", "altup_unembed_projections")},
        NESTED: "model.",
    }
    other_modalities: ClassVar[Sequence[str]] = tuple(
        f"{prefix}{part}.*"
        for prefix in ("model.", "")
        for part in ("vision_tower", "audio_tower", "embed_vision", "embed_audio")
    )

    @cached_property
    def names(self) -> Mapping[str, Sequence[Rule]]:  # type: ignore[override]
        nested = [
            Rule(tensor.name.replace("model.", NESTED, 1), tensor.name)
            for tensor in self.tensors
            if tensor.name.startswith("model.")
        ]
        return {**super().names, "mlx": tuple(nested)}

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        text = {name: value for name, value in text_config(config).items() if value is not None}
        check_settings([COUNT, Key("intermediate_size", "", LAYER_SIZES)], text, CONFIG)
        count = min(text["num_hidden_layers"], MOST_BLOCKS)
        kinds = [FULL if (layer + 1) % 5 == 0 else SLIDING for layer in range(count)]
        settings = super().spelled({"layer_types": kinds, PATTERN: _unstated(count), **DEFAULTS, **text})
        check_settings([Key(PATTERN, "", NUMBERS_LIST), Key(SHARED, ""), Key(TOKENS, "")], settings, CONFIG)
        size = settings["intermediate_size"]
        settings["intermediate_size"] = size if isinstance(size, list) else [size] * count
        settings["sparsity_scales"] = [CUTOFF if share else -math.inf for share in settings[PATTERN]]
        return settings

    def optional(self, settings: Mapping[str, Any]) -> Collection[str]:
        return shared_keys(settings)

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        inputs = settings[INPUTS]
        rows = {"per_layer_rows": settings["num_hidden_layers"] * settings[WIDTH], "altup_pairs": inputs * inputs}
        sizes = super().sizes({**settings, **rows}) | rows
        return {**sizes, "experts": inputs - 1, "intermediate_size": self._of_layers(settings, "intermediate_size")}

    def implied(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        count = settings["num_hidden_layers"]
        size = settings["intermediate_size"]
        sizes = size if isinstance(size, list) else [size] * count
        return {
            **self.fixed,
            SHARED: max(count - OWN_KEYS, 0),
            PATTERN: _pattern(count),
            "intermediate_size": sizes[:1] * count,
        }

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        kept = restored_files(model.meta)[0].get(CONFIG)
        rows = text_config(json.loads(kept)).get(TOKENS) if kept else None
        is_less = type(rows) is int and 0 < rows < settings["vocab_size"]
        sizes = self._of_layers(settings, "intermediate_size")
        return {**DEFAULTS, **settings, "intermediate_size": sizes, TOKENS: rows if is_less else settings["vocab_size"]}

    def is_for_mlx(self, config: Mapping[str, Any]) -> bool:
        return "text_config" in config and "vision_config" not in config  # Transformers states both or none

    def carry(self, model: Model, settings: Mapping[str, Any], layout: str, options: Options) -> Carried:
        missing = [name for name in self.optional(settings) if name not in map(self.own_name, model.tensors)]
        if missing and model.layout != "gguf" and layout in ("gguf", "mlx"):
            raise TensorError(
                f"is missing, and {ENGINES[layout]} does not load a Gemma 3n without it, although no layer reads it",
                tensor=min(missing),
                code=ErrorCode.UNMAPPED,
                found=f"{len(missing)} such tensors missing",
                hint="Transformers leaves them out when it saves a model: copy them from the published checkpoint.",
            )
        carried = super().carry(model, settings, layout, options)
        if layout not in CONFIGS:
            return carried
        assets, config = carried.assets, CONFIGS[layout]
        return evolve(
            carried, assets=LazyAssets(assets, lambda name: config(assets[name]) if name == CONFIG else assets[name])
        )


def _pattern(count: int) -> list[float]:
    """The share of zeros in each layer that llama.cpp computes."""
    return [SPARSITY if layer < SPARSE else 0.0 for layer in range(count)]


def _unstated(count: int) -> list[float]:
    """The shares that Transformers takes if none are stated."""
    return _pattern(count) if count > SPARSE else [0.0] * count


def _nested(config: bytes) -> bytes:
    """The config of a multimodal model with this text part, which alone mlx-lm reads."""
    text = json.loads(config)
    outer = {name: value for name, value in text.items() if not isinstance(value, list | dict) or "token" in name}
    return dump_json({**outer, "model_type": "gemma3n", "text_config": text})


def _flat(config: bytes) -> bytes:
    """The config of the text part alone, if there is no other part, which Transformers would build."""
    stated = json.loads(config)
    return config if "text_config" not in stated or "vision_config" in stated else dump_json(stated["text_config"])


CONFIGS = {"mlx": _nested, "hf": _flat}
