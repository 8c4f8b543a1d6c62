"""Runs packages with Core ML; the only module that needs a Mac, so it is kept thin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from squish_core.api import File, SquishError, cached_folder

from ..coreml.archive import digest, extract
from .availability import core_ml_availability

FALLBACK = "Tensors can run without Core ML: file[name].load()."


DTYPES = {65552: "f16", 65568: "f32", 65600: "f64", 131104: "i32"}
"""Core ML's array types (`ArrayFeatureType.ArrayDataType`)."""


class Model:
    """A package loaded by Core ML for the CPU and Neural Engine, from a path or a file's appendix.

    SquishError if Core ML is unavailable or rejects the package. `inputs` and `outputs` map names to shape and dtype.
    An appendix is extracted to the cache once.
    """

    def __init__(self, package: str | Path | File) -> None:
        available = core_ml_availability()
        if not available.ok:
            raise SquishError(available.reason, code="unavailable", hint=FALLBACK)
        import coremltools

        if isinstance(package, File):
            file = package
            package = cached_folder("coreml", f"{digest(file)}.mlpackage", lambda folder: extract(file, folder))
        units = coremltools.ComputeUnit.CPU_AND_NE
        self._model: Any = _core_ml(lambda: coremltools.models.MLModel(str(package), compute_units=units))
        description = _core_ml(lambda: self._model.get_spec().description)
        self.inputs, self.outputs = _features(description.input), _features(description.output)

    def predict(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return results by name; Squish writes one input `x_<width>_<dtype>` [1, width] per layer width."""
        results: dict[str, np.ndarray] = _core_ml(lambda: self._model.predict(dict(inputs)))
        return results

    def close(self) -> None:
        """Unload the model."""
        self._model = None

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _features(descriptions: Iterable[Any]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and dtype by name of a model's array inputs or outputs."""
    arrays = {each.name: each.type.multiArrayType for each in descriptions}
    return {name: (tuple(array.shape), DTYPES.get(array.dataType, "f32")) for name, array in arrays.items()}


def _core_ml(call: Any) -> Any:
    try:
        return call()
    except Exception as error:  # Core ML raises plain exceptions of all kinds
        raise SquishError(f"Core ML failed: {error}", code="coreml", hint=FALLBACK) from error
