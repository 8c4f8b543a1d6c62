"""Pixtral's tower, which Mistral 3 has with a patch merger.

Source: llama.cpp, `LlavaVisionModel` in conversion/llava.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from attrs import evolve
from squish_convert.api import Carried, Model

from squish_core.api import ErrorCode, FormatError, Options, parse_object

from ..config.keys import Key
from ..settings import CONFIG
from ..tables import Row
from .siglip import PROJECTOR, TEXT_LAYERS
from .tower import Tower

TOWER = "vision_tower."
LAYER, BLOCK = f"{TOWER}transformer.layers.{{n}}.", "v.blk.{n}."
HIDDEN, INNER, HEADS, TEXT = "hidden_size", "intermediate_size", "num_attention_heads", "text_hidden_size"
MERGE, MERGER = "spatial_merge_size", f"{PROJECTOR}patch_merger.merging_layer"
NORM = f"{PROJECTOR}norm"
BREAK, BREAK_TOKEN = "v.token_embd.img_break", "[IMG_BREAK]"
"""GGUF's tensor with the embedding of a token, which ends each row of patches."""
EMBEDDING, TOKENIZERS = "embed_tokens.weight", ("tokenizer_config.json", "tokenizer.json")


def _layer(hf: str, gguf: str, *shape: str, permute: str | None = None) -> Row:
    return Row(hf, gguf, shape, permute=permute, layer=LAYER, block=BLOCK)


class PixtralVision(Tower):
    """Pixtral's tower: rotary positions in two dimensions, gated layers, and a token after each row of patches."""

    id = "pixtral.vision"
    projector = "pixtral"
    prefixes: ClassVar = {f"model.{TOWER}": TOWER, f"model.{PROJECTOR}": PROJECTOR}
    other_modalities = TEXT_LAYERS
    outer = (MERGE,)
    activations: ClassVar = {"gelu": "clip.use_gelu", "silu": "clip.use_silu"}
    fixed: ClassVar = {"rope_theta": 10000.0, "projector_hidden_act": "gelu", "vision_feature_layer": -1}
    unstated: ClassVar = {
        "layer_norm_eps": 1e-5, HIDDEN: 1024, INNER: 4096, "num_hidden_layers": 24, HEADS: 16, "image_size": 1024,
        "patch_size": 16,
    }  # fmt: skip
    keys = (*Tower.keys, Key(MERGE, MERGE, required=False))
    constants = (BREAK,)
    rows = (
        Row(f"{TOWER}patch_conv", "v.patch_embd", (HIDDEN, "channels", "patch_size", "patch_size"), f32=True, top=True),
        Row(f"{TOWER}ln_pre", "v.pre_ln", (HIDDEN,), top=True),
        _layer("attention_norm", "ln1", HIDDEN),
        _layer("attention.q_proj", "attn_q", HIDDEN, HIDDEN, permute=HEADS),
        _layer("attention.k_proj", "attn_k", HIDDEN, HIDDEN, permute=HEADS),
        _layer("attention.v_proj", "attn_v", HIDDEN, HIDDEN),
        _layer("attention.o_proj", "attn_out", HIDDEN, HIDDEN),
        _layer("ffn_norm", "ln2", HIDDEN),
        _layer("feed_forward.gate_proj", "ffn_gate", INNER, HIDDEN),
        _layer("feed_forward.up_proj", "ffn_up", INNER, HIDDEN),
        _layer("feed_forward.down_proj", "ffn_down", HIDDEN, INNER),
        Row(NORM, "mm.input_norm", (HIDDEN,), top=True),
        Row(MERGER, "mm.patch_merger", (HIDDEN, "merged"), f32=True, top=True),
        Row(f"{PROJECTOR}linear_1", "mm.1", (TEXT, HIDDEN), bias=True, top=True),
        Row(f"{PROJECTOR}linear_2", "mm.2", (TEXT, TEXT), bias=True, top=True),
    )

    def settings(self, model: Model) -> dict[str, Any]:
        settings = super().settings(model)
        if model.layout == "gguf":
            return settings
        kind = settings.get("model_type", "pixtral")
        if kind != "pixtral":
            raise FormatError(
                "is not Pixtral's tower, the only one of these models that Squish maps",
                part=f"{CONFIG} vision_config model_type",
                code=ErrorCode.UNMAPPED,
                expected="pixtral",
                found=repr(kind)[:60],
            )
        rope = settings.get("rope_parameters")
        merge = {MERGE: 2} if model.config().get("model_type") == "mistral3" else {}
        return {**merge, **settings, **(rope if isinstance(rope, dict) else {})}

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        return {**super().sizes(settings), "merged": settings[HIDDEN] * settings.get(MERGE, 1) ** 2}

    def absent(self, settings: Mapping[str, Any]) -> Collection[str]:
        return () if MERGE in settings else (f"{NORM}.weight", f"{MERGER}.weight")

    def carry(self, model: Model, settings: Mapping[str, Any], layout: str, options: Options) -> Carried:
        carried = super().carry(model, settings, layout, options)
        if model.layout != "gguf":
            return evolve(carried, constants={BREAK: break_embedding(model)})
        if BREAK in model.vectors:
            return evolve(carried, constants={BREAK: model.vectors[BREAK]})
        return evolve(carried, missing=(BREAK,))


def break_embedding(model: Model) -> np.ndarray:
    """Return the embedding of the token after each row of patches; FormatError if the folder does not have it."""
    number = next(_numbers(model), None)
    if type(number) is not int:
        raise FormatError(
            f"has no id of {BREAK_TOKEN}, the token after each row of patches",
            file=model.name,
            part=" or ".join(TOKENIZERS),
            code=ErrorCode.CONFIG,
            expected=f"{BREAK_TOKEN} among the added tokens",
            hint="Put the tokenizer of the published model into the folder, or name a folder that has it: "
            "{option:assets=FOLDER}.",
        )
    name = next((name for name in model.tensors if name.endswith(EMBEDDING)), None)
    rows = model.tensors[name].shape[0] if name else 0
    if name is None or model.rows is None or not 0 <= number < rows:
        raise FormatError(
            f"has no embedding of {BREAK_TOKEN}, which llama.cpp needs beside the tower",
            file=model.name,
            part=name or EMBEDDING,
            code=ErrorCode.UNMAPPED,
            expected=f"a row for the token {number}",
            found=f"{rows} rows",
        )
    return model.rows(name, [number])[0].astype(np.float32)


def _numbers(model: Model) -> Iterator[Any]:
    """Yield the ids that the tokenizer's files state for the token."""
    options, tokenizer = TOKENIZERS
    added = _tokenizer_file(model, options).get("added_tokens_decoder")
    for number, token in (added if isinstance(added, dict) else {}).items():
        if isinstance(token, dict) and token.get("content") == BREAK_TOKEN:
            yield int(number) if number.isdecimal() else number
    listed = _tokenizer_file(model, tokenizer).get("added_tokens")
    for token in listed if isinstance(listed, list) else []:
        if isinstance(token, dict) and token.get("content") == BREAK_TOKEN:
            yield token.get("id")


def _tokenizer_file(model: Model, name: str) -> dict[str, Any]:
    return parse_object(model.assets[name], name) if name in model.assets else {}
