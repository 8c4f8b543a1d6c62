"""MLX's quantization modes: maps configuration and tensors of a layer to a codec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen
from squish_safetensors.api import StoredParts, build_tensor, require_part, view_part

from squish_core.api import CodecSpec, ErrorCode, FormatError, TensorSpec, UsageError

WEIGHT, SCALES, BIASES, WHOLE = ".weight", ".scales", ".biases", ".global_scale"
AFFINE = "affine"
AFFINE_BITS, AFFINE_GROUPS = (1, 2, 3, 4, 5, 6, 8), (32, 64, 128)


@frozen
class Mode:
    """The quantization of a layer."""

    name: str
    bits: int
    group_size: int


# name -> (bits, group size, parameters of `mx`); defaults of a configuration
FLOATS: dict[str, tuple[int, int, Mapping[str, Any]]] = {
    "mxfp4": (4, 32, {}),
    "mxfp8": (8, 32, {"element": "f8_e4m3"}),
    "nvfp4": (4, 16, {"block_size": 16, "scale_dtype": "f8_e4m3"}),
}


def requested(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings in the read options of a checkpoint that does not declare them.

    UsageError if they are invalid.
    """
    numbers = {name: int(value) for name, value in options.items() if value.isdecimal() and value.isascii()}
    declared = {**options, **numbers}
    try:
        read_mode(declared)
    except FormatError as error:
        raise UsageError(
            f"{error.message} in {{option:format}}",
            expected=error.expected,
            found=error.found,
            code=ErrorCode.OPTION,
            hint="For example {option:format=mlx:bits=4,group_size=64}.",
        ) from None
    return declared


def inferred(declared: Mapping[str, Any], parts: StoredParts) -> Mapping[str, Any]:
    """Return the settings of a layer without its own: the declared ones, or those that alone fit its shapes.

    mlx-lm infers them from the shapes, too (`infer_quant_config`). Bits times group size follow from the widths.
    """
    words, scales = parts.get(WEIGHT), parts.get(SCALES)
    if words is None or scales is None or not words.shape or not scales.shape or not scales.shape[-1]:
        return declared
    product, rest = divmod(32 * words.shape[-1], scales.shape[-1])
    default = read_mode(declared)
    is_affine = scales.dtype != "u8"
    if rest or (default.bits * default.group_size == product and (default.name == AFFINE) == is_affine):
        return declared
    kinds = (
        [(AFFINE, bits, group) for bits in AFFINE_BITS for group in AFFINE_GROUPS]
        if is_affine
        else [(name, bits, group) for name, (bits, group, _) in FLOATS.items()]
    )
    fitting = [kind for kind in kinds if kind[1] * kind[2] == product]
    if len(fitting) != 1:
        return declared
    name, bits, group = fitting[0]
    return {"mode": name, "bits": bits, "group_size": group}


def read_mode(declared: Mapping[str, Any]) -> Mode:
    """Parse the mode in a `quantization` object or a layer's override; FormatError if MLX does not support it."""
    name = declared.get("mode", AFFINE)
    if not isinstance(name, str) or (name != AFFINE and name not in FLOATS):
        raise _refuse("mode", " or ".join((AFFINE, *FLOATS)), name)
    bits, group, _ = FLOATS.get(name, (4, 64, {}))
    mode = Mode(name, declared.get("bits", bits), declared.get("group_size", group))
    legal_bits, legal_groups = (AFFINE_BITS, AFFINE_GROUPS) if name == AFFINE else ((bits,), (group,))
    for field, value, legal in (("bits", mode.bits, legal_bits), ("group_size", mode.group_size, legal_groups)):
        if type(value) is not int or value not in legal:
            raise _refuse(field, f"{' or '.join(map(str, legal))} for {name}", value)
    return mode


def read_layer(layer: str, parts: StoredParts, mode: Mode) -> TensorSpec:
    """Read a layer's weight: `weight` u32 words, `scales`, and for affine `biases`."""
    from squish_codecs.api import Affine, Mx  # not needed to see that a file has no layers

    if WHOLE in parts:
        raise FormatError(
            "unsupported global scales of nvfp4 experts",
            part="global_scale",
            code="global-scale",
            hint="Quantize it without global scales.",
        )
    words = require_part(parts, WEIGHT, ("u32",))
    *lead, width = words.shape or (0,)
    shape = (*lead, width * 32 // mode.bits)
    if mode.name == AFFINE:
        scales = require_part(parts, SCALES, ("f32", "f16", "bf16"))
        biases = require_part(parts, BIASES, ("f32", "f16", "bf16"))
        codec = CodecSpec("affine", affine_params(mode, scales.dtype, biases.dtype))
        fields = {"data": ("weight", words), "scale": ("scales", scales), "offset": ("biases", biases)}
        return build_tensor(layer + WEIGHT, shape, codec, Affine, fields)
    if BIASES in parts:
        raise FormatError(f"unexpected biases: {mode.name} has none", part="biases", code=ErrorCode.CONTRADICTION)
    scales, params = require_part(parts, SCALES, ("u8",)), FLOATS[mode.name][2]
    element = params.get("element")
    data = view_part(words, element, shape) if element else view_part(words, "u8", (*lead, 4 * width))
    scale = view_part(scales, params.get("scale_dtype", "f8_e8m0"), scales.shape)
    fields = {"data": ("weight", data), "scale": ("scales", scale)}
    return build_tensor(layer + WEIGHT, shape, CodecSpec("mx", params), Mx, fields)


def codec_of(mode: Mode) -> CodecSpec:
    """Return the codec of a mode; scales default to float16."""
    if mode.name == AFFINE:
        return CodecSpec("affine", affine_params(mode, "f16", "f16"))
    return CodecSpec("mx", FLOATS[mode.name][2])


def affine_params(mode: Mode, scale: str, bias: str) -> dict[str, Any]:
    """Return the parameters of `affine` for a mode and the dtypes of scales and biases."""
    params: dict[str, Any] = {"bits": mode.bits, "group_size": mode.group_size, "word": "u32", "offset": "bias"}
    if scale != "f32":
        params["scale_dtype"] = scale
    if bias != scale:
        params["offset_dtype"] = bias
    return params


def _refuse(field: str, expected: str, found: Any) -> FormatError:
    return FormatError(
        f"invalid quantization setting {field}",
        part="config.json",
        expected=expected,
        found=repr(found)[:80],
        code=ErrorCode.CONFIG,
    )
