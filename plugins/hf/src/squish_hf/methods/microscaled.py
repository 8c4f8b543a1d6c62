"""Writing microscaled codes: gpt-oss's blocks and scales, and compressed-tensors' formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen
from squish_codecs.api import Mx
from squish_safetensors.api import bare_parts

from squish_core.api import CodecSpec, Encoding, Params, Part, Refusal, TensorSpec

GPT_OSS = "mxfp4"
MXFP4: Mapping[str, Any] = {}
NVFP4: Mapping[str, Any] = {"block_size": 16, "scale_dtype": "f8_e4m3"}


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

    def group_of(self, targets: list[str]) -> dict[str, Any]:
        """Return the configuration group for these layers."""
        weights = {
            "num_bits": self.bits, "type": self.kind, "symmetric": self.symmetric,
            "strategy": self.strategy if self.group else "channel", "group_size": self.group or None, "dynamic": False,
            **({"scale_dtype": self.scale_dtype} if self.scale_dtype else {}),
        }  # fmt: skip
        both = {"input_activations": None, "output_activations": None}
        return {"format": self.format, "targets": targets, "weights": weights, **both}


@frozen
class Form:
    """A compressed-tensors format: parameters of `mx`, settings, and the names and dtypes of parts."""

    params: Mapping[str, Any]
    setting: Setting
    fields: Mapping[str, tuple[str, str]]


FORMS = (
    Form(
        MXFP4, Setting("mxfp4-pack-quantized", 4, 32, kind="float", scale_dtype="torch.uint8"),
        {"data": ("weight_packed", "u8"), "scale": ("weight_scale", "u8")},
    ),
    Form(
        {**NVFP4, "global_scale": "divide"},
        Setting(
            "nvfp4-pack-quantized", 4, 16, kind="float", strategy="tensor_group", scale_dtype="torch.float8_e4m3fn"
        ),
        {"data": ("weight_packed", "u8"), "scale": ("weight_scale", "f8_e4m3"),
         "global_scale": ("weight_global_scale", "f32")},
    ),
    Form(
        {"element": "f8_e4m3"}, Setting("mxfp8-quantized", 8, 32, kind="float", scale_dtype="torch.uint8"),
        {"data": ("weight", "f8_e4m3"), "scale": ("weight_scale", "u8")},
    ),
)  # fmt: skip


def form_of(params: Params) -> Form | None:
    """Return the compressed-tensors format for parameters of `mx`."""
    stored = Mx().canonical(params)
    return next((form for form in FORMS if form.params == stored), None)


def accepts_experts(spec: TensorSpec, encoding: Encoding) -> Encoding | Refusal:
    """Accept MXFP4 experts in gpt-oss's layout, or refuse."""
    codec = encoding.codec
    if codec.id != "mx" or Mx().canonical(codec.params) != MXFP4 or len(spec.shape) != 3:
        return Refusal(why=f"gpt-oss holds MXFP4 of [experts, out, in], not {codec} of {list(spec.shape)}")
    return Encoding(codec=codec, parts=bare_parts(encoding.parts))


def accepts_layer(spec: TensorSpec, encoding: Encoding) -> Encoding | Refusal:
    """Accept a matrix in one of the formats; float4 with only f8_e4m3 scales gets a global scale."""
    codec = encoding.codec
    if len(spec.shape) == 2 and form_of(codec.params):
        return Encoding(codec=codec, parts=bare_parts(encoding.parts))
    if len(spec.shape) == 2 and Mx().canonical(codec.params) == NVFP4:
        params = {**codec.params, "global_scale": "divide"}
        arrays = Mx().parts(spec, params)
        parts = {role: Part(dtype=dtype, shape=shape) for role, (dtype, shape) in arrays.items()}
        return Encoding(codec=CodecSpec("mx", params), parts=parts)
    legal = ", ".join(form.setting.format for form in FORMS)
    return Refusal(why=f"compressed-tensors has matrices in {legal}, not {codec} of {list(spec.shape)}")
