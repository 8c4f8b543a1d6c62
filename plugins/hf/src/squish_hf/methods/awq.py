"""AWQ: 4-bit layouts for GEMM (interleaved, transposed), GEMV (in order, padded) and the fast GEMV kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from squish_codecs.api import Affine
from squish_safetensors.api import CheckpointFiles, StoredParts, build_tensor, require_part

from squish_core.api import CodecSpec, ErrorCode, FormatError, Part, TensorSpec
from squish_hf.declaration import Declared, refuse
from squish_hf.methods.awq_gemv import AwqFast, AwqGemv
from squish_hf.methods.fp8 import other_parts
from squish_hf.methods.gptq import FLOATS, group_size, layout
from squish_hf.methods.method import CACHE, Method
from squish_hf.methods.unsupported import refuse_marlin

SUFFIXES = (".qweight", ".qzeros", ".scaled_zeros")
SCALES = ".scales"
BESIDE = (SCALES, *CACHE)
"""Scales without codes (`mlp.act.scales`) belong to an activation (ScaledActivation of AutoAWQ and Transformers)."""
LLM_AWQ = "llm-awq"
ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
"""Number of the code in each group of four bits of a word, lowest first."""


def read(declared: Declared, files: CheckpointFiles) -> Method:
    """Read AWQ of AutoAWQ and GPTQModel; llm-awq declares itself as the `backend`."""
    version = layout(declared, "gemm", "version", "checkpoint_format", "format")
    if declared.get("backend", str) == LLM_AWQ:
        version = LLM_AWQ
    if version == "marlin":
        raise refuse_marlin(declared.where)
    if version not in MAKERS:
        raise refuse("version", " or ".join(MAKERS), version, part=declared.where)
    declared.number("bits" if "bits" in declared.fields else "w_bit", (4,))
    group = (
        group_size(declared) if "group_size" in declared.fields else declared.number("q_group_size", range(1, 1 << 20))
    )

    def make(layer: str, parts: StoredParts) -> TensorSpec:
        if ".weight" in parts:
            raise FormatError("stored both quantized and dense", part="weight", code=ErrorCode.CONTRADICTION)
        return MAKERS[version](layer, parts, group)

    return Method(dialect=f"awq {version}", suffixes=SUFFIXES, beside=BESIDE, make=make)


def build_gemm(layer: str, parts: StoredParts, group: int) -> TensorSpec:
    """Build the weight of a layer in the order of the GEMM kernel."""
    codes = require_part(parts, ".qweight", ("i32",), rank=2)
    scales = require_part(parts, ".scales", FLOATS, rank=2)
    columns, rows = codes.shape[0], codes.shape[1] * 8
    params = {
        "bits": 4, "group_size": 0 if group > columns else group, "axis": -2, "pack_axis": -1, "transposed": True,
        "word": "i32", "order": ORDER, "offset": "zero_point", "offset_dtype": "packed", "scale_dtype": scales.dtype,
    }  # fmt: skip
    fields = {
        "data": ("qweight", codes), "scale": ("scales", scales),
        "offset": ("qzeros", require_part(parts, ".qzeros", ("i32",), rank=2)),
    }  # fmt: skip
    return build_tensor(f"{layer}.weight", (rows, columns), CodecSpec("affine", params), Affine, fields, _extras(parts))


def _gemv(layer: str, parts: StoredParts, group: int) -> TensorSpec:
    codes = require_part(parts, ".qweight", ("i32",), rank=2)
    zeros = require_part(parts, ".qzeros", ("i32",), rank=2)
    rows, columns = codes.shape[0], codes.shape[1] * 8
    params = {"group_size": group or columns, "padded": zeros.shape[1]}
    fields = {
        "data": ("qweight", codes), "scale": ("scales", require_part(parts, ".scales", ("f16",), rank=2)),
        "offset": ("qzeros", zeros),
    }  # fmt: skip
    spec = CodecSpec("hf.awq_gemv", params)
    return build_tensor(f"{layer}.weight", (rows, columns), spec, AwqGemv, fields, _extras(parts))


def _fast(zeros: str, layer: str, parts: StoredParts, group: int) -> TensorSpec:
    codes, offset = (
        require_part(parts, ".qweight", ("i16",), rank=2),
        require_part(parts, f".{zeros}", ("f16",), rank=2),
    )
    rows, columns = 4 * codes.shape[0], codes.shape[1]
    params = {"group_size": group or columns, "padded": offset.shape[0] // 8}
    fields = {
        "data": ("qweight", codes), "scale": ("scales", require_part(parts, ".scales", ("f16",), rank=2)),
        "offset": (zeros, offset),
    }  # fmt: skip
    spec = CodecSpec("hf.awq_fast", params)
    return build_tensor(f"{layer}.weight", (rows, columns), spec, AwqFast, fields, _extras(parts))


def _extras(parts: StoredParts) -> dict[str, Part]:
    return other_parts(parts, *(suffix.lstrip(".") for suffix in (*SUFFIXES, SCALES)))


MAKERS: dict[str, Callable[[str, StoredParts, int], TensorSpec]] = {
    "gemm": build_gemm, "gemv": _gemv, "gemv_fast": partial(_fast, "qzeros"), LLM_AWQ: partial(_fast, "scaled_zeros"),
}  # fmt: skip
"""`version` -> reader of a weight, given the group size (0: one group)."""
