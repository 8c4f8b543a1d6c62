"""Activation statistics (imatrix), by which encoders weight errors: a file with one vector per tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from squish_core.errors import TensorError
from squish_core.file import File
from squish_core.model import TensorSpec

if TYPE_CHECKING:
    import numpy as np


SUMS, COUNTS = ".in_sum2", ".counts"
"""What llama.cpp's imatrix has for a tensor: sums of squared activations per column, and how many were summed."""


class Activations:
    """Magnitudes of activations per column of each tensor, from a file of any format: vectors of the tensors' names
    (mean magnitudes), or llama.cpp's imatrix (the root of the mean square)."""

    def __init__(self, file: File) -> None:
        self._file = file

    def names(self, specs: Iterable[TensorSpec]) -> frozenset[str]:
        """Names of the tensors with statistics."""
        return frozenset(spec.name for spec in specs if self._name(spec) is not None)

    def of(self, spec: TensorSpec) -> np.ndarray | None:
        """A tensor's statistics, f32 [columns], by its name with or without ".weight"; None if there are none.

        TensorError unless they are one finite magnitude per column.
        """
        import numpy as np

        name = self._name(spec)
        if name is None:
            return None
        columns = spec.shape[-1] if spec.shape else 1
        vector = self._magnitudes(name, columns) if name.endswith(SUMS) else self._file[name].numpy(dtype="f32")
        if vector.shape != spec.shape[-1:] or not np.isfinite(vector).all() or (vector < 0).any():
            raise TensorError(
                "invalid activation statistics", file=self._file.name, tensor=spec.name,
                expected=f"[{spec.shape[-1] if spec.shape else 0}], finite and not negative",
                found=f"shape {list(vector.shape)}", code="imatrix",
            )  # fmt: skip
        return vector

    def _magnitudes(self, name: str, columns: int) -> np.ndarray:
        """The root of the mean square of llama.cpp's sums; experts of a stack count together, also where their sums
        follow each other in one row with one count (older files)."""
        import numpy as np

        sums = self._file[name].numpy(dtype="f32").astype(np.float64)
        counts_name = name.removesuffix(SUMS) + COUNTS
        counts = self._file[counts_name].numpy(dtype="f32") if counts_name in self._file else np.zeros(1)
        width = columns if columns and sums.size % columns == 0 else max(sums.size, 1)
        rows = sums.reshape(-1, width)
        with np.errstate(all="ignore"):
            mean = rows.sum(0) / (counts.mean(dtype=np.float64) * len(rows))
            return np.sqrt(mean).astype(np.float32)

    def _name(self, spec: TensorSpec) -> str | None:
        names = (spec.name, spec.name.removesuffix(".weight"), f"{spec.name}{SUMS}")
        return next((name for name in names if name in self._file), None)
