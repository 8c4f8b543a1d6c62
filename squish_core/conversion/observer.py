"""Who watches a conversion while it writes."""

from __future__ import annotations

from squish_core.analysis.metrics import Distance


class ConversionObserver:
    """What a conversion reports while it writes; a subclass overrides what it needs.

    Calls may come from several threads where a writer takes several tensors at once, never two for one tensor.
    """

    def tensor_started(self, name: str) -> None:
        """A part of this tensor of the source is next."""

    def bytes_written(self, count: int) -> None:
        """The target grew by that many bytes."""

    def quality(self, name: str, distance: Distance, clipped: int) -> None:
        """This tensor was encoded with loss: how far its values are from the source's, and how many were clipped."""
