"""The interface for observing a conversion while it writes."""

from __future__ import annotations

from .compare.metrics import Distance


class ConversionObserver:
    """Receives events while a conversion writes; override the methods you need.

    Calls may come from several threads if a writer takes several tensors at once, but never two for one tensor.
    """

    def tensor_started(self, name: str) -> None:
        """Called when a part of this source tensor is about to be read."""

    def bytes_written(self, count: int) -> None:
        """Called when the target has grown by `count` bytes."""

    def task_finished(self, worker: str, read: int, written: int, seconds: float) -> None:
        """Called when a worker of a job has finished a task, with its stored bytes and those of the target."""

    def quality(self, name: str, distance: Distance, clipped: int) -> None:
        """Called with the error of a lossy encoding, and the number of clipped values."""
