"""PEFT's `adapter_config.json`: which keys are converted to GGUF, and why others are refused.

Separate from `adapters`, which maps tensors, because this table grows with each release of PEFT.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from squish_convert.api import check_adapter_config

from squish_core.api import FormatError

CONFIG = "adapter_config.json"
CONVERTED = frozenset(
    {"peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alora_invocation_tokens", "fan_in_fan_out"}
)  # fmt: skip
MERGE = "Merge the adapter into the model (PEFT: merge_and_unload), and convert the result."
MERGE_HERE = "`squish merge BASE ADAPTER -o OUT` adds it to the model."
ONLY_MATRICES = "and an adapter in GGUF has only pairs of matrices"
REFUSED = {
    "modules_to_save": f"holds whole modules, {ONLY_MATRICES}",
    "trainable_token_indices": f"holds rows of the embeddings, {ONLY_MATRICES}",
    "target_parameters": "adapts parameters of fused experts, whose matrices GGUF stores differently",
    "layer_replication": "repeats layers of the base model, which an adapter in GGUF cannot do",
    "alpha_pattern": "has several scales, and GGUF has one alpha for all matrices",
    "use_dora": "scales the columns of the base model, and llama.cpp only adds",
    "bias": f"has biases, {ONLY_MATRICES}",
    "lora_bias": f"has biases, {ONLY_MATRICES}",
    "invocation_string": "is activated by a text that would have to be tokenized",
}
"""Key -> what an adapter that sets it contains, and why GGUF cannot store it."""
HINTS = {
    "invocation_string": "State its tokens as alora_invocation_tokens instead.",
    "alpha_pattern": MERGE_HERE,
}  # fmt: skip


def check_config(config: Mapping[str, Any]) -> None:
    """Raise FormatError for the first key that is set and neither converted nor harmless."""
    check_adapter_config(config, CONVERTED, REFUSED, HINTS, MERGE)


def invocation_tokens(config: Mapping[str, Any]) -> list[int]:
    """Return the tokens that activate an aLoRA; none for other adapters."""
    tokens = config.get("alora_invocation_tokens") or []
    if isinstance(tokens, list) and all(type(token) is int and 0 <= token < 1 << 32 for token in tokens):
        return tokens
    raise FormatError(
        "is not a list of tokens",
        part=f"{CONFIG} alora_invocation_tokens",
        expected="numbers such as [263, 40]",
        found=repr(tokens)[:60],
        code="adapter",
    )
