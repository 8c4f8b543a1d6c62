"""Writes GPTQ, AWQ, compressed-tensors, FP8, ModelOpt and gpt-oss: codes of any format in the method's layout."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import evolve
from squish_codecs.api import Affine, Mx, mx_params
from squish_safetensors.api import accepts_dense, bare_parts, lower_layer, without_declarations

from squish_core.api import (
    Codec,
    CodecSpec,
    CodeLayout,
    Encoding,
    ErrorCode,
    FormatError,
    Options,
    OutgoingTensor,
    Part,
    Refusal,
    SquishError,
    TensorSpec,
    UsageError,
)
from squish_hf.methods.awq import ORDER
from squish_hf.methods.column_scales import ID as SCALED
from squish_hf.methods.column_scales import ROLE
from squish_hf.methods.forms import (
    FBGEMM,
    FP8,
    GPT_OSS,
    LEGAL,
    MODELOPT,
    MXFP4,
    PACKED,
    WEIGHT,
    Setting,
    accepts_experts,
    accepts_layer,
    declaration,
    form_of,
    stored_fields,
)

METHOD = "method"
GPTQ, GPTQ_V2, AWQ = "gptq", "gptq_v2", "awq"
GPTQS = (GPTQ, GPTQ_V2)
METHODS = (*GPTQS, AWQ, PACKED, GPT_OSS, FP8, FBGEMM, MODELOPT)
MXFP4_CODECS = ("ggml.mxfp4", "mx")
FLOAT_METHODS = (PACKED, FP8, FBGEMM, MODELOPT)
"""Methods with float codes."""
INTEGER_METHODS = (*GPTQS, AWQ, PACKED)
BITS = {
    GPTQ: (2, 3, 4, 8), GPTQ_V2: (2, 3, 4, 8), AWQ: (4,), PACKED: (2, 3, 4, 5, 6, 7, 8), GPT_OSS: (4,), FP8: (8,),
    FBGEMM: (8,), MODELOPT: (4, 8),
}  # fmt: skip
EXAMPLES = {
    **dict.fromkeys(INTEGER_METHODS, "*_proj.weight=int4"), FP8: "*_proj.weight=fp8",
    FBGEMM: "*_proj.weight=fp8_row", MODELOPT: "*_proj.weight=nvfp4", GPT_OSS: "*.experts.*_proj=mxfp4",
}  # fmt: skip
"""A rule of `encode=` for each method."""
TORCH_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}
NAMES = {"data": "qweight", "offset": "qzeros", "scale": "scales", "g_idx": "g_idx"}
PACKED_NAMES = {
    "data": "weight_packed", "scale": "weight_scale", "offset": "weight_zero_point", "g_idx": "weight_g_idx",
}  # fmt: skip


def accepts(spec: TensorSpec, encoding: Encoding, options: Options) -> Encoding | Refusal:
    """Accept dense tensors, microscaled codes, and the method's codes in activation order, or refuse."""
    method, codec = chosen(options), encoding.codec
    if codec.id == "dense":
        return accepts_dense(spec, encoding)
    if codec.id == SCALED and codec.inner and method:
        return _accepts_scaled(spec, encoding, codec.inner, method)
    if not method:
        if codec.id == "transpose" and codec.inner and codec.inner.id in MXFP4_CODECS:
            return Refusal(why="hf without a method transposes experts, not their codes; hf:method=mxfp4 stores these")
        return _dense_only(codec.id, "such codes", lambda other: accepts(spec, encoding, {METHOD: other}))
    if method == GPT_OSS:
        return accepts_experts(spec, encoding)
    if method in FLOAT_METHODS and codec.id in ("mx", "float8") and spec.name.endswith(WEIGHT):
        return accepts_layer(spec, encoding, method)
    if method not in INTEGER_METHODS:
        return Refusal(why=f"{method} stores {LEGAL[method]} for matrices named <layer>.weight, not {codec.id}")
    if codec.inner and codec.inner.id == "affine":
        layout = Affine.from_params(codec.inner.params).code_layout(spec)
        # The data determine whether groups are in activation order.
        if layout and _same(codec.inner, _codec(method, layout)):
            return Encoding(codec=codec, parts=bare_parts(encoding.parts))
    return Refusal(why=f"{method} stores integer codes for matrices named <layer>.weight, not {codec.id}")


