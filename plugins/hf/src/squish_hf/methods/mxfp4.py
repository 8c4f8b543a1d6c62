"""MXFP4 of gpt-oss: experts as `<name>_blocks` and `<name>_scales`."""

from __future__ import annotations

from squish_codecs.api import Mx
from squish_safetensors.api import CheckpointFiles, StoredParts, build_tensor, require_part, view_part

from squish_core.api import CodecSpec, ErrorCode, FormatError, TensorSpec
from squish_hf.declaration import Declared
from squish_hf.methods.method import Method

SUFFIXES = ("_blocks", "_scales")


def read(declared: Declared, files: CheckpointFiles) -> Method:
    """Read `quant_method` mxfp4. The tensor is [experts, out, in], as stored; Transformers uses the transpose."""
    return Method(dialect="mxfp4", suffixes=SUFFIXES, make=_make, bases=("",))


def _make(layer: str, parts: StoredParts) -> TensorSpec:
    if "" in parts:
        raise FormatError("stored both quantized and dense", tensor=layer, code=ErrorCode.CONTRADICTION)
    blocks, scales = require_part(parts, "_blocks", ("u8",)), require_part(parts, "_scales", ("u8",))
    if len(blocks.shape) < 2 or blocks.shape[-1] != 16:
        raise FormatError(
            "invalid shape of blocks",
            part="_blocks",
            expected="[..., in / 32, 16]",
            found=list(blocks.shape),
            code="shape",
        )
    *lead, count, _ = blocks.shape
    fields = {
        "data": ("_blocks", view_part(blocks, "u8", (*lead, 16 * count))),
        "scale": ("_scales", view_part(scales, "f8_e8m0", scales.shape)),
    }  # fmt: skip
    return build_tensor(layer, (*lead, 32 * count), CodecSpec("mx"), Mx, fields)
