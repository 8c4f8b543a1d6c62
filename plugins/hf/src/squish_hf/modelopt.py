"""ModelOpt: NVFP4 (the global scale multiplies) and FP8 with one scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from squish_codecs.float8 import ELEMENTS
from squish_codecs.mx import Mx
from squish_safetensors.layers import Files, Parts, encoded, need, viewed

from squish_core.api import CodecSpec, TensorSpec
from squish_hf.declaration import Declared, refuse
from squish_hf.fp8 import float8, left
from squish_hf.method import CACHE, Method

SUFFIXES = (".weight_scale", ".weight_scale_2")
BESIDE = (*CACHE, ".input_scale", ".pre_quant_scale")
NVFP4 = {"block_size": 16, "scale_dtype": "f8_e4m3", "global_scale": "multiply"}


def read(declared: Declared, files: Files) -> Method:
    """`quant_algo` NVFP4 or FP8, for all layers or for each (`quantized_layers`)."""
    algorithm = declared.get("quant_algo", str, "")
    makers = {"NVFP4": _nvfp4, "FP8": _fp8}
    layers: Mapping[str, Any] = declared.get("quantized_layers", dict, {})
    if algorithm not in makers and not layers:
        raise refuse("quant_algo", " or ".join(makers), algorithm, part=declared.where)

    def make(layer: str, parts: Parts) -> TensorSpec:
        own = layers.get(layer, {}) if layers else {}
        wanted = own.get("quant_algo", algorithm) if isinstance(own, dict) else None
        if wanted not in makers:
            raise refuse("quant_algo", " or ".join(makers), wanted, part=declared.where)
        return makers[wanted](layer, parts)

    return Method(
        dialect=f"modelopt {algorithm}".strip(), suffixes=SUFFIXES, beside=BESIDE, make=make, packed=ELEMENTS,
        idle=lambda found: layers.keys() - found,
    )  # fmt: skip


def _nvfp4(layer: str, parts: Parts) -> TensorSpec:
    codes, scale = need(parts, ".weight", ("u8",)), need(parts, ".weight_scale", ("f8_e4m3",))
    whole = viewed(need(parts, ".weight_scale_2", ("f32",)), "f32", ())
    shape = (*codes.shape[:-1], 2 * codes.shape[-1]) if codes.shape else ()
    fields = {"data": ("weight", codes), "scale": ("weight_scale", scale), "global_scale": ("weight_scale_2", whole)}
    extras = left(parts, "weight", "weight_scale", "weight_scale_2")
    return encoded(f"{layer}.weight", shape, CodecSpec("mx", NVFP4), Mx(), fields, extras)


def _fp8(layer: str, parts: Parts) -> TensorSpec:
    return float8(layer, parts, need(parts, ".weight_scale", ("f32",)), None, "weight_scale")
