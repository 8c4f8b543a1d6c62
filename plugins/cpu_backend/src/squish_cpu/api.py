"""The interface of squish-cpu for other plugins; names are loaded on first use."""

from __future__ import annotations

from squish_core.api import lazy_exports

_NAMES = {"squish_cpu.vocabulary": ("ScannedVocabulary", "check_vocabulary", "read_vocabulary", "write_vocabulary")}

__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
