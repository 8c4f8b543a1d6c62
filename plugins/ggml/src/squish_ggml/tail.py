"""Block types whose tables of code points only gguf-py has here: IQ1, IQ2 and IQ3."""

from __future__ import annotations

from functools import partial

from squish_core.api import MissingPluginError

from .panels import Bytes, Floats, Scratch

SIZES = {"iq1_s": 50, "iq1_m": 56, "iq2_xxs": 66, "iq2_xs": 74, "iq2_s": 82, "iq3_xxs": 98, "iq3_s": 110}
"""Bytes of a block of 256 elements."""


def _decode(name: str, panel: Bytes, out: Floats, scratch: Scratch) -> None:
    try:
        import gguf
    except ImportError:
        raise MissingPluginError(
            f"{name.upper()} blocks are decoded by gguf-py, which is not installed", code="not-installed",
            hint="Run `pip install gguf`.",
        ) from None  # fmt: skip
    out[:] = gguf.dequantize(panel, gguf.GGMLQuantizationType[name.upper()])


KERNELS = {name: partial(_decode, name) for name in SIZES}
