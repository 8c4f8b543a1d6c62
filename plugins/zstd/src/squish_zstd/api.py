"""The interface of squish-zstd for other plugins; names are loaded on first use."""

from __future__ import annotations

from squish_core.api import lazy_exports

_NAMES = {
    "squish_zstd.codec": ("Zstd", "compression_level", "decode_head"),
}  # fmt: skip

__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
