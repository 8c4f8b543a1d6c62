"""The interface of squish-gguf for other plugins; names are loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from squish_core.api import lazy_exports

_NAMES = {
    "squish_gguf.kept_files": ("FILE", "pack_files", "unpack_files"),
    "squish_gguf.text_arrays": ("encode_texts", "text_array"),
    "squish_gguf.values": ("pack_pair",),
}

if TYPE_CHECKING:
    from .kept_files import FILE as FILE
    from .kept_files import pack_files as pack_files
    from .kept_files import unpack_files as unpack_files
    from .text_arrays import encode_texts as encode_texts
    from .text_arrays import text_array as text_array
    from .values import pack_pair as pack_pair
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
