"""Layer names of 0.x files, which hold only positions: the order in which each architecture lists its layers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

# The order is lm_head, then each layer's attention and MLP, in all of these.
DENSE = frozenset(("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"))
MOE = frozenset(("qwen3_moe",))
KNOWN = DENSE | MOE
EXPERT = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(\w+_proj)")
"""Layers that 1.2 stacks: all experts of a kind are one layer without the number."""
STACK = re.compile(r"(.*\.mlp\.experts\.)(\w+_proj)")
MAX_LAYERS, MAX_EXPERTS = 10_000, 10_000


@frozen
class Expected:
    """A layer's name and the shape that the config gives it."""

    name: str
    shape: tuple[int, int]


def row_names(key: str, rank: int) -> tuple[str, str] | None:
    """What stands before and after the number in the names of the experts' weights; None for a layer of no stack."""
    stack = STACK.fullmatch(key)
    return (stack[1], f".{stack[2]}.weight") if stack and rank > 2 else None


def name_layers(
    shapes: Mapping[int, tuple[int, ...] | None], config: Mapping[str, Any], arch: str | None
) -> tuple[list[Expected], str]:
    """The layers in the order of their numbers, or none and why.

    `shapes` are those of the numbered weights (None: not readable); all must be what `config` says. `arch` stands for
    the config's `model_type`; without a config, the first layer's shapes say what the others must be.
    """
    if not config and not arch:
        hint = "put the model's config.json into the folder or name its folder (assets=DIR), or open it with"
        return [], f"0.x files hold no layer names; {hint} format='uqff:arch=...' ({', '.join(sorted(KNOWN))})"
    model = arch or model_type(config)
    if model not in KNOWN:
        return [], f"the layer order of the architecture {model[:40]!r} is not known"
    last = max(shapes)
    try:
        # One more than there is, to see whether the files end too early.
        order = [layer for _, layer in zip(range(last + 2), _order(model, config or _measured(model, shapes)))]
    except (KeyError, TypeError, IndexError, ZeroDivisionError):
        return [], "config.json does not give the sizes of the layers" if config else "the layers' shapes are irregular"
    source = "config.json" if config else f"the order of {model}"
    if len(order) <= last:
        return [], f"{source} does not fit: it describes {len(order)} layers, and the file has number {last}"
    for number, shape in shapes.items():
        if shape is not None and shape != order[number].shape:
            return [], (
                f"{source} does not fit: layer {number} would be {order[number].name} of shape "
                f"{list(order[number].shape)}, and has {list(shape)}"
            )  # fmt: skip
    return order, ""


def numbers_of(config: Mapping[str, Any]) -> dict[str, int]:
    """The number of each layer of a model, by its name; {} when the config does not give them."""
    model = model_type(config)
    try:
        return {layer.name: number for number, layer in enumerate(_order(model, config))} if model in KNOWN else {}
    except (KeyError, TypeError, ZeroDivisionError):
        return {}


def model_type(config: Mapping[str, Any]) -> str:
    """The architecture that a config names; "" where that is missing or not text."""
    name = config.get("model_type")
    return name if isinstance(name, str) else ""


def _measured(model: str, shapes: Mapping[int, Any]) -> dict[str, int]:
    """The numbers of a config, from the shapes of `lm_head` and the first layer."""
    (vocabulary, hidden), inner = shapes[0], shapes[5][0]
    experts = 0
    if model in MOE:
        triple = ((inner, hidden), (inner, hidden), (hidden, inner))
        while tuple(shapes.get(5 + 3 * experts + place) for place in range(3)) == triple:
            experts += 1
    return {
        "vocab_size": vocabulary, "hidden_size": hidden, "head_dim": 1, "num_attention_heads": shapes[1][0],
        "num_key_value_heads": shapes[2][0], "intermediate_size": inner, "moe_intermediate_size": inner,
        "num_experts": experts, "num_hidden_layers": max(shapes) // (4 + 3 * max(experts, 1)),
    }  # fmt: skip


def _order(model: str, config: Mapping[str, Any]) -> Iterator[Expected]:
    hidden, heads = _number(config, "hidden_size"), _number(config, "num_attention_heads")
    groups = _number(config, "num_key_value_heads", heads)
    head = _number(config, "head_dim", hidden // heads)
    yield Expected("lm_head", (_number(config, "vocab_size"), hidden))
    for layer in range(min(_number(config, "num_hidden_layers"), MAX_LAYERS)):
        prefix = f"model.layers.{layer}"
        for name, shape in (
            ("q_proj", (heads * head, hidden)), ("k_proj", (groups * head, hidden)),
            ("v_proj", (groups * head, hidden)), ("o_proj", (hidden, heads * head)),
        ):  # fmt: skip
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
    """Whether a layer has experts, as the configuration of Qwen3-MoE says it."""
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
