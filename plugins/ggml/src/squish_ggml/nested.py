"""Codes of Q2_K to Q6_K; the products of their two scale levels are exact in float32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from squish_codecs.api import Scheme, affine_layout

from squish_core.api import CodeLayout, Codes

from .blocks import BLOCKS
from .kquants import (
    q2_k_quants,
    q2_k_scales_and_minima,
    q3_k_quants,
    q3_k_scales,
    q4_k_quants,
    q5_k_quants,
    q6_k_quants,
    q6_k_scales,
    scales_and_minima,
)
from .panels import Scratch

Array = np.ndarray[Any, Any]
FORMS: dict[str, Mapping[str, Any]] = {
    "ggml.q2_k": {"bits": 2, "group_size": 16, "offset": "bias"},
    "ggml.q3_k": {"bits": 3, "group_size": 16, "signed": True},
    "ggml.q4_k": {"bits": 4, "group_size": 32, "offset": "bias"},
    "ggml.q5_k": {"bits": 5, "group_size": 32, "offset": "bias"},
    "ggml.q6_k": {"bits": 6, "group_size": 16, "signed": True},
}
"""Parameters of `affine` with the same codes; d * scale and -(dmin * minimum) multiply 11 bits by 4 to 8."""
_QUANTS = {
    "ggml.q2_k": q2_k_quants, "ggml.q3_k": q3_k_quants, "ggml.q4_k": q4_k_quants, "ggml.q5_k": q5_k_quants,
    "ggml.q6_k": q6_k_quants,
}  # fmt: skip


def layout(name: str, shape: tuple[int, ...]) -> CodeLayout:
    """Return the code layout of a tensor."""
    return affine_layout(Scheme.of(FORMS[name]), shape)


def codes(name: str, data: Array) -> Codes:
    """Return the codes of blocks u8 [..., blocks * nbytes]; scales and biases are f32, one for each group."""
    block = BLOCKS[name.removeprefix("ggml.")]
    lead, width = data.shape[:-1], data.shape[-1] // block.nbytes
    shape, blocks = (*lead, width * block.elements), np.ascontiguousarray(data).reshape(-1, block.nbytes)
    code_layout = layout(name, shape)
    code_dtype = np.int8 if code_layout.signed else np.uint8
    with np.errstate(all="ignore"):
        scales, minima = _scales_and_minima(name, blocks)
    grid = (*lead, width * scales.shape[1])
    return Codes(
        layout=code_layout,
        shape=shape,
        scale=scales.reshape(grid),
        offset=None if minima is None else -minima.reshape(grid),
        unpack=lambda: _QUANTS[name](blocks, Scratch()).view(code_dtype).reshape(shape),
    )


def _scales_and_minima(name: str, blocks: Array) -> tuple[Array, Array | None]:
    if name == "ggml.q2_k":
        return q2_k_scales_and_minima(blocks)
    if name == "ggml.q3_k":
        return q3_k_scales(blocks, Scratch()), None
    if name == "ggml.q6_k":
        return q6_k_scales(blocks), None
    return scales_and_minima(blocks, Scratch())
