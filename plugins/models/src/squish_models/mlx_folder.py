"""config.json of a mapped model as mlx-lm reads it, or a refusal of what mlx-lm would compute otherwise."""

from __future__ import annotations

import json
from collections.abc import Mapping

from squish_core.api import ErrorCode, TensorSpec, UsageError

from .config.mlx_models import COMPUTED, LACKING, REQUIRED, RESPELLED, SPELLED, mlx_config, refusal
from .config_file import dump_json

TYPES = frozenset((*SPELLED, *RESPELLED, *REQUIRED, *COMPUTED))
"""Model types whose settings mlx-lm reads under names of its own, or without a default."""

OUTER = ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "torch_dtype", "transformers_version")
"""Settings of a whole model, beside those of its text part."""


def for_mlx(data: bytes, tensors: Mapping[str, TensorSpec], name: str, mlx_type: str = "", part: str = "") -> bytes:
    """The config.json of a folder for mlx-lm; UsageError if mlx-lm would not run the model.

    `mlx_type` is mlx-lm's name of the family, if it differs; `part` if it has the family as a part of that.
    """
    config = json.loads(data)
    if part:
        outer = {key: config[key] for key in OUTER if key in config}
        config = {**outer, "model_type": mlx_type, "text_config": config}
        data = dump_json(config)
    elif mlx_type:
        return dump_json({**config, "model_type": mlx_type})
    if config.get("model_type") not in (*TYPES, *LACKING):
        return data
    spelled = mlx_config(config)
    if reason := refusal(spelled, tensors):
        raise UsageError(
            f"mlx-lm would not run {config['model_type']} as it is: {reason}",
            file=name,
            code=ErrorCode.ENGINE,
            hint="Keep the names, for no engine: --names keep.",
        )
    return data if spelled == config else dump_json(spelled)
