"""The interface of squish-ggml for other plugins; names are loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from squish_core.api import lazy_exports

_NAMES = {
    "squish_ggml.blocks": ("has_encoder",),
    "squish_ggml.codec": ("blocks_for",),
}

if TYPE_CHECKING:
    from .blocks import has_encoder as has_encoder
    from .codec import blocks_for as blocks_for
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
