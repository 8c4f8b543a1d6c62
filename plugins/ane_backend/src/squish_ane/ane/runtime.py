"""Running packages: the one module that needs Core ML, and so a Mac. It is as thin as it can be."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from squish_core.api import File, SquishError

from ..coreml.archive import extract
from .backend import Ane

FALLBACK = "The tensors run without Core ML: file[name].load()."


class Model:
    """A package loaded by Core ML for the CPU and the Neural Engine: of a path, or of a file that carries one.

    SquishError where Core ML is not there or does not take the package. A context manager: a package that was taken
    out of a file lies in a temporary folder until `close`.
    """

    def __init__(self, package: str | Path | File) -> None:
        available = Ane().probe()
        if not available.ok:
            raise SquishError(available.reason, code="unavailable", hint=FALLBACK)
        import coremltools

        self._held = ExitStack()
        with ExitStack() as held:
            if isinstance(package, File):
                folder = held.enter_context(tempfile.TemporaryDirectory())
                package = extract(package, Path(folder) / "model.mlpackage")
            units = coremltools.ComputeUnit.CPU_AND_NE
            self._model = _core_ml(lambda: coremltools.models.MLModel(str(package), compute_units=units))
            self._held = held.pop_all()

    def predict(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Results by name: a package of ours has an input `x_<width>_<dtype>` [1, width] for each width of layers."""
        found: dict[str, np.ndarray] = _core_ml(lambda: self._model.predict(dict(inputs)))
        return found

    def close(self) -> None:
        """Let go of the temporary folder."""
        self._held.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _core_ml(call: Any) -> Any:
    try:
        return call()
    except Exception as error:  # Core ML raises plain exceptions of all kinds
        raise SquishError(f"Core ML refused: {error}", code="coreml", hint=FALLBACK) from error
