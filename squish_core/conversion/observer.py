"""The interface for observing a conversion while it writes."""

from __future__ import annotations

from squish_core.analysis.metrics import Distance


class ConversionObserver:
    """Receives events while a conversion writes; override the methods you need.

    Calls may come from several threads if a writer takes several tensors at once, but never two for one tensor.
    """

    def tensor_started(self, name: str) -> None:
        """A part of this source tensor is read next."""

    def bytes_written(self, count: int) -> None:
        """The target grew by `count` bytes."""

    def quality(self, name: str, distance: Distance, clipped: int) -> None:
        """This tensor was encoded with loss: the error of its values, and how many were clipped."""
