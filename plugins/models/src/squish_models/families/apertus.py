"""Apertus: Llama with norms of queries and keys, and an activation with numbers of its own in each layer.

These numbers are tensors in Hugging Face, and keys without an architecture in GGUF: hence more than a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import numpy as np
from attrs import evolve
from squish_convert.api import Carried, Model

from squish_core.api import ErrorCode, FormatError, Options, Typed

from ..config.keys import COMMON, VOCABULARY, Key
from ..family import TextModel
from ..rules import fused_attention
from ..tables import attention, embeddings, gated_mlp, head_norms, norm
from .llama import SCALED_ROPE

NUMBERS = {"alpha_n": (1,), "alpha_p": (1,), "beta": (), "eps": ()}
"""Numbers of the activation and their shapes in Hugging Face."""
TENSOR, KEY, SETTING = "model.layers.{layer}.mlp.act_fn.{name}", "xielu.{name}", "xielu"


class Apertus(TextModel):
    """Apertus: an MLP without gates, and xIELU."""

    model_type, architecture, class_name = "apertus", "apertus", "ApertusForCausalLM"
    rows = (
        *embeddings(),
        norm("attention_layernorm", "attn_norm"),
        *attention(),
        *head_norms(),
        norm("feedforward_layernorm", "ffn_norm"),
        *gated_mlp()[1:],
    )
    more: ClassVar = {"gguf": fused_attention(permute=False)}
    constants = (*SCALED_ROPE, TENSOR.format(layer="*", name="*"))
    keys: ClassVar[Sequence[Key]] = (*COMMON, VOCABULARY)
    fixed: ClassVar = {"hidden_act": "xielu", "mlp_bias": False, "post_norm": False, "qk_norm": True}
    derived = (*TextModel.derived, SETTING)

    def settings(self, model: Model) -> dict[str, Any]:
        settings = super().settings(model)
        layers, of_keys = settings["num_hidden_layers"], model.layout == "gguf"
        values = {name: _stored(model, name, layers) if of_keys else _tensors(model, name, layers) for name in NUMBERS}
        return {**settings, SETTING: values}

    def carry(self, model: Model, settings: Mapping[str, Any], layout: str, options: Options) -> Carried:
        carried = super().carry(model, settings, layout, options)
        if layout == model.layout == "gguf":
            return carried
        for name, values in settings[SETTING].items():
            if values is None:
                raise FormatError(
                    "is not one number for each layer",
                    part=KEY.format(name=name) if model.layout == "gguf" else TENSOR.format(layer="N", name=name),
                    code=ErrorCode.UNMAPPED,
                    expected=f"{settings['num_hidden_layers']} finite numbers",
                )
        if layout == "gguf":
            own = {KEY.format(name=name): Typed("array:f32", values) for name, values in settings[SETTING].items()}
            return evolve(carried, meta={**carried.meta, **own})
        tensors = {
            TENSOR.format(layer=layer, name=name): value.reshape(NUMBERS[name])
            for name, values in settings[SETTING].items()
            for layer, value in enumerate(values)
        }
        return evolve(carried, constants={**carried.constants, **tensors})


def _stored(model: Model, name: str, layers: int) -> np.ndarray | None:
    """The numbers in a key; None unless there is one for each layer."""
    value = model.value(KEY.format(name=name))
    values = np.full(layers, value) if isinstance(value, float) else value
    return _checked(values, layers)


def _tensors(model: Model, name: str, layers: int) -> np.ndarray | None:
    """The numbers in the tensors; None unless there is one for each layer."""
    pattern = f"*layers.*.mlp.act_fn.{name}"
    if sum(fnmatchcase(each, pattern) for each in model.vectors) != layers:
        return None
    values = [model.vectors.get(TENSOR.format(layer=layer, name=name)) for layer in range(layers)]
    return _checked([None if value is None or value.size != 1 else value.item() for value in values], layers)


def _checked(values: Any, layers: int) -> np.ndarray | None:
    try:
        numbers = np.asarray(values, np.float32)
    except (TypeError, ValueError):
        return None
    return numbers if numbers.shape == (layers,) and np.isfinite(numbers).all() else None
