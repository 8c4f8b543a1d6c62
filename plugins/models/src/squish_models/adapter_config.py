"""PEFT's `adapter_config.json`: which keys are converted, which are harmless, and why all others are refused.

Separate from `adapters`, which maps tensors, because this table grows with each release of PEFT.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from squish_core.api import FormatError

CONFIG = "adapter_config.json"
CONVERTED = frozenset(
    {"peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alora_invocation_tokens", "fan_in_fan_out"}
)  # fmt: skip
HARMLESS = frozenset(
    {
        # purpose and origin of the adapter
        "task_type", "auto_mapping", "base_model_name_or_path", "revision", "peft_version",
        # which modules were trained: the tensors say so
        "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "ensure_weight_tying",
        # how it was trained, and where it runs
        "inference_mode", "lora_dropout", "megatron_config", "megatron_core", "runtime_config", "velora_config",
        # parameters of other settings, which are refused themselves
        "qalora_group_size", "loftq_config", "eva_config", "corda_config", "lora_ga_config",
        # keys of PEFT before 0.3
        "enable_lora", "merge_weights",
    }
)  # fmt: skip
ORDINARY = ("gaussian", "orthogonal", "mica")
"""Initialisations besides true and false that do not change the base model's weights."""
MERGE = "Merge the adapter into the model (PEFT: merge_and_unload), and convert the result."
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
    "alpha_pattern": MERGE, "peft_type": MERGE,
}  # fmt: skip
_UNSET: tuple[Any, ...] = (None, False, {}, [], "", "none")


def check_config(config: Mapping[str, Any]) -> None:
    """Raise FormatError for the first key that is set and neither converted nor harmless."""
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        raise FormatError(
            "unsupported kind of adapter",
            part=f"{CONFIG} peft_type",
            expected="LORA",
            found=repr(kind)[:60],
            code="adapter",
            hint=MERGE,
        )
    initialisation = config.get("init_lora_weights", True)
    if not isinstance(initialisation, bool) and initialisation is not None and initialisation not in ORDINARY:
        raise FormatError(
            "starts from a different base model: PEFT changes its weights with this initialisation",
            part=f"{CONFIG} init_lora_weights",
            found=repr(initialisation)[:60],
            code="adapter",
            hint="Save it as an ordinary LoRA with PEFT (path_initial_model_for_weight_conversion of save_pretrained). "
            "If PEFT did not change the base model, as with 'eva', set init_lora_weights to true.",
        )
    for key, value in config.items():
        if key in CONVERTED or key in HARMLESS or key == "init_lora_weights" or value in _UNSET:
            continue
        raise FormatError(
            REFUSED.get(key, "is unknown to Squish and may change what the adapter computes"),
            part=f"{CONFIG} {key}",
            found=repr(value)[:60],
            code="adapter",
            hint=HINTS.get(key, MERGE),
        )


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
