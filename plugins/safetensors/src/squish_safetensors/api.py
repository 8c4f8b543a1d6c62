"""The interface of squish-safetensors for other plugins; names are loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from .folder import CONFIG_FILE as CONFIG_FILE
    from .folder import MODEL_ASSETS as MODEL_ASSETS
    from .folder import is_model_asset as is_model_asset
    from .folder import model_assets as model_assets
    from .header import DTYPE_ORDER as DTYPE_ORDER
    from .header import DTYPE_TAGS as DTYPE_TAGS
    from .header import TensorRecord as TensorRecord
    from .header import dump_header as dump_header
    from .header import read_header as read_header
    from .header import read_record as read_record
    from .header import spec_of_record as spec_of_record
    from .refine.checkpoint import Checkpoint as Checkpoint
    from .refine.declarations import QUANTIZATION_KEYS as QUANTIZATION_KEYS
    from .refine.declarations import config_parts as config_parts
    from .refine.declarations import dropped_declarations as dropped_declarations
    from .refine.declarations import storage_declarations as storage_declarations
    from .refine.declarations import without_declarations as without_declarations
    from .refine.files import CheckpointFiles as CheckpointFiles
    from .refine.layers import LayerReader as LayerReader
    from .refine.layers import build_tensor as build_tensor
    from .refine.layers import collect_layers as collect_layers
    from .refine.layers import lower_layer as lower_layer
    from .refine.layers import refine_layers as refine_layers
    from .refine.layers import unmatched_override as unmatched_override
    from .refine.parts import StoredParts as StoredParts
    from .refine.parts import bare_parts as bare_parts
    from .refine.parts import require_part as require_part
    from .refine.parts import stored_part as stored_part
    from .refine.parts import view_part as view_part
    from .undeclared import mark_undeclared as mark_undeclared
    from .writer import accepts_dense as accepts_dense
    from .writer import dropped_non_text as dropped_non_text
    from .writer import parse_size as parse_size
    from .writer import text_metadata as text_metadata
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
