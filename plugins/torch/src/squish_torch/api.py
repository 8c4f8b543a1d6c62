"""The interface of squish-torch for other plugins; names, and torch, are imported on first use."""

from __future__ import annotations

from squish_core.api import lazy_exports

_NAMES = {
    "squish_torch.evaluation.lockstep": ("evaluate",),
    "squish_torch.libraries": ("required",),
}

__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
