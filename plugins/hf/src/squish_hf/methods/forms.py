"""How float4 and float8 codes are stored and declared: gpt-oss, compressed-tensors, FP8 and ModelOpt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import field, frozen
from squish_codecs.api import Mx
from squish_safetensors.api import bare_parts

from squish_core.api import (
    CodecSpec,
    Encoding,
    FormatError,
    Params,
    Part,
    Refusal,
    TensorSpec,
    kind_of,
)
from squish_hf.methods.column_scales import FIELD, ROLE
from squish_hf.methods.column_scales import ID as SCALED

GPT_OSS, PACKED, FP8, FBGEMM, MODELOPT = "mxfp4", "compressed-tensors", "fp8", "fbgemm_fp8", "modelopt"
WEIGHT = ".weight"
MXFP4: Mapping[str, Any] = {}
NVFP4: Mapping[str, Any] = {"block_size": 16, "scale_dtype": "f8_e4m3"}
MXFP8: Mapping[str, Any] = {"element": "f8_e4m3"}
GLOBAL_SCALE = {PACKED: "divide", MODELOPT: "multiply"}
ROWS, MODELOPT_BLOCK = (1, 0), (128, 128)
FLOAT4 = "W4A16_NVFP4"
AWQ: dict[str, object] = {"quant_algo": "NVFP4_AWQ", "group_size": 16, "has_zero_point": False, "pre_quant_scale": True}
"""ModelOpt's declaration of NVFP4 with scales of inputs."""


@frozen(order=True)
class Setting:
    """The weight settings of a compressed-tensors group; `group` 0 is a row."""

    format: str
    bits: int
    group: int
    symmetric: bool = True
    kind: str = "int"
    strategy: str = "group"
    scale_dtype: str = ""
    block: tuple[int, ...] = ()

    def group_of(self, targets: list[str]) -> dict[str, Any]:
        """Return the configuration group for these layers."""
        weights = {
            "num_bits": self.bits, "type": self.kind, "symmetric": self.symmetric,
            "strategy": "channel" if self.strategy == "group" and not self.group else self.strategy,
            "group_size": self.group or None, "dynamic": False,
            **({"scale_dtype": self.scale_dtype} if self.scale_dtype else {}),
            **({"block_structure": list(self.block)} if self.block else {}),
        }  # fmt: skip
        both = {"input_activations": None, "output_activations": None}
        return {"format": self.format, "targets": targets, "weights": weights, **both}


@frozen
class Form:
    """A way to store a matrix: the names and dtypes of parts ("": the part's own), its setting in compressed-tensors
    and its `quant_algo` in ModelOpt."""

    fields: Mapping[str, tuple[str, str]]
    setting: Setting = Setting("", 8, 0)
    algorithm: str = ""
    shapes: Mapping[str, tuple[int, ...]] = field(factory=dict)
    """Role -> shape of a stored part, if it differs from the codec's."""


_FLOAT4 = {
    PACKED: {"data": ("weight_packed", "u8"), "scale": ("weight_scale", "")},
    MODELOPT: {"data": ("weight", "u8"), "scale": ("weight_scale", "")},
}
_GLOBAL = {PACKED: "weight_global_scale", MODELOPT: "weight_scale_2"}
_EXPONENTS = ("weight_scale", "u8")


def form_of(codec: CodecSpec, method: str) -> Form | None:
    """Return how a method stores a codec's matrix; None if it cannot."""
    if codec.id == "mx":
        return _microscaled(Mx.from_params(codec.params).canonical, method)
    return _float8(codec.params, method) if codec.id == "float8" else None


