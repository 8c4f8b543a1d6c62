"""The interface of squish-cpu for other plugins; names are loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from squish_core.api import lazy_exports

_NAMES = {"squish_cpu.vocabulary": ("ScannedVocabulary", "check_vocabulary", "read_vocabulary", "write_vocabulary")}

if TYPE_CHECKING:
    from .vocabulary import ScannedVocabulary as ScannedVocabulary
    from .vocabulary import check_vocabulary as check_vocabulary
    from .vocabulary import read_vocabulary as read_vocabulary
    from .vocabulary import write_vocabulary as write_vocabulary
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
