"""PEFT's `adapter_config.json`: which keys change nothing, and why others that a reader does not know are refused.

Separate from `merge` and the families' adapters, which share it, because the table grows with each release of PEFT.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from squish_core.errors import FormatError

from .mapping.mapped import ADAPTER_FILE

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
"""Initializations besides true and false that do not change the base model's weights."""
_UNSET: tuple[Any, ...] = (None, False, {}, [], "", "none")


def check_adapter_config(
    config: Mapping[str, Any], known: Collection[str], reasons: Mapping[str, str], hints: Mapping[str, str], hint: str
) -> None:
    """Refuse an adapter with a setting that its reader does not know.

    Parameters
    ----------
    config
        The content of adapter_config.json.
    known
        The settings that the reader applies.
    reasons
        Setting -> why an adapter that has it is refused.
    hints, hint
        Setting -> what to do instead, and the same for all others.

    Raises
    ------
    FormatError
        A setting is neither known nor harmless (code `adapter`).

    Examples
    --------
    >>> check_adapter_config({"r": 8, "lora_dropout": 0.1}, {"r"}, {}, {}, "")
    """
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        raise FormatError(
            "unsupported kind of adapter",
            part=f"{ADAPTER_FILE} peft_type",
            expected="LORA",
            found=repr(kind)[:60],
            code="adapter",
            hint=hints.get("peft_type", hint),
        )
    initialization = config.get("init_lora_weights", True)
    if not isinstance(initialization, bool) and initialization is not None and initialization not in ORDINARY:
        raise FormatError(
            "starts from a different base model: PEFT changes its weights with this initialization",
            part=f"{ADAPTER_FILE} init_lora_weights",
            found=repr(initialization)[:60],
            code="adapter",
            hint="Save it as an ordinary LoRA with PEFT (path_initial_model_for_weight_conversion of save_pretrained). "
            "If PEFT did not change the base model, as with 'eva', set init_lora_weights to true.",
        )
    for key, value in config.items():
        if key in known or key in HARMLESS or key == "init_lora_weights" or value in _UNSET:
            continue
        raise FormatError(
            reasons.get(key, "is unknown to Squish and may change what the adapter computes"),
            part=f"{ADAPTER_FILE} {key}",
            found=repr(value)[:60],
            code="adapter",
            hint=hints.get(key, hint),
        )
