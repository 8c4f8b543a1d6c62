"""ModelOpt: NVFP4 (the global scale multiplies), MXFP4, MXFP8, FP8, and 4- and 8-bit integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from squish_codecs.api import FLOAT8_DTYPES, Affine, Mx
from squish_safetensors.api import CheckpointFiles, StoredParts, build_tensor, require_part, view_part

from squish_core.api import CodecSpec, FormatError, Part, TensorSpec
from squish_hf.declaration import Declared, refuse
from squish_hf.methods.compressed_formats import FLOATS, exponents
from squish_hf.methods.fp8 import FUSED, WEIGHT, block_of, float8, other_parts
from squish_hf.methods.method import CACHE, Method

SUFFIXES = (".weight_scale", ".weight_scale_inv", ".weight_scale_2", "_weight_scale", "_weight_scale_2")
BESIDE = (*CACHE, ".input_scale", "_input_scale")
FP8_BLOCK = [128, 128]
FP8_BLOCKS = "FP8_BLOCK_SCALES"
OWN_FILE = "hf_quant_config.json"
GROUPS = {
    ("float", 8, None): "FP8", ("float", 4, 16): "NVFP4", ("float", 4, 32): "MXFP4", ("float", 8, 32): "MXFP8",
    ("int", 8, None): "W8A8_SQ_PER_CHANNEL", ("int", 4, 128): "W4A16_AWQ",
}  # fmt: skip
"""Type, bits and group size of `weights` in `config_groups` -> `quant_algo`."""


def read(declared: Declared, files: CheckpointFiles) -> Method:
    """Read `quant_algo`, global or per layer (`quantized_layers`, targets of `config_groups`); absent if only the cache
    is quantized."""
    algorithm = declared.get("quant_algo", str, "").upper()
    layers = _layers(declared, files)
    if algorithm and algorithm not in ALGORITHMS and not layers:
        raise refuse("quant_algo", " or ".join(ALGORITHMS), algorithm, part=declared.where)

    def make(layer: str, parts: StoredParts) -> TensorSpec:
        own = layers.get(layer, {})
        algorithm_of_layer = own.get("quant_algo", algorithm) if isinstance(own, dict) else None
        if not own:
            algorithm_of_layer = _float8_algorithm(parts) or algorithm_of_layer
        if not isinstance(algorithm_of_layer, str) or algorithm_of_layer.upper() not in ALGORITHMS:
            raise refuse("quant_algo", " or ".join(ALGORITHMS), algorithm_of_layer, part=declared.where)
        if FUSED in parts:
            return _experts(layer, parts, algorithm_of_layer)
        return ALGORITHMS[algorithm_of_layer.upper()](layer, parts)

    return Method(
        dialect=f"modelopt {algorithm}".strip(),
        suffixes=SUFFIXES,
        bases=(WEIGHT, FUSED),
        beside=BESIDE,
        make=make,
        packed=FLOAT8_DTYPES,
        idle=lambda names: layers.keys() - names,
    )


def _layers(declared: Declared, files: CheckpointFiles) -> Mapping[str, Any]:
    """Return the settings of layers by name: of config.json, of ModelOpt's own file, or by the targets of groups."""
    layers: Mapping[str, Any] = declared.get("quantized_layers", dict, {})
    own = files.json(OWN_FILE).get("quantization")
    if not layers and isinstance(own, dict) and isinstance(own.get("quantized_layers"), dict):
        layers = own["quantized_layers"]
    groups = [group for group in declared.get("config_groups", dict, {}).values() if isinstance(group, dict)]
    by_group = {
        target: {"quant_algo": algorithm}
        for group in groups
        if (algorithm := _group_algorithm(group.get("weights")))
        for target in group.get("targets") or ()
        if isinstance(target, str) and "." in target
    }
    return {**by_group, **layers}


def _group_algorithm(weights: Any) -> str | None:
    """Return the algorithm of a group's weights, as ModelOpt's `convert_hf_quant_config_format` does."""
    if not isinstance(weights, dict):
        return None
    kind, bits, group = weights.get("type"), weights.get("num_bits"), weights.get("group_size")
    return next((name for setting, name in GROUPS.items() if setting == (kind, bits, group)), None)


def _float8_algorithm(parts: StoredParts) -> str | None:
    """Return the algorithm of float8 codes outside the list of layers, such as embeddings next to NVFP4."""
    weight = parts.get(".weight")
    if weight is None or weight.dtype not in FLOAT8_DTYPES:
        return None
    if ".weight_scale_inv" in parts:
        return FP8_BLOCKS
    scale = parts.get(".weight_scale")
    if scale is None or len(scale.shape) == 4:
        return None
    return "MXFP8" if scale.dtype in ("u8", "f8_e8m0") else "FP8"


def _nvfp4(layer: str, parts: StoredParts) -> TensorSpec:
    codes, scale = require_part(parts, ".weight", ("u8",)), require_part(parts, ".weight_scale", ("f8_e4m3",))
    whole = view_part(require_part(parts, ".weight_scale_2", ("f32",)), "f32", ())
    block = 2 * codes.shape[-1] // scale.shape[-1] if codes.shape and scale.shape and scale.shape[-1] else 16
    params = {"block_size": 32 if block == 32 else 16, "scale_dtype": "f8_e4m3", "global_scale": "multiply"}
    fields = {"data": ("weight", codes), "scale": ("weight_scale", scale), "global_scale": ("weight_scale_2", whole)}
    return _microscaled(layer, parts, params, fields)


