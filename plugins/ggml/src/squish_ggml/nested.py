"""Codes of Q4_K, Q5_K and Q6_K; the products of their two scale levels are exact in float32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from squish_codecs.api import Scheme, affine_layout

from squish_core.api import CodeLayout, Codes

from .blocks import BLOCKS
from .kquants import q4_k_quants, q5_k_quants, q6_k_quants, q6_k_scales, scales_and_minima
from .panels import Scratch

Array = np.ndarray[Any, Any]
FORMS: dict[str, Mapping[str, Any]] = {
    "ggml.q4_k": {"bits": 4, "group_size": 32, "offset": "bias"},
    "ggml.q5_k": {"bits": 5, "group_size": 32, "offset": "bias"},
    "ggml.q6_k": {"bits": 6, "group_size": 16, "signed": True},
}
"""Parameters of `affine` with the same codes; d * scale and -(dmin * minimum) multiply 11 bits by 6, Q6_K by 8."""
_QUANTS = {"ggml.q4_k": q4_k_quants, "ggml.q5_k": q5_k_quants, "ggml.q6_k": q6_k_quants}


def layout(name: str, shape: tuple[int, ...]) -> CodeLayout:
    """Return the code layout of a tensor."""
    return affine_layout(Scheme.of(FORMS[name]), shape)


def codes(name: str, data: Array) -> Codes:
    """Return the codes of blocks u8 [..., blocks * nbytes]; scales and biases are f32, one for each group."""
    block = BLOCKS[name.removeprefix("ggml.")]
    lead, width = data.shape[:-1], data.shape[-1] // block.nbytes
    shape, blocks = (*lead, width * block.elements), np.ascontiguousarray(data).reshape(-1, block.nbytes)
    code_layout, minima = layout(name, shape), None
    code_dtype = np.int8 if code_layout.signed else np.uint8
    with np.errstate(all="ignore"):
        if code_layout.offset_kind == "none":
            scales = q6_k_scales(blocks)
        else:
            scales, minima = scales_and_minima(blocks, Scratch())
    grid = (*lead, width * scales.shape[1])
    return Codes(
        layout=code_layout, shape=shape, scale=scales.reshape(grid),
        offset=None if minima is None else -minima.reshape(grid),
        unpack=lambda: _QUANTS[name](blocks, Scratch()).view(code_dtype).reshape(shape),
    )  # fmt: skip
