"""The interface of squish-torch for other plugins; names are loaded on first use, and torch with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from squish_core.api import lazy_exports

_NAMES = {
    "squish_torch.evaluation.lockstep": ("evaluate",),
    "squish_torch.libraries": ("required",),
}

if TYPE_CHECKING:
    from .evaluation.lockstep import evaluate as evaluate
    from .libraries import required as required
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