def _mxfp4(layer: str, parts: StoredParts) -> TensorSpec:
    fields = {"data": ("weight", require_part(parts, ".weight", ("u8",))), "scale": ("weight_scale", exponents(parts))}
    return _microscaled(layer, parts, {}, fields)


def _mxfp8(layer: str, parts: StoredParts) -> TensorSpec:
    codes = require_part(parts, ".weight", FLOAT8_DTYPES[:2])
    fields = {"data": ("weight", codes), "scale": ("weight_scale", exponents(parts))}
    return _microscaled(layer, parts, {"element": codes.dtype}, fields)


def _microscaled(
    layer: str, parts: StoredParts, params: dict[str, Any], fields: dict[str, tuple[str, Part]]
) -> TensorSpec:
    codes = fields["data"][1]
    *lead, width = codes.shape or (0,)
    shape = (*lead, width if "element" in params else 2 * width)
    extras = other_parts(parts, *(name for name, _ in fields.values()))
    return build_tensor(f"{layer}.weight", shape, CodecSpec("mx", params), Mx, fields, extras)


def _fp8(layer: str, parts: StoredParts) -> TensorSpec:
    weight, scale = require_part(parts, ".weight", FLOAT8_DTYPES), require_part(parts, ".weight_scale", FLOATS)
    return float8(layer, parts, scale, block_of(weight.shape, scale.shape, None), "weight_scale")


def _experts(layer: str, parts: StoredParts, algorithm: str) -> TensorSpec:
    """Read fused experts (`gate_up_proj` and `gate_up_proj_weight_scale`) with one scale in total or per expert."""
    if algorithm.upper() != "FP8":
        raise FormatError(
            "unsupported transposed order of fused experts",
            part="_weight_scale",
            expected="FP8",
            found=algorithm,
            code="layout",
            hint="Export them from a model whose experts are separate modules.",
        )
    weight, scale = require_part(parts, FUSED, FLOAT8_DTYPES), require_part(parts, "_weight_scale", FLOATS)
    return float8(layer, parts, scale, block_of(weight.shape, scale.shape, None), "_weight_scale", FUSED)


def _fp8_blocks(layer: str, parts: StoredParts) -> TensorSpec:
    """Read 128 by 128 blocks; scales have additional axes of 1, or no axes for a single block."""
    scale = require_part(parts, ".weight_scale", FLOATS)
    scale = view_part(scale, scale.dtype, scale.shape[::2] if len(scale.shape) == 4 else (1, 1))
    return float8(layer, parts, scale, FP8_BLOCK, "weight_scale")


def _fp8_inverse(layer: str, parts: StoredParts) -> TensorSpec:
    """Read blocks as DeepSeek stores them, which TensorRT-LLM calls FP8_BLOCK_SCALES: `weight_scale_inv` multiplies."""
    field = ".weight_scale_inv" if ".weight_scale_inv" in parts else ".weight_scale"
    return float8(layer, parts, require_part(parts, field, FLOATS), FP8_BLOCK, field.lstrip("."))


def _int8(layer: str, parts: StoredParts) -> TensorSpec:
    return _integers(layer, parts, require_part(parts, ".weight", ("i8",), rank=2), {"bits": 8, "word": "i8"})


def _int4(layer: str, parts: StoredParts) -> TensorSpec:
    """Read two's complement nibbles of two rows per byte, the first row low."""
    codes = require_part(parts, ".weight", ("u8",), rank=2)
    groups = require_part(parts, ".weight_scale", FLOATS, rank=2).shape[1]
    params = {"bits": 4, "group_size": codes.shape[1] // max(groups, 1), "pack_axis": -2}
    return _integers(layer, parts, codes, params, pack=2)


def _integers(layer: str, parts: StoredParts, codes: Part, params: dict[str, Any], pack: int = 1) -> TensorSpec:
    scale = require_part(parts, ".weight_scale", FLOATS)
    if len(scale.shape) == 1:
        scale = view_part(scale, scale.dtype, (*scale.shape, 1))
    params = {**params, "signed": True, "scale_dtype": scale.dtype}
    shape = (pack * codes.shape[0], codes.shape[1])
    fields = {"data": ("weight", codes), "scale": ("weight_scale", scale)}
    extras = other_parts(parts, "weight", "weight_scale")
    return build_tensor(f"{layer}.weight", shape, CodecSpec("affine", params), Affine, fields, extras)


ALGORITHMS: dict[str, Callable[[str, StoredParts], TensorSpec]] = {
    **dict.fromkeys(("NVFP4", "W4A16_NVFP4", "NVFP4_AWQ", "W4A8_NVFP4_FP8"), _nvfp4),
    **dict.fromkeys(("MXFP4", "W4A8_MXFP4_FP8"), _mxfp4),
    **dict.fromkeys(("W8A16", "W8A8_SQ_PER_CHANNEL"), _int8),
    **dict.fromkeys(("FP8", "FP8_PER_CHANNEL_PER_TOKEN"), _fp8),
    "W4A16_AWQ": _int4,
    "MXFP8": _mxfp8,
    "FP8_PB_WO": _fp8_blocks,
    FP8_BLOCKS: _fp8_inverse,
}
"""`quant_algo` -> reader of a weight. Those with AWQ or SQ store a scale of the inputs with some layers."""
