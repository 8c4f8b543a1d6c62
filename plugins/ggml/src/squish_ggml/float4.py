"""Exact repacking of MXFP4 and NVFP4: scales, then float4 codes, each half of a group in one nibble."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from squish_codecs.api import float4_codes, float4_layout, float4_pairs, is_float4

from squish_core.api import CodeLayout, Codes, dtypes

from .blocks import BLOCKS
from .repack import interleave, split_halves

Array = np.ndarray[Any, Any]
FORMS: dict[str, Mapping[str, Any]] = {
    "ggml.mxfp4": {},
    "ggml.nvfp4": {"block_size": 16, "scale_dtype": "f8_e4m3"},
}
"""Parameters of `mx` with the same codes and scales."""
MAX_SCALE = {"ggml.mxfp4": 0xFE, "ggml.nvfp4": 0x7E}
"""The largest scale code with the same meaning in other formats; codes above are NaN or negative there."""


def layout(name: str, shape: tuple[int, ...]) -> CodeLayout:
    """Return the code layout of a tensor."""
    return float4_layout(len(shape), *_form(name))


def codes(name: str, data: Array) -> Codes | None:
    """Return the codes of blocks u8 [..., blocks * nbytes]; None if a scale only has meaning in ggml."""
    group, dtype = _form(name)
    block = BLOCKS[name.removeprefix("ggml.")]
    count, lead = block.elements // group, data.shape[:-1]
    width = data.shape[-1] // block.nbytes
    blocks = data.reshape(*lead, width, block.nbytes)
    scale = np.ascontiguousarray(blocks[..., :count]).reshape(*lead, width * count)
    if (scale > MAX_SCALE[name]).any():
        return None

    def pairs() -> Array:
        runs = np.ascontiguousarray(blocks[..., count:]).reshape(*scale.shape, group // 2)
        return interleave(runs).reshape(*lead, width * block.elements // 2)

    return float4_codes(scale.view(dtypes.to_numpy(dtype)), group, pairs)


def holds(name: str, codes: Codes) -> bool:
    """Return whether `blocks` can store these codes."""
    return is_float4(codes, *_form(name)) and not (codes.scale.view(np.uint8) > MAX_SCALE[name]).any()


def blocks(name: str, codes: Codes) -> Array | None:
    """Return blocks u8 [..., blocks * nbytes] with exactly these codes, or None."""
    if not holds(name, codes):
        return None
    group, _ = _form(name)
    block = BLOCKS[name.removeprefix("ggml.")]
    count, lead = block.elements // group, codes.shape[:-1]
    out = np.empty((*lead, codes.shape[-1] // block.elements, block.nbytes), np.uint8)
    out[..., :count] = np.ascontiguousarray(codes.scale).view(np.uint8).reshape(*out.shape[:-1], count)
    runs = split_halves(float4_pairs(codes).reshape(*codes.scale.shape, group // 2))
    out[..., count:] = runs.reshape(*out.shape[:-1], block.elements // 2)
    return out.reshape(*lead, out.shape[-2] * block.nbytes)


def _form(name: str) -> tuple[int, str]:
    """Return the group size and the scale dtype."""
    params = FORMS[name]
    return params.get("block_size", 32), params.get("scale_dtype", "f8_e8m0")
