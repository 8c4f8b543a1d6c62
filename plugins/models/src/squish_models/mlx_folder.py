"""config.json of a mapped model as mlx-lm reads it, or a refusal of what mlx-lm would compute otherwise."""

from __future__ import annotations

import json
from collections.abc import Mapping

from squish_core.api import TensorSpec, UsageError

from .config.mlx_models import COMPUTED, REQUIRED, RESPELLED, SPELLED, mlx_config, refusal
from .config_file import dump_json

TYPES = frozenset((*SPELLED, *RESPELLED, *REQUIRED, *COMPUTED))
"""Model types whose settings mlx-lm reads under names of its own, or without a default."""


def for_mlx(data: bytes, tensors: Mapping[str, TensorSpec], name: str, mlx_type: str = "") -> bytes:
    """The config.json of a folder for mlx-lm; UsageError if mlx-lm would not run the model.

    `mlx_type` is mlx-lm's name of the family, if it differs.
    """
    config = json.loads(data)
    if mlx_type:
        return dump_json({**config, "model_type": mlx_type})
    if config.get("model_type") not in TYPES:
        return data
    spelled = mlx_config(config)
    if reason := refusal(spelled, tensors):
        raise UsageError(
            f"mlx-lm would not run {config['model_type']} as it is: {reason}",
            file=name,
            code="engine",
            hint="Keep the names, for no engine: --names keep.",
        )
    return data if spelled == config else dump_json(spelled)
