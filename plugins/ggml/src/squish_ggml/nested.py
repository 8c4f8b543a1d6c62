"""Codes of Q4_K and Q5_K; the products of their two scale levels are exact in float32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from squish_codecs.api import Scheme, affine_layout

from squish_core.api import CodeLayout, Codes

from .blocks import BLOCKS
from .kquants import q4_k_quants, q5_k_quants, scales_and_minima
from .panels import Scratch

Array = np.ndarray[Any, Any]
FORMS: dict[str, Mapping[str, Any]] = {
    "ggml.q4_k": {"bits": 4, "group_size": 32, "offset": "bias"},
    "ggml.q5_k": {"bits": 5, "group_size": 32, "offset": "bias"},
}
"""Parameters of `affine` with the same codes; d * scale and -(dmin * minimum) multiply 11 bits by 6."""
_QUANTS = {"ggml.q4_k": q4_k_quants, "ggml.q5_k": q5_k_quants}


def layout(name: str, shape: tuple[int, ...]) -> CodeLayout:
    """Return the code layout of a tensor."""
    return affine_layout(Scheme.of(FORMS[name]), shape)


def codes(name: str, data: Array) -> Codes:
    """Return the codes of blocks u8 [..., blocks * nbytes]; scales and biases are f32, eight per block."""
    block = BLOCKS[name.removeprefix("ggml.")]
    lead, width = data.shape[:-1], data.shape[-1] // block.nbytes
    shape, blocks = (*lead, width * block.elements), np.ascontiguousarray(data).reshape(-1, block.nbytes)
    with np.errstate(all="ignore"):
        scales, minima = scales_and_minima(blocks, Scratch())
    grid = (*lead, width * scales.shape[1])
    return Codes(
        layout=layout(name, shape), shape=shape, scale=scales.reshape(grid), offset=-minima.reshape(grid),
        unpack=lambda: _QUANTS[name](blocks, Scratch()).view(np.uint8).reshape(shape),
    )  # fmt: skip
