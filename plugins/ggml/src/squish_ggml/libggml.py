"""Encoders of IQ1, IQ2 and IQ3: libggml's own, from ggml-python (the extra `libggml`)."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from squish_core.api import BLOCK_TYPES, CodecError, ErrorCode, MissingPluginError, Params, install_command

NAMES = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")
MOST = 65504.0
"""Largest magnitude: libggml ends the process where its scales overflow float16."""
WITH_ACTIVATIONS: Params = {"search": "activations"}


def check_params(name: str, params: Params) -> Params:
    """Return the encoder's parameters; CodecError for invalid ones, and without the statistics that a type needs.

    MissingPluginError without ggml-python.
    """
    if params not in ({}, WITH_ACTIVATIONS):
        raise CodecError(
            f"invalid ggml.{name} parameters",
            found=", ".join(f"{key}={params[key]}" for key in params),
            expected="search=activations or none",
            code=ErrorCode.PARAMS,
        )
    library = _library()
    if not params and library.ggml_quantize_requires_imatrix(_type(name)):
        raise CodecError(
            f"{name.upper()} needs activation statistics",
            expected=f"{name}:search=activations",
            found=name,
            code=ErrorCode.PARAMS,
            hint="Pass them, too: --imatrix FILE, or {option:activations=FILE}.",
        )
    return params


def encode(name: str, values: np.ndarray, activations: np.ndarray | None, out: np.ndarray) -> None:
    """Fill `out`, uint8 (rows, bytes), from C-contiguous float32 `values`; squared activations weight the columns.

    CodecError for values beyond float16's range: libggml would end the process.
    """
    reach = np.abs(values).max(initial=0)
    if not reach <= MOST:  # NaN, too
        raise CodecError(
            f"a value does not fit {name.upper()}",
            expected=f"magnitudes up to {MOST:g}",
            found=str(reach),
            code=ErrorCode.RANGE,
            hint="Keep this tensor unquantized, or fix its values first.",
        )
    importance = None
    if activations is not None:
        importance = np.square(np.asarray(activations, np.float32, order="C"))
        if importance.shape != values.shape[-1:] or not np.isfinite(importance).all():
            raise CodecError(
                "search=activations needs activation statistics",
                code=ErrorCode.ENCODE,
                expected=f"[{values.shape[-1]}], with finite squares",
                found=f"shape {list(importance.shape)}",
            )
    if values.size:
        source, weights = _floats(values), None if importance is None else _floats(importance)
        target = out.ctypes.data_as(ctypes.c_void_p)
        _library().ggml_quantize_chunk(_type(name), source, target, 0, *values.shape, weights)


def _floats(array: np.ndarray) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_float))


def _type(name: str) -> int:
    return BLOCK_TYPES[name].code


def _library() -> Any:
    try:
        import ggml
    except (ImportError, OSError) as error:
        raise MissingPluginError(
            f"IQ1, IQ2 and IQ3 are encoded by libggml, and ggml-python cannot be imported: {error}",
            code=ErrorCode.NOT_INSTALLED,
            hint=f"Run `{install_command('squish-ggml[libggml]')}`; it is built from source and needs a C++ compiler.",
        ) from None
    return ggml
