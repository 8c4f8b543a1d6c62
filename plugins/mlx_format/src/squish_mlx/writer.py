"""Writes MLX checkpoints: safetensors shards, and a config.json with each layer's mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import asdict
from squish_codecs.api import Affine, Mx, mx_params
from squish_safetensors.api import accepts_dense, bare_parts, lower_layer, without_declarations

from squish_core.api import (
    Codec,
    CodecSpec,
    CodeLayout,
    Encoding,
    OutgoingTensor,
    Part,
    Refusal,
    SquishError,
    TensorError,
    TensorSpec,
)
from squish_mlx.modes import (
    AFFINE,
    AFFINE_BITS,
    AFFINE_GROUPS,
    BIASES,
    FLOATS,
    SCALES,
    WEIGHT,
    Mode,
    affine_params,
)


def accepts(spec: TensorSpec, encoding: Encoding) -> Encoding | Refusal:
    """Accept dense tensors and MLX's floating-point modes, or refuse."""
    codec = encoding.codec
    if codec.id == "dense":
        return accepts_dense(spec, encoding)
    if refusal := _refusal(spec):
        return refusal
    if codec.id != "mx":
        return Refusal(why=f"MLX has no layout for codec {codec.id}; choose one with --encode", code="codec")
    if dict(codec.params) not in [dict(params) for *_, params in FLOATS.values()]:
        return Refusal(why=f"MLX stores mxfp4, mxfp8 and nvfp4 without a global scale, not {codec}", code="codec")
    return Encoding(codec=codec, parts=bare_parts(encoding.parts))


def accepts_codes(spec: TensorSpec, layout: CodeLayout) -> Encoding | Refusal | None:
    """Return MLX's affine mode for these codes; larger groups are split."""
    if refusal := _refusal(spec):
        return refusal
    if layout.table is not None:
        params = mx_params(layout)
        legal_params = any(params == dict(legal) for *_, legal in FLOATS.values())
        return _declared(spec, CodecSpec("mx", params)) if params is not None and legal_params else None
    group = spec.shape[-1] if layout.row_group == 0 else layout.row_group
    fitting = [size for size in AFFINE_GROUPS if group and group % size == 0]
    if layout.bits not in AFFINE_BITS or not fitting:
        legal = f"{_listing(AFFINE_BITS)} bits in groups of {_listing(AFFINE_GROUPS)} columns"
        other = f"{layout.bits} bits in {f'groups of {group}' if group else 'groups across rows'}"
        return Refusal(why=f"MLX stores {legal}, not {other}", code="affine")
    return _declared(spec, CodecSpec("affine", affine_params(Mode(AFFINE, layout.bits, fitting[-1]), *_floats(layout))))


def _listing(numbers: Sequence[int]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} or {last}"


def _refusal(spec: TensorSpec) -> Refusal | None:
    """Return why MLX cannot quantize a tensor of this name or shape."""
    if not spec.name.endswith(WEIGHT):
        return Refusal(why="MLX quantizes only tensors named <layer>.weight", code="name")
    if not spec.elements or not spec.shape:
        return Refusal(why=f"MLX cannot quantize a tensor of the shape {list(spec.shape)}", code="shape")
    return None


_CODECS: dict[str, type[Codec]] = {"affine": Affine, "mx": Mx}


def _declared(spec: TensorSpec, codec: CodecSpec) -> Encoding | Refusal:
    """Return the parts of a codec, or a refusal if they do not divide the shape."""
    try:
        declared = _CODECS[codec.id].from_params(codec.params).parts(spec)
    except SquishError as error:
        return Refusal(why=error.message, code="affine")
    parts = {role: Part(dtype=dtype, shape=shape) for role, (dtype, shape) in declared.items()}
    return Encoding(codec=codec, parts=parts)


def declare(config: Mapping[str, Any], specs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Declare the layers' modes in a configuration: the most common one globally, the others per layer.

    TensorError for a dense tensor that readers would mistake for the scales of a layer.
    """
    modes = {spec.name.removesuffix(WEIGHT): _mode(spec) for spec in specs if spec.encodings[0].codec.id != "dense"}
    undeclared = without_declarations(config)
    if not modes:
        return undeclared
    for spec in specs:
        if spec.encodings[0].codec.id == "dense" and spec.name.endswith((SCALES, BIASES)):
            raise TensorError(
                f"its name is reserved for a layer's {spec.name.rpartition('.')[2]} in a quantized MLX checkpoint",
                tensor=spec.name,
                code="names",
                hint="Exclude it ({option:only}), or write only dense tensors ({option:encode=f16}).",
            )
    common = Counter(modes.values()).most_common(1)[0][0]
    declarations = {layer: _declaration(mode) for layer, mode in modes.items() if mode != common}
    declared = {**_declaration(common), **declarations}
    return {**undeclared, "quantization": declared, "quantization_config": declared}


def _declaration(mode: Mode) -> dict[str, Any]:
    values = asdict(mode)
    return {"group_size": values["group_size"], "bits": values["bits"], "mode": values["name"]}


def _floats(layout: CodeLayout) -> tuple[str, str]:
    """Return the dtypes of scales and biases; a bias computed from a zero point needs more bits than a narrow scale."""
    scale = layout.scale_dtype
    if scale not in ("f32", "f16", "bf16") or layout.offset_kind == "zero_point":
        return "f32", "f32"
    return scale, str(layout.offset_dtype) if layout.offset_kind == "bias" else scale


def _mode(spec: TensorSpec) -> Mode:
    codec = spec.encodings[0].codec
    if codec.id == "affine":
        return Mode(AFFINE, codec.params["bits"], codec.params["group_size"])
    return next(
        Mode(name, bits, group) for name, (bits, group, params) in FLOATS.items() if dict(params) == dict(codec.params)
    )


def lower(tensor: OutgoingTensor) -> list[OutgoingTensor]:
    """Return the stored tensors of a tensor."""
    spec, (encoding,) = tensor.spec, tensor.spec.encodings
    if encoding.codec.id == "dense":
        return [tensor]
    layer, parts = spec.name.removesuffix(WEIGHT), encoding.parts
    words = (*parts["data"].shape[:-1], parts["data"].nbytes // max(_rows(spec), 1) // 4)
    fields = [(layer + WEIGHT, "u32", words, "data")]
    if encoding.codec.id == "mx":
        fields.append((layer + SCALES, "u8", parts["scale"].shape, "scale"))
    else:
        for suffix, role in ((SCALES, "scale"), (BIASES, "offset")):
            fields.append((layer + suffix, parts[role].dtype, parts[role].shape, role))
    return lower_layer(tensor, fields)


def _rows(spec: TensorSpec) -> int:
    return spec.elements // spec.shape[-1] if spec.shape[-1] else 0
