"""Layer names for 0.x files, which store only positions: the layer order of each architecture."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from squish_core.api import counted

# All of these order lm_head first, then attention and MLP of each layer.
DENSE = frozenset(("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"))
MOE = frozenset(("qwen3_moe",))
MODELS = DENSE | MOE
EXPERT = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(\w+_proj)")
"""Layers of experts; 1.2 stacks all experts of a kind in one layer without the number."""
STACK = re.compile(r"(.*\.mlp\.experts\.)(\w+_proj)")
MAX_LAYERS, MAX_EXPERTS = 10_000, 10_000


@frozen
class Expected:
    """A layer's name, and its shape according to the config."""

    name: str
    shape: tuple[int, int]


def row_names(key: str, rank: int) -> tuple[str, str] | None:
    """Return the prefix and suffix of the expert number in weight names; None unless the layer is a stack."""
    stack = STACK.fullmatch(key)
    return (stack[1], f".{stack[2]}.weight") if stack and rank > 2 else None


def name_layers(
    shapes: Mapping[int, tuple[int, ...] | None], config: Mapping[str, Any], arch: str | None
) -> tuple[list[Expected], str]:
    """Return the layers in numeric order, or none and the reason.

    `shapes` are the shapes of the numbered weights (None: unreadable) and must match `config`. `arch` replaces the
    config's `model_type`; without a config, sizes come from the shapes of the first layer.
    """
    if not config and not arch:
        hint = "add the model's config.json to the folder, pass its folder ({option:assets=DIR}), or open with"
        names = ", ".join(sorted(MODELS))
        return [], f"0.x files store no layer names; {hint} {{option:format=uqff:arch=...}} ({names})"
    model = arch or model_type(config)
    if model not in MODELS:
        return [], f"the layer order of the architecture {model[:40]!r} is unknown"
    last = max(shapes)
    try:
        # one layer more, to detect missing layers at the end
        order = [layer for _, layer in zip(range(last + 2), _order(model, config or _infer_config(model, shapes)))]
    except (KeyError, TypeError, IndexError, ZeroDivisionError):
        lacks = f"config.json lacks layer sizes: {missing_size(config) or 'they are not numbers'}"
        return [], lacks if config else "the layer shapes are irregular"
    source = "config.json" if config else f"the order of {model}"
    if len(order) <= last:
        return [], f"{source} does not match: it has {counted(len(order), 'layer')}, the file has layer {last}"
    for number, shape in shapes.items():
        if shape is not None and shape != order[number].shape:
            return [], (
                f"{source} does not match: layer {number} should be {order[number].name} of shape "
                f"{list(order[number].shape)}, not {list(shape)}"
            )
    return order, ""


def numbers_of(config: Mapping[str, Any]) -> dict[str, int]:
    """Return layer name -> number for a model; {} if the config does not determine them."""
    model = model_type(config)
    try:
        return {layer.name: number for number, layer in enumerate(_order(model, config))} if model in MODELS else {}
    except (KeyError, TypeError, ZeroDivisionError):
        return {}


def missing_size(config: Mapping[str, Any]) -> str | None:
    """Return the key that a config of a known architecture lacks for the order of its layers; None if complete."""
    model = model_type(config)
    try:
        for _ in _order(model, config) if model in MODELS else ():
            pass
    except KeyError as error:
        return str(error.args[0])
    except (TypeError, ZeroDivisionError):
        pass
    return None


def model_type(config: Mapping[str, Any]) -> str:
    """Return a config's architecture; "" if missing or not text."""
    name = config.get("model_type")
    return name if isinstance(name, str) else ""


def _infer_config(model: str, shapes: Mapping[int, Any]) -> dict[str, int]:
    """Infer config sizes from the shapes of `lm_head` and the first layer."""
    (vocabulary, hidden), inner = shapes[0], shapes[5][0]
    experts = 0
    if model in MOE:
        triple = ((inner, hidden), (inner, hidden), (hidden, inner))
        while tuple(shapes.get(5 + 3 * experts + place) for place in range(3)) == triple:
            experts += 1
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "head_dim": 1,
        "num_attention_heads": shapes[1][0],
        "num_key_value_heads": shapes[2][0],
        "intermediate_size": inner,
        "moe_intermediate_size": inner,
        "num_experts": experts,
        "num_hidden_layers": max(shapes) // (4 + 3 * max(experts, 1)),
    }


def _order(model: str, config: Mapping[str, Any]) -> Iterator[Expected]:
    hidden, heads = _number(config, "hidden_size"), _number(config, "num_attention_heads")
    groups = _number(config, "num_key_value_heads", heads)
    head = _number(config, "head_dim", hidden // heads)
    yield Expected("lm_head", (_number(config, "vocab_size"), hidden))
    for layer in range(min(_number(config, "num_hidden_layers"), MAX_LAYERS)):
        prefix = f"model.layers.{layer}"
        for name, shape in (
            ("q_proj", (heads * head, hidden)),
            ("k_proj", (groups * head, hidden)),
            ("v_proj", (groups * head, hidden)),
            ("o_proj", (hidden, heads * head)),
        ):
            yield Expected(f"{prefix}.self_attn.{name}", shape)
        if _is_moe(model, config, layer):
            for expert in range(min(_number(config, "num_experts"), MAX_EXPERTS)):
                inner = _number(config, "moe_intermediate_size")
                yield from _mlp(f"{prefix}.mlp.experts.{expert}", hidden, inner)
        else:
            yield from _mlp(f"{prefix}.mlp", hidden, _number(config, "intermediate_size"))


def _mlp(prefix: str, hidden: int, inner: int) -> Iterator[Expected]:
    for name, shape in (("gate_proj", (inner, hidden)), ("up_proj", (inner, hidden)), ("down_proj", (hidden, inner))):
        yield Expected(f"{prefix}.{name}", shape)


def _is_moe(model: str, config: Mapping[str, Any], layer: int) -> bool:
    """Return whether a layer has experts, by the keys of Qwen3-MoE's config."""
    if model not in MOE or layer in (config.get("mlp_only_layers") or ()):
        return False
    return (layer + 1) % _number(config, "decoder_sparse_step", 1) == 0 and _number(config, "num_experts") > 0


def _number(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None and default is not None:
        return default
    if type(value) is not int or value < 0:
        raise KeyError(key)
    return value