def _accepts_scaled(spec: TensorSpec, encoding: Encoding, inner: CodecSpec, method: str) -> Encoding | Refusal:
    """Accept a matrix with scales of its inputs, which only ModelOpt stores."""
    if method != MODELOPT or inner.id == "dense":
        return Refusal(why=f"{method} cannot store scales of inputs with {inner.id}; modelopt can, with float codes")
    stored = bare_parts(encoding.parts)
    scale = stored.pop(ROLE)
    answer = accepts(spec, Encoding(codec=inner, parts=stored), {METHOD: method})
    if isinstance(answer, Refusal):
        return answer
    return Encoding(codec=evolve(encoding.codec, inner=answer.codec), parts={**answer.parts, ROLE: scale})


def accepts_codes(spec: TensorSpec, layout: CodeLayout, options: Options) -> Encoding | Refusal | None:
    """Return the method's encoding of codes; the data determine whether it is exact."""
    method, floats = chosen(options), mx_params(layout)
    if not method:
        condition = " if its biases are multiples of its scales" if layout.offset_kind == "bias" else ""
        codes = f"its {layout.bits}-bit codes{condition}"
        return _dense_only("its codes", codes, lambda other: accepts_codes(spec, layout, {METHOD: other}))
    if floats is not None and method in (GPT_OSS, PACKED, MODELOPT):
        encoding = Encoding(codec=CodecSpec("mx", floats), parts=_parts(Mx.from_params(floats), spec))
        return accepts_experts(spec, encoding) if method == GPT_OSS else accepts_layer(spec, encoding, method)
    if method not in INTEGER_METHODS:
        return None
    if layout.table is not None or not spec.name.endswith(WEIGHT) or len(spec.shape) != 2:
        return None
    if layout.row_group is None:
        return Refusal(why=f"{method} stores groups along rows, not across them")
    if layout.bits not in BITS[method]:
        return Refusal(why=_no_width(method, layout.bits), code="bits")
    codec = _codec(method, layout)
    try:
        return Encoding(codec=codec, parts=_parts(Affine.from_params(codec.params), spec))
    except SquishError as error:
        return Refusal(why=error.message, code="affine")


def _dense_only(what: str, codes: str, answer: Callable[[str], Encoding | Refusal | None]) -> Refusal:
    """Refuse codes without a method, and list the methods that store them."""
    fitting = [method for method in METHODS if isinstance(answer(method), Encoding)]
    choice = f" (methods for {codes}: {', '.join(fitting)}; hf:method={fitting[0]})" if fitting else ""
    return Refusal(why=f"hf without a method stores only dense tensors, not {what}{choice}")


def _parts(codec: Codec, spec: TensorSpec) -> dict[str, Part]:
    return {role: Part(dtype=dtype, shape=shape) for role, (dtype, shape) in codec.parts(spec).items()}


def default_encoding(method: str, width: str | None) -> Encoding | Refusal:
    """Return a method's default encoding for a width, with groups of 128 and float16 scales if it has a choice.

    Without a width it is 4 bits if the method has them.
    """
    bits = int(width) if width else 4 if 4 in BITS[method] else BITS[method][-1]
    layout = CodeLayout(bits=bits, signed=True, group=(1, 128), scale_dtype="f16")
    codec = FLOAT_DEFAULTS.get((method, bits)) or _codec(method, layout)
    codec = evolve(
        codec, params={key: codec.params[key] for key in codec.params if key != "symmetric"}
    )  # the form that is read
    # The packages of GPTQ store the group of each column.
    encoding = Encoding(codec=CodecSpec("hf.act_order", inner=codec) if method in GPTQS else codec, parts={})
    if bits in BITS[method]:
        return encoding
    return Refusal(backend=None, encoding=encoding, code="bits", why=_no_width(method, bits))