def _microscaled(params: Params, method: str) -> Form | None:
    if method not in _FLOAT4:
        return None
    fields = _FLOAT4[method]
    if params == MXFP4:
        setting = Setting("mxfp4-pack-quantized", 4, 32, kind="float", scale_dtype="torch.uint8")
        return Form({**fields, "scale": _EXPONENTS}, setting, "MXFP4")
    if params == MXFP8:
        setting = Setting("mxfp8-quantized", 8, 32, kind="float", scale_dtype="torch.uint8")
        return Form({"data": ("weight", ""), "scale": _EXPONENTS}, setting, "MXFP8")
    if params != {**NVFP4, "global_scale": GLOBAL_SCALE[method]}:
        return None
    setting = Setting(
        "nvfp4-pack-quantized", 4, 16, kind="float", strategy="tensor_group", scale_dtype="torch.float8_e4m3fn"
    )
    shapes = {"global_scale": (1,)} if method == PACKED else {}
    return Form({**fields, "global_scale": (_GLOBAL[method], "f32")}, setting, FLOAT4, shapes)


def _float8(params: Params, method: str) -> Form | None:
    """Return the form of E4M3 with one scale, one for each row, or one for each block."""
    if params.get("element", "f8_e4m3") != "f8_e4m3" or method not in (PACKED, FP8, FBGEMM, MODELOPT):
        return None
    block = tuple(params["block"]) if params.get("block") is not None else None
    kind = "tensor" if block is None else "channel" if block == ROWS else "block"
    if kind not in _KINDS[method] or (method == MODELOPT and kind == "block" and block != MODELOPT_BLOCK):
        return None
    name = "weight_scale_inv" if method == FP8 and kind == "block" else "weight_scale"
    shapes = {"scale": (1,)} if method == PACKED and kind == "tensor" else {}
    sizes = block if block and kind == "block" else ()
    setting = Setting("float-quantized", 8, 0, kind="float", strategy=kind, block=sizes)
    return Form({"data": ("weight", ""), "scale": (name, "")}, setting, _ALGORITHMS[kind], shapes)


_KINDS = {
    PACKED: ("tensor", "channel", "block"), FP8: ("tensor", "block"), FBGEMM: ("channel",),
    MODELOPT: ("tensor", "channel", "block"),
}  # fmt: skip
MODELOPT_SCALES: Mapping[str, Callable[[int, int], tuple[int, ...]]] = {
    "channel": lambda rows, columns: (rows,), "block": lambda rows, columns: (rows, 1, columns, 1),
}  # fmt: skip
"""Shape of the scales that ModelOpt stores, from their grid."""
_ALGORITHMS = {"tensor": "FP8", "channel": "FP8_PER_CHANNEL_PER_TOKEN", "block": "FP8_PB_WO"}
LEGAL = {
    PACKED: "MXFP4, NVFP4, MXFP8, and float8 with scales for a tensor, row or block",
    FP8: "float8 with one scale, or one for each block (--encode fp8 or fp8_block)",
    FBGEMM: "float8 with a scale for each row (--encode fp8_row)",
    MODELOPT: "MXFP4, NVFP4, MXFP8, and float8 with scales for a tensor, row or block of 128 by 128",
}  # fmt: skip


def accepts_experts(spec: TensorSpec, encoding: Encoding) -> Encoding | Refusal:
    """Accept MXFP4 experts in gpt-oss's layout, or refuse."""
    codec = encoding.codec
    if codec.id != "mx" or Mx.from_params(codec.params).canonical != MXFP4 or len(spec.shape) != 3:
        return Refusal(why=f"gpt-oss holds MXFP4 of [experts, out, in], not {codec} of {list(spec.shape)}")
    return Encoding(codec=codec, parts=bare_parts(encoding.parts))


def accepts_layer(spec: TensorSpec, encoding: Encoding, method: str) -> Encoding | Refusal:
    """Accept a matrix in one of the method's forms; float4 with only f8_e4m3 scales gets a global scale."""
    codec = encoding.codec
    if len(spec.shape) == 2 and form_of(codec, method):
        return Encoding(codec=codec, parts=bare_parts(encoding.parts))
    lacks_global_scale = codec.id == "mx" and Mx.from_params(codec.params).canonical == NVFP4
    if len(spec.shape) == 2 and method in GLOBAL_SCALE and lacks_global_scale:
        params = {**codec.params, "global_scale": GLOBAL_SCALE[method]}
        arrays = Mx.from_params(params).parts(spec)
        parts = {role: Part(dtype=dtype, shape=shape) for role, (dtype, shape) in arrays.items()}
        return Encoding(codec=CodecSpec("mx", params), parts=parts)
    return Refusal(why=f"{method} has matrices of {LEGAL[method]}, not {codec} of {list(spec.shape)}")


