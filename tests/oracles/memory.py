"""The sizes that llama.cpp logs as it loads a model with llama-server's settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from . import peer

KINDS = {"weights": "model", "cache": "KV", "states": "RS", "compute": "compute", "logits": "output"}
"""What `squish fit` counts -> the buffers of the log."""


def logged_sizes(path: Path, context: int) -> dict[str, float]:
    """The bytes of each kind of buffer; RuntimeError if llama.cpp does not load the model."""
    log = peer("llama.cpp").run(loading_log, path=str(path), context=context)
    found = {
        kind: [float(size) for size in re.findall(rf"\b{word} buffer size = +([\d.]+) MiB", log)]
        for kind, word in KINDS.items()
    }
    return {kind: 2**20 * sum(sizes) for kind, sizes in found.items()}


def loading_log(path: str, context: int) -> Any:
    """Runs in the peer: loads a model as `llama-server -c CONTEXT -np 1 --no-repack` does, and returns the log."""
    import ctypes
    from ctypes import c_char_p, c_int32, c_void_p
    from pathlib import Path

    import xllamacpp

    class Params(ctypes.Structure):  # larger than any version's
        _fields_ = (("bytes", ctypes.c_uint8 * 1024),)

    library = ctypes.CDLL(next(map(str, Path(xllamacpp.__file__).parent.glob("*.so"))))

    def function(name: str, result: Any, *arguments: Any) -> Any:
        entry = getattr(library, name)
        entry.restype, entry.argtypes = result, arguments
        return entry

    messages: list[str] = []
    log = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)(
        lambda level, text, _: messages.append(text.decode(errors="replace"))
    )
    function("llama_log_set", None, type(log), c_void_p)(log, None)
    function("llama_backend_init", None)()
    load = function("llama_model_load_from_file", c_void_p, c_char_p, Params)
    model = load(path.encode(), function("llama_model_default_params", Params)())
    if not model:
        raise RuntimeError(f"llama.cpp does not load the file: {''.join(messages)[-400:]}")
    settings = function("llama_context_default_params", Params)()
    words = (ctypes.c_uint32 * 256).from_buffer(settings)
    length, batch, part, outputs, flash, switches, full_windows = 0, 1, 2, 5, 13, 136, 140
    if words[flash] != 0xFFFFFFFF or list(settings.bytes[switches : switches + 6]) != [0, 1, 1, 1, 1, 0]:
        raise RuntimeError("llama.cpp's context parameters have another layout")
    words[length], words[batch], words[part], words[outputs] = context, 2048, 512, 1
    settings.bytes[full_windows] = 0
    session = function("llama_init_from_model", c_void_p, c_void_p, Params)(model, settings)
    if not session:
        raise RuntimeError(f"llama.cpp makes no context for the model: {''.join(messages)[-400:]}")
    function("llama_log_set", None, c_void_p, c_void_p)(None, None)
    function("llama_free", None, c_void_p)(session)
    function("llama_model_free", None, c_void_p)(model)
    return "".join(messages)
