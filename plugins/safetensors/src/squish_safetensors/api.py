"""The interface of squish-safetensors for other plugins; names are loaded on first use."""

from __future__ import annotations

from squish_core.api import lazy_exports

_NAMES = {
    "squish_safetensors.folder": ("CONFIG_FILE", "MODEL_ASSETS", "is_model_asset", "model_assets"),
    "squish_safetensors.header": (
        "DTYPE_ORDER", "DTYPE_TAGS", "TensorRecord", "dump_header", "read_header", "read_record", "spec_of_record",
    ),
    "squish_safetensors.refine.checkpoint": ("Checkpoint",),
    "squish_safetensors.refine.declarations": (
        "QUANTIZATION_KEYS", "config_parts", "dropped_declarations", "storage_declarations", "without_declarations",
    ),
    "squish_safetensors.refine.files": ("CheckpointFiles",),
    "squish_safetensors.refine.layers": (
        "LayerReader", "build_tensor", "collect_layers", "lower_layer", "refine_layers", "unmatched_override",
    ),
    "squish_safetensors.refine.parts": ("StoredParts", "bare_parts", "require_part", "stored_part", "view_part"),
    "squish_safetensors.undeclared": ("mark_undeclared",),
    "squish_safetensors.writer": ("accepts_dense", "dropped_non_text", "parse_size", "text_metadata"),
}  # fmt: skip

__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
