"""Encoders of GGML blocks, bit-identical to ggml's reference, and of dense arrays."""

from __future__ import annotations

import numpy as np

from squish_core.api import BLOCK_TYPES, CodecError, Dense, Encoder, ErrorCode, Params, TensorSpec, dtypes, full

from .layouts.base import DENSE, GGML, GGML_FIRST, Array
from .library import library, threads
from .metrics import EncoderMetrics

BY_ROW = ("q4_0", "q4_1", "q5_0", "q5_1")
"""Block types whose error weights are relative to the mean square of the whole row."""
WITH_ACTIVATIONS = (*BY_ROW, "iq4_nl", "iq4_xs", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
"""Block types whose errors may be weighted by activations."""
KINDS = {name: GGML_FIRST + number for number, name in enumerate(GGML)}
"""Block type -> its number in native/weights.h."""


class GgmlEncoder(EncoderMetrics, Encoder):
    """Encodes the block types of `KINDS` from float32, like `ggml_quantize_chunk`.

    With `search=activations` (`WITH_ACTIVATIONS`), the squared activations are the importance matrix. Bytes are equal
    if ggml's own arithmetic is defined: scales fit float16, and values are below 2**22 steps.
    """

    def __init__(self) -> None:
        library()

    @classmethod
    def params_for(cls, spec: TensorSpec, options: Params) -> Params:
        with_activations, takes_search = {"search": "activations"}, _block_name(cls.id) in WITH_ACTIVATIONS
        if options and (not takes_search or options not in (with_activations, {"search": "none"})):
            raise CodecError(
                f"invalid {cls.id} parameters",
                found=", ".join(f"{key}={options[key]}" for key in options),
                expected="search=none or search=activations" if takes_search else "none",
                code=ErrorCode.PARAMS,
            )
        return options if options == with_activations else {}

    def encode(self, panel: Array, *, activations: Array | None = None) -> dict[str, Array]:
        """Encode to the part `data`, u8 [..., blocks per row * bytes].

        `activations`, f32 [columns], is required for `search=activations`.
        """
        name = _block_name(self.id)
        block = BLOCK_TYPES[name]
        elements, nbytes = block.elements, block.nbytes
        if not panel.ndim or panel.shape[-1] % elements:
            raise CodecError(
                f"rows do not divide into {name.upper()} blocks",
                code="shape",
                expected=f"a last dimension that is a multiple of {elements}",
                found=f"shape {list(panel.shape)}",
            )
        values = np.require(panel, np.float32, ["C", "A"])
        blocks = values.size // elements
        out = np.empty((*panel.shape[:-1], panel.shape[-1] // elements * nbytes), np.uint8)
        importance = _importance(panel, activations) if self.params.get("search") == "activations" else None
        weights = None if importance is None else importance.ctypes.data
        sizes = (panel.shape[-1], out.ctypes.data, blocks, elements, nbytes, threads())
        if not library().encode(KINDS[name], values.ctypes.data, weights, *sizes):
            raise CodecError(
                "cannot encode non-finite values",
                expected="finite values",
                found=f"{np.count_nonzero(~np.isfinite(panel))} of {panel.size}",
                code=ErrorCode.RANGE,
                hint="Keep this tensor unquantized, or fix its values first.",
            )
        return {"data": out}


def _block_name(codec: str) -> str:
    """Return the block type that a codec id names."""
    return codec.removeprefix("ggml.")


def _importance(panel: Array, activations: Array | None) -> Array:
    """Return the importance of each column: its squared activation."""
    with np.errstate(over="ignore"):
        # squares of f64 give back the f32 means whose roots were taken
        squares = None if activations is None else np.square(np.asarray(activations, np.float64)).astype(np.float32)
    if squares is None or squares.shape != panel.shape[-1:] or not np.isfinite(squares).all():
        raise CodecError(
            "search=activations needs activation statistics",
            code=ErrorCode.ENCODE,
            expected=f"[{panel.shape[-1]}], with finite squares",
            found="none" if squares is None else f"shape {list(squares.shape)}",
        )
    return squares


class DenseEncoder(EncoderMetrics, Dense):
    """Conversions between 16- and 32-bit floats, rounded to nearest; NumPy for all others."""

    def __init__(self) -> None:
        library()

    def encode(self, panel: Array, *, activations: Array | None = None) -> dict[str, Array]:
        source = dtypes.from_numpy(panel.dtype)
        target = self.params.get("dtype", source)
        if source == target or not {source, target} <= DENSE.keys() or not panel.size:
            return super().encode(panel, activations=activations)
        values = np.require(np.atleast_1d(panel), requirements=["C", "A"])
        decode = self.decoder(Dense(), {"data": values}, TensorSpec(name="", shape=values.shape, dtype=source))
        assert decode is not None
        out = np.empty(values.shape, dtypes.to_numpy(target))
        decode(full(values.shape), out)
        return {"data": out.reshape(panel.shape)}
