"""The interface of squish-ggml for other plugins; names are loaded on first use."""

from __future__ import annotations

from squish_core.api import lazy_exports

_NAMES = {
    "squish_ggml.blocks": ("has_encoder",),
    "squish_ggml.codec": ("blocks_for",),
}

__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
