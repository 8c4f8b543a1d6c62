"""Layer names of 0.x files, which hold only positions: the order in which each architecture lists its layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

# The order is lm_head, then each layer's attention and MLP, in all of these.
DENSE = frozenset(("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"))
MOE = frozenset(("qwen3_moe",))
MAX_LAYERS, MAX_EXPERTS = 10_000, 10_000


@frozen
class Expected:
    """A layer's name and the shape that the config gives it."""

    name: str
    shape: tuple[int, int]


def known(config: Mapping[str, Any]) -> bool:
    """Whether the order of this architecture is known."""
    return config.get("model_type") in DENSE | MOE


def layer_order(config: Mapping[str, Any], limit: int) -> list[Expected] | None:
    """The layers in the order of their numbers, at most `limit`; None when the config lacks a number."""
    try:
        order = _order(config)
        return [layer for _, layer in zip(range(limit), order)]
    except (KeyError, TypeError, ZeroDivisionError):
        return None


def _order(config: Mapping[str, Any]) -> Iterator[Expected]:
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
        if _is_moe(config, layer):
            for expert in range(min(_number(config, "num_experts"), MAX_EXPERTS)):
                inner = _number(config, "moe_intermediate_size")
                yield from _mlp(f"{prefix}.mlp.experts.{expert}", hidden, inner)
        else:
            yield from _mlp(f"{prefix}.mlp", hidden, _number(config, "intermediate_size"))


def _mlp(prefix: str, hidden: int, inner: int) -> Iterator[Expected]:
    for name, shape in (("gate_proj", (inner, hidden)), ("up_proj", (inner, hidden)), ("down_proj", (hidden, inner))):
        yield Expected(f"{prefix}.{name}", shape)


def _is_moe(config: Mapping[str, Any], layer: int) -> bool:
    """Whether a layer has experts, as the configuration of Qwen3-MoE says it."""
    if config.get("model_type") not in MOE or layer in (config.get("mlp_only_layers") or ()):
        return False
    return (layer + 1) % _number(config, "decoder_sparse_step", 1) == 0 and _number(config, "num_experts") > 0


def _number(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None and default is not None:
        return default
    if type(value) is not int or value < 0:
        raise KeyError(key)
    return value
