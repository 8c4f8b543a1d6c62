"""Activation statistics (imatrix), by which encoders weight errors: a file with one vector per tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from squish_core.errors import TensorError
from squish_core.file import File
from squish_core.model import TensorSpec

if TYPE_CHECKING:
    import numpy as np


class Activations:
    """Mean magnitudes of activations per column of each tensor, from a file of any format."""

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
        vector = self._file[name].numpy(dtype="f32")
        if vector.shape != spec.shape[-1:] or not np.isfinite(vector).all() or (vector < 0).any():
            raise TensorError(
                "invalid activation statistics", file=self._file.name, tensor=spec.name,
                expected=f"[{spec.shape[-1] if spec.shape else 0}], finite and not negative",
                found=f"shape {list(vector.shape)}", code="imatrix",
            )  # fmt: skip
        return vector

    def _name(self, spec: TensorSpec) -> str | None:
        names = (spec.name, spec.name.removesuffix(".weight"))
        return next((name for name in names if name in self._file), None)
