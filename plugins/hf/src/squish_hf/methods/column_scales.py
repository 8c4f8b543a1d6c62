"""Scales of a layer's inputs (AWQ, SmoothQuant), read as part of the weight: one factor for each column."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np
from attrs import evolve
from squish_safetensors.api import LayerReader, StoredParts, view_part

from squish_core.api import (
    CodecError,
    CodecSpec,
    Encoding,
    ErrorCode,
    Exactness,
    FormatError,
    Params,
    Part,
    Parts,
    Region,
    TensorSpec,
    Wrapper,
    dtypes,
)

FIELD, FUSED_FIELD = ".pre_quant_scale", "_pre_quant_scale"
FIELDS = (FIELD, FUSED_FIELD, "._weight_act_pre_scale")
"""Suffixes of the scales: ModelOpt (its fused experts, too) and ComfyUI; torchao."""
LOW_RANK = (".svdquant_lora_a", ".svdquant_lora_b")
ROLE = "column_scale"
FLOATS = ("f32", "f16", "bf16")
ID = "hf.column_scales"


class ColumnScales(Wrapper):
    """The inner codec's values times the part `column_scale` [columns], in float32.

    The software multiplies the inputs: `(x * scale) @ W.T` is `x @ (W * scale).T`. `scale_dtype`: f32 (default),
    f16 or bf16. No encoder. Sources: ModelOpt, `TensorQuantizer.pre_quant_scale`; ComfyUI, comfy/ops.py; torchao,
    `SupportsActivationPreScaling`.
    """

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        dtype = self.params.get("scale_dtype", "f32")
        if dtype not in FLOATS or not spec.shape:
            raise CodecError(
                "invalid scales of columns",
                expected=f"{' or '.join(FLOATS)}, and a tensor with columns",
                found=f"{dtype!r:.40} for shape {list(spec.shape)}",
                code=ErrorCode.PARAMS,
            )
        return {**self.inner.parts(spec), ROLE: (dtype, spec.shape[-1:])}

    def value_dtype(self, spec: TensorSpec) -> str:
        return "f32"

    @property
    def canonical(self) -> Params:
        return {key: value for key, value in self.params.items() if (key, value) != ("scale_dtype", "f32")}

    @property
    def error_bound(self) -> Exactness:
        return Exactness("bounded")

    def zero_share(self, parts: Parts, spec: TensorSpec) -> float | None:
        return self.inner.zero_share(parts, spec)

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        dtype = self.inner.value_dtype(spec)
        values = out if dtype == "f32" else np.empty(out.shape, dtypes.to_numpy(dtype))
        self.inner.decode(parts, spec, region=region, out=values)
        with np.errstate(all="ignore"):
            np.multiply(values, parts[ROLE][region[-1]].astype(np.float32), out=out, dtype=np.float32)


def with_column_scales(make: LayerReader, keys: Iterable[str]) -> LayerReader:
    """Return a method's reader of layers that multiplies columns by the scales of the inputs.

    A dense weight (none of the method's suffixes `keys` in the layer) may have such scales too.
    """
    return partial(_scaled, make, frozenset(keys))


def _scaled(make: LayerReader, keys: frozenset[str], layer: str, parts: StoredParts) -> TensorSpec:
    fields = [field for field in FIELDS if field in parts]
    if any(field in parts for field in LOW_RANK):
        raise FormatError(
            "unsupported low-rank residual of a weight (SVDQuant)",
            part=LOW_RANK[0].lstrip("."),
            code="layout",
            hint="Quantize the model without SVDQuant, or convert it in full precision.",
        )
    if not fields:
        return make(layer, parts)
    if len(fields) > 1 or FUSED_FIELD in fields:
        raise FormatError(
            "unsupported scales of the inputs of fused experts",
            part=fields[-1].lstrip("."),
            expected="<layer>.pre_quant_scale",
            found=", ".join(fields),
            code="layout",
            hint="Export them from a model whose experts are separate modules.",
        )
    weight = parts.get(".weight")
    if weight is not None and weight.dtype in FLOATS and keys.isdisjoint(parts):
        extras = {suffix.lstrip("."): part for suffix, part in parts.items() if suffix != ".weight"}
        encoding = Encoding(codec=CodecSpec("dense", {"dtype": weight.dtype}), parts={"data": weight})
        spec = TensorSpec(name=f"{layer}.weight", shape=weight.shape, dtype="f32", encodings=(encoding,), extras=extras)
    else:
        spec = make(layer, parts)
    return _wrapped(spec, fields[0].lstrip("."), parts[fields[0]])


def _wrapped(spec: TensorSpec, name: str, scale: Part) -> TensorSpec:
    """Return a tensor with the stored part `name` as the scales of its columns instead of an extra."""
    columns = spec.shape[-1:]
    fits = bool(columns) and scale.shape[-1:] == columns and dtypes.count(scale.shape) == columns[0]
    if scale.dtype not in FLOATS or not fits:
        raise FormatError(
            "scales of the inputs do not match the columns of the weight",
            part=name,
            code="shape",
            expected=f"{' or '.join(FLOATS)} {list(columns)}",
            found=f"{scale.dtype} {list(scale.shape)}",
        )
    params = {} if scale.dtype == "f32" else {"scale_dtype": scale.dtype}
    (encoding,) = spec.encodings
    parts = {**encoding.parts, ROLE: view_part(scale, scale.dtype, columns)}
    encoding = evolve(encoding, codec=CodecSpec(ID, params, encoding.codec), parts=parts)
    extras = {role: part for role, part in spec.extras.items() if role != name}
    return evolve(spec, encodings=(encoding,), extras=extras)
