"""Running packages: the one module that needs Core ML, and so a Mac. It is as thin as it can be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from squish_core.api import File, SquishError, cached_folder

from ..coreml.archive import digest, extract
from .backend import Ane

FALLBACK = "The tensors run without Core ML: file[name].load()."


DTYPES = {65552: "f16", 65568: "f32", 65600: "f64", 131104: "i32"}
"""Core ML's numbers of the types of arrays (`ArrayFeatureType.ArrayDataType`)."""


class Model:
    """A package loaded by Core ML for the CPU and the Neural Engine: of a path, or of a file that carries one.

    SquishError where Core ML is not there or does not take the package. `inputs` and `outputs` give shape and dtype by
    name. A package that a file carries is extracted once, into the cache.
    """

    def __init__(self, package: str | Path | File) -> None:
        available = Ane().probe()
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
        """Results by name: a package of ours has an input `x_<width>_<dtype>` [1, width] for each width of layers."""
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
    """Shape and dtype by name of the arrays among a model's inputs or outputs."""
    arrays = {each.name: each.type.multiArrayType for each in descriptions}
    return {name: (tuple(array.shape), DTYPES.get(array.dataType, "f32")) for name, array in arrays.items()}


def _core_ml(call: Any) -> Any:
    try:
        return call()
    except Exception as error:  # Core ML raises plain exceptions of all kinds
        raise SquishError(f"Core ML refused: {error}", code="coreml", hint=FALLBACK) from error