FLOAT_DEFAULTS = {
    (GPT_OSS, 4): CodecSpec("mx", MXFP4), (FP8, 8): CodecSpec("float8", {"block": [128, 128]}),
    (FBGEMM, 8): CodecSpec("float8", {"block": [1, 0]}), (MODELOPT, 8): CodecSpec("float8"),
    (MODELOPT, 4): CodecSpec("mx", {"block_size": 16, "scale_dtype": "f8_e4m3", "global_scale": "multiply"}),
}  # fmt: skip
"""(method, bits) -> default codec of a method with float codes."""


def chosen(options: Options) -> str:
    """Return the method in the options; "" for dense values."""
    method = options.get(METHOD, "")
    if METHOD in options and method not in METHODS:
        raise FormatError(
            "hf cannot write this method",
            expected=", ".join(METHODS),
            found=repr(method),
            code=ErrorCode.OPTION,
            hint="For example --to hf:method=awq.",
        )
    return method


def _no_width(method: str, bits: int) -> str:
    return f"{method} stores codes of {', '.join(map(str, BITS[method]))} bits, not {bits}"


def _codec(method: str, layout: CodeLayout) -> CodecSpec:
    """Return a method's affine parameters for a code layout."""
    params: dict[str, Any] = {"bits": layout.bits, "group_size": layout.row_group, "word": "i32"}
    if layout.scale_dtype != "f32":
        params["scale_dtype"] = layout.scale_dtype if layout.scale_dtype in ("f16", "bf16") else "f16"
    if method == PACKED:
        if layout.is_symmetric:
            return CodecSpec("affine", {**params, "zero": 1 << layout.bits - 1})
        return CodecSpec("affine", {**params, "offset": "zero_point", "offset_dtype": "packed"})
    params.update(axis=-2, transposed=True, offset="zero_point", offset_dtype="packed")
    if method == AWQ:
        return CodecSpec("affine", {**params, "pack_axis": -1, "order": ORDER})
    if method == GPTQ:
        params["zero"] = 1
    if layout.is_symmetric:
        params["symmetric"] = True
    return CodecSpec("affine", params)


def _same(one: CodecSpec, other: CodecSpec) -> bool:
    default = {"scale_dtype": "f32"}
    return {**default, **one.params} == {**default, **other.params}


def lower(tensor: OutgoingTensor, method: str) -> list[OutgoingTensor]:
    """Return the stored tensors of a tensor."""
    spec, (encoding,) = tensor.spec, tensor.spec.encodings
    if encoding.codec.id == "dense":
        return [tensor]
    if encoding.codec.id in ("mx", "float8", SCALED):
        return lower_layer(tensor, stored_fields(spec, encoding, method))
    layer = spec.name.removesuffix(WEIGHT)
    names = PACKED_NAMES if method == PACKED else NAMES
    fields: list[tuple[str, str, tuple[int, ...], str | bytes]] = [
        (f"{layer}.{name}", encoding.parts[role].dtype, encoding.parts[role].shape, role)
        for role, name in names.items()
        if role in encoding.parts
    ]
    if method in GPTQS and "g_idx" not in encoding.parts:  # some readers require it
        group = encoding.codec.params["group_size"] or max(spec.shape[1], 1)
        order = np.arange(spec.shape[1], dtype="<i4") // group
        fields.append((f"{layer}.g_idx", "i32", order.shape, order.astype("<i4").tobytes()))
    if method == PACKED:
        fields.append((f"{layer}.weight_shape", "i64", (2,), struct.pack("<2q", *spec.shape)))
    return lower_layer(tensor, fields)


