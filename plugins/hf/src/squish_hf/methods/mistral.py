"""Mistral's own checkpoints (consolidated.safetensors): float8 weights with `qscale_weight`, by name."""

from __future__ import annotations

from squish_codecs.api import FLOAT8_SCALES
from squish_safetensors.api import CheckpointFiles, StoredParts, require_part

from squish_core.api import TensorSpec
from squish_hf.declaration import Declared
from squish_hf.methods.fp8 import WEIGHT, block_of, float8
from squish_hf.methods.method import Method

SUFFIXES = (".qscale_weight",)


def read(declared: Declared, files: CheckpointFiles) -> Method:
    """Read what vLLM and llama.cpp read by name: `weight * qscale_weight`; `qscale_act` belongs to the activations.

    Source: `mistral_mapping` of vLLM, models/llama.py; `dequant_model` of llama.cpp, convert_hf_to_gguf.py.
    """
    return Method(dialect="mistral", suffixes=SUFFIXES, beside=(".qscale_act",), make=_make)


def _make(layer: str, parts: StoredParts) -> TensorSpec:
    scale = require_part(parts, ".qscale_weight", FLOAT8_SCALES)
    weight = parts.get(WEIGHT)
    block = block_of(weight.shape, scale.shape, None) if weight is not None else None
    return float8(layer, parts, scale, block, "qscale_weight")
