"""What other plugins may import of squish-ggml; names are loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from squish_core.api import lazy_exports

_NAMES = {"squish_ggml.blocks": ("BLOCKS",)}

if TYPE_CHECKING:
    from .blocks import BLOCKS as BLOCKS
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
