"""Statistics of activations, by which encoders may weigh errors: a file with one vector for each tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from squish_core.errors import TensorError
from squish_core.file import File
from squish_core.model import TensorSpec

if TYPE_CHECKING:
    import numpy as np


class Activations:
    """Mean magnitudes of what each column of a tensor is multiplied by; from a file of any format."""

    def __init__(self, file: File) -> None:
        self._file = file

    def names(self, specs: Iterable[TensorSpec]) -> frozenset[str]:
        """The names of tensors that have statistics."""
        return frozenset(spec.name for spec in specs if self._name(spec) is not None)

    def of(self, spec: TensorSpec) -> np.ndarray | None:
        """Those of a tensor, f32 [columns], under its name with or without ".weight"; None where there are none.

        TensorError unless they are finite magnitudes, one for each column.
        """
        import numpy as np

        name = self._name(spec)
        if name is None:
            return None
        found = self._file[name].numpy(dtype="f32")
        if found.shape != spec.shape[-1:] or not np.isfinite(found).all() or (found < 0).any():
            raise TensorError(
                "has statistics that are no magnitudes of its columns", file=self._file.name, tensor=spec.name,
                expected=f"[{spec.shape[-1] if spec.shape else 0}], finite and not negative",
                found=f"shape {list(found.shape)}", code="stats",
            )  # fmt: skip
        return found

    def _name(self, spec: TensorSpec) -> str | None:
        names = (spec.name, spec.name.removesuffix(".weight"))
        return next((name for name in names if name in self._file), None)
