"""Models that only an engine knows: their tensors are kept, and config.json is spelled as the engine reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from squish_convert.api import Carried, Family, Model

from squish_core.api import ErrorCode, Options, UsageError, check_assets

from ..config.mlx_models import mlx_config, refusal
from ..config.spelling import QUANTIZATION
from ..gguf_files import REPORTS, VOCABULARIES
from ..mlx_types import STACKING_CODES, UNCOMPARED
from ..settings import CONFIG
from ..tokenizer import describes_tokenizer

EXPERTS_APART = r"\.experts\.\d+\."


class MlxCarried(Family):
    """Models of mlx-lm without a family here."""

    id = "mlx-lm"

    def carry(self, model: Model, settings: Mapping[str, Any], layout: str, options: Options) -> Carried:
        config = model.config()
        assets = {name: data for name, data in model.assets.items() if name not in REPORTS}
        check_assets({name: data for name, data in assets.items() if not describes_tokenizer(name)})
        mlx = mlx_config(config)
        if reason := refusal(mlx, model.tensors):
            raise UsageError(
                f"mlx-lm would not run {config['model_type']} as it is: {reason}",
                file=model.name,
                code=ErrorCode.ENGINE,
                hint="Convert the checkpoint in the layout and spelling in which it was published; or keep names and"
                " settings as they are: {option:rename=keep}.",
            )
        spelled = {key: value for key, value in mlx.items() if key not in QUANTIZATION}
        if spelled != config:
            assets[CONFIG] = (json.dumps(spelled, ensure_ascii=False, indent=2) + "\n").encode()
        return Carried(
            meta=model.meta,
            assets=assets,
            dense_only=() if config["model_type"] in STACKING_CODES else (EXPERTS_APART,),
            notes=_compared(config["model_type"]),
            missing=("tokenizer",) if VOCABULARIES.isdisjoint(assets) else (),
        )


def _compared(model_type: str) -> tuple[str, ...]:
    """A note about a type whose small model computed the same in both engines."""
    return () if model_type in UNCOMPARED else (f"a small {model_type} computed the same in mlx-lm and Transformers",)