def declare(config: Mapping[str, Any], specs: Sequence[TensorSpec], method: str) -> dict[str, Any]:
    """Declare all quantized layers in a configuration; FormatError if the method cannot."""
    codecs = {
        spec.name.removesuffix(WEIGHT): spec.encodings[0].codec.inner or spec.encodings[0].codec
        for spec in specs
        if spec.encodings[0].codec.id != "dense"
    }
    undeclared = without_declarations(config)
    if not codecs and method:
        raise UsageError(
            f"no tensor has codes that {method} stores, so the folder would declare nothing",
            code=ErrorCode.ENGINE,
            hint=f"Encode some with {{option:encode={EXAMPLES[method]}}}; or write a folder of floats: "
            "{option:to=hf}.",
        )
    if not codecs:
        return with_dtype(undeclared, specs)
    before = config.get("quantization_config")
    before = before if isinstance(before, dict) else {}
    if method == GPT_OSS:
        own = before if before.get("quant_method") == GPT_OSS else {"quant_method": GPT_OSS}
        return {**undeclared, "quantization_config": own}
    if method in (FP8, FBGEMM, MODELOPT):
        return {**undeclared, "quantization_config": declaration(codecs, specs, method)}
    settings = {layer: _setting(codec) for layer, codec in codecs.items()}
    if method == PACKED:
        return {**undeclared, "quantization_config": _groups(settings)}
    common = _single(settings, method)
    if method == AWQ:
        own = {"quant_method": AWQ, "version": "gemm", "zero_point": True}  # the method stores any of them
    else:
        symmetric = all(codec.params.get("symmetric", False) for codec in codecs.values())
        own = {
            "quant_method": GPTQ, "checkpoint_format": method, "desc_act": before.get("desc_act") is True,
            "sym": symmetric,
        }  # fmt: skip
    return {**undeclared, "quantization_config": {**own, **common}}


def with_dtype(config: Mapping[str, Any], specs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Return a configuration with the dtype of most matrices; unchanged if already correct, or if it states none.

    A dtype of null is filled in.
    """
    common = Counter(spec.dtype for spec in specs if len(spec.shape) > 1).most_common(1)
    name = TORCH_DTYPES.get(common[0][0]) if common else None
    stated = [config[key] for key in ("torch_dtype", "dtype") if key in config]
    if name is None or all(dtype == name for dtype in stated):
        return dict(config)
    return {**{key: value for key, value in config.items() if key != "dtype"}, "torch_dtype": name}


def _groups(settings: Mapping[str, Setting]) -> dict[str, Any]:
    """Declare compressed-tensors groups: one per setting, with its layers by name."""
    groups = {
        f"group_{number}": setting.group_of([layer for layer, other in settings.items() if other == setting])
        for number, setting in enumerate(sorted(set(settings.values())))
    }
    formats = sorted({setting.format for setting in settings.values()})
    return {
        "quant_method": PACKED,
        "version": "0.20.0",
        "format": formats[0] if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": [],
    }


def _single(settings: Mapping[str, Setting], method: str) -> dict[str, Any]:
    """Return the single setting of GPTQ or AWQ."""
    several = {(setting.bits, setting.group or -1) for setting in settings.values()}
    if len(several) > 1:
        choices = ", ".join(f"{bits} bits in {group}" for bits, group in sorted(several))
        raise FormatError(
            f"{method} allows only one setting for all layers",
            expected="one setting",
            found=choices,
            code="mixed",
            hint="Use hf:method=compressed-tensors or mlx, which allow several.",
        )
    ((bits, group),) = several
    return {"bits": bits, "group_size": group}


def _setting(codec: CodecSpec) -> Setting:
    form = form_of(codec, PACKED)
    params = codec.params
    return form.setting if form else Setting("pack-quantized", params["bits"], params["group_size"], "zero" in params)
