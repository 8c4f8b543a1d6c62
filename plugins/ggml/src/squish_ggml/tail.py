"""IQ1, IQ2 and IQ3: gguf-py decodes them, since it has their codebooks."""

from __future__ import annotations

from functools import partial

from squish_core.api import ErrorCode, MissingPluginError, install_command

from .libggml import NAMES
from .panels import Bytes, Floats, Scratch


def _decode(name: str, panel: Bytes, out: Floats, scratch: Scratch) -> None:
    try:
        import gguf
    except ImportError:
        raise MissingPluginError(
            f"{name.upper()} blocks need gguf-py, which is not installed",
            code=ErrorCode.NOT_INSTALLED,
            hint=f"Run `{install_command('gguf')}`.",
        ) from None
    out[:] = gguf.dequantize(panel, gguf.GGMLQuantizationType[name.upper()])


KERNELS = {name: partial(_decode, name) for name in NAMES}
