"""The interface of squish-gguf for other plugins; names are loaded on first use."""

from __future__ import annotations

from squish_core.api import lazy_exports

_NAMES = {
    "squish_gguf.kept_files": ("FILE", "pack_files", "unpack_files"),
    "squish_gguf.text_arrays": ("text_array",),
    "squish_gguf.values": ("pack_pair",),
}

__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
