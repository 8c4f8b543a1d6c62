"""The interface of squish-zstd for other plugins; names are loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from squish_core.api import lazy_exports

_NAMES = {
    "squish_zstd.codec": ("Zstd", "compression_level", "decode_head"),
}  # fmt: skip

if TYPE_CHECKING:
    from .codec import Zstd as Zstd
    from .codec import compression_level as compression_level
    from .codec import decode_head as decode_head
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
