"""Exact repacking of MXFP4 and NVFP4: scales first, then float4 codes, those of a half run low, the others high."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from squish_codecs.api import float4_codes, float4_layout, float4_pairs, is_float4

from squish_core.api import CodeLayout, Codes, dtypes

from .blocks import BLOCKS
from .repack import halved, neighbors

Array = np.ndarray[Any, Any]
FORMS: dict[str, Mapping[str, Any]] = {
    "ggml.mxfp4": {},
    "ggml.nvfp4": {"block_size": 16, "scale_dtype": "f8_e4m3"},
}
"""Parameters of `mx` with the same codes and scales."""
MOST = {"ggml.mxfp4": 0xFE, "ggml.nvfp4": 0x7E}
"""The last scale that means the same here and elsewhere: those after it are NaN there, or negative."""


def layout(name: str, shape: tuple[int, ...]) -> CodeLayout:
    """What the codes of a tensor of this shape look like."""
    return float4_layout(len(shape), *_form(name))


def codes(name: str, stored: Array) -> Codes | None:
    """The codes of blocks u8 [..., blocks * nbytes]; None where a scale has a meaning of its own."""
    group, dtype = _form(name)
    block = BLOCKS[name.removeprefix("ggml.")]
    count, lead = block.elements // group, stored.shape[:-1]
    width = stored.shape[-1] // block.nbytes
    blocks = stored.reshape(*lead, width, block.nbytes)
    scale = np.ascontiguousarray(blocks[..., :count]).reshape(*lead, width * count)
    if (scale > MOST[name]).any():
        return None

    def pairs() -> Array:
        runs = np.ascontiguousarray(blocks[..., count:]).reshape(*scale.shape, group // 2)
        return neighbors(runs).reshape(*lead, width * block.elements // 2)

    return float4_codes(scale.view(dtypes.to_numpy(dtype)), group, pairs)


def holds(name: str, codes: Codes) -> bool:
    """Whether the blocks can be of these codes."""
    return is_float4(codes, *_form(name)) and not (codes.scale.view(np.uint8) > MOST[name]).any()


def blocks(name: str, codes: Codes) -> Array | None:
    """Blocks u8 [..., blocks * nbytes] that hold exactly these codes, or None."""
    if not holds(name, codes):
        return None
    group, _ = _form(name)
    block = BLOCKS[name.removeprefix("ggml.")]
    count, lead = block.elements // group, codes.shape[:-1]
    out = np.empty((*lead, codes.shape[-1] // block.elements, block.nbytes), np.uint8)
    out[..., :count] = np.ascontiguousarray(codes.scale).view(np.uint8).reshape(*out.shape[:-1], count)
    runs = halved(float4_pairs(codes).reshape(*codes.scale.shape, group // 2))
    out[..., count:] = runs.reshape(*out.shape[:-1], block.elements // 2)
    return out.reshape(*lead, out.shape[-2] * block.nbytes)


def _form(name: str) -> tuple[int, str]:
    """Elements of a scale, and its dtype."""
    params = FORMS[name]
    return params.get("block_size", 32), params.get("scale_dtype", "f8_e8m0")