def stored_fields(
    spec: TensorSpec, encoding: Encoding, method: str
) -> list[tuple[str, str, tuple[int, ...], str | bytes]]:
    """Return name, dtype, shape and role of the stored tensors of an accepted tensor."""
    parts = encoding.parts
    if method == GPT_OSS:
        *lead, last = spec.shape
        scales = parts["scale"].shape
        return [
            (f"{spec.name}_blocks", "u8", (*lead, last // 32, 16), "data"),
            (f"{spec.name}_scales", "u8", scales, "scale"),
        ]
    layer, codec = spec.name.removesuffix(WEIGHT), encoding.codec
    form = form_of(codec.inner or codec, method)
    assert form is not None
    shapes = form.shapes
    if method == MODELOPT and form.setting.strategy in MODELOPT_SCALES:
        shapes = {"scale": MODELOPT_SCALES[form.setting.strategy](*parts["scale"].shape)}
    fields = {**form.fields, ROLE: (FIELD.lstrip("."), "")} if codec.id == SCALED else form.fields
    return [
        (f"{layer}.{name}", dtype or parts[role].dtype, shapes.get(role, parts[role].shape), role)
        for role, (name, dtype) in fields.items()
    ]


def declaration(codecs: Mapping[str, CodecSpec], specs: Sequence[TensorSpec], method: str) -> dict[str, Any]:
    """Declare the layers of FP8, FBGEMM or ModelOpt; FormatError if one declaration cannot describe them all."""
    dense = [
        spec.name.removesuffix(WEIGHT)
        for spec in specs
        if spec.name.endswith(WEIGHT)
        and len(spec.shape) == 2
        and spec.encodings[0].codec.id == "dense"
        and kind_of(spec.name) != "embedding"
    ]
    if method == MODELOPT:
        scaled = any(spec.encodings[0].codec.id == SCALED for spec in specs)
        return {"quant_method": MODELOPT, **_algorithms(codecs, scaled), "ignore": dense}
    if method == FBGEMM:
        return {"quant_method": FBGEMM, "activation_scale_ub": 1200.0, "modules_to_not_convert": dense}
    blocks = {tuple(codec.params.get("block") or ()) for codec in codecs.values()}
    if len(blocks) > 1:
        raise FormatError(
            "fp8 states one block for all layers",
            expected="one",
            code="mixed",
            hint="Take compressed-tensors.",
            found=", ".join(str(list(block)) if block else "one scale" for block in sorted(blocks)),
        )
    (block,) = blocks
    exponents = all(codec.params.get("scale_dtype") == "f8_e8m0" for codec in codecs.values())
    return {
        "quant_method": FP8,
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        **({"weight_block_size": list(block)} if block else {}),
        **({"scale_fmt": "ue8m0"} if exponents else {}),
        "modules_to_not_convert": dense,
    }


def _algorithms(codecs: Mapping[str, CodecSpec], scaled: bool) -> dict[str, Any]:
    """Return ModelOpt's `quant_algo`, of each layer where they differ; `scaled`: some layers have scales of inputs."""
    forms = {layer: form_of(codec, MODELOPT) for layer, codec in codecs.items()}
    settings = {
        layer: {"quant_algo": form.algorithm, **({"group_size": form.setting.group} if form.setting.group else {})}
        for layer, form in forms.items()
        if form
    }
    if scaled:  # the norms before the other layers contain their scales, so all have one algorithm
        settings = {layer: AWQ if own["quant_algo"] == FLOAT4 else own for layer, own in settings.items()}
    first = next(iter(settings.values()))
    if all(setting == first for setting in settings.values()):
        return first
    return {"quant_algo": "MIXED_PRECISION", "quantized_layers": settings}
