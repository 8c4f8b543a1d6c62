"""A model loaded as a whole, on a backend that runs all of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from squish_core.errors import ClosedError, SquishError, UsageError
from squish_core.guard import guarded

if TYPE_CHECKING:
    import numpy as np

    from squish_core.backends.chain import Chain

WHOLE = "the whole model"
"""The target of the chain of a whole model."""
Feature = tuple[tuple[int, ...], str]
"""Shape and dtype id of an input or output."""


class WholeHandle(Protocol):
    """The result of `Backend.load_whole`."""

    @property
    def inputs(self) -> Mapping[str, Feature]:
        """Name -> (shape, dtype id)."""

    @property
    def outputs(self) -> Mapping[str, Feature]:
        """Name -> (shape, dtype id)."""

    def predict(self, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Run the model once."""

    def close(self) -> None:
        """Unload the model."""


class WholeModel:
    """A model that a backend runs as a whole (`File.load`); a context manager. `chain` explains the choice."""

    def __init__(self, name: str, chain: Chain, handle: WholeHandle) -> None:
        self.name, self.chain = name, chain
        self._handle: WholeHandle | None = handle

    @property
    def backend(self) -> str:
        """Backend id."""
        return self.chain.chosen.backend

    @property
    def inputs(self) -> dict[str, Feature]:
        """Name -> (shape, dtype id)."""
        return dict(self._open.inputs)

    @property
    def outputs(self) -> dict[str, Feature]:
        """Name -> (shape, dtype id)."""
        return dict(self._open.outputs)

    def predict(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the model once.

        Parameters
        ----------
        inputs
            Name -> array, in the shape of the entry in `inputs`.

        Returns
        -------
        dict
            Name -> array for each entry of `outputs`.

        Raises
        ------
        UsageError
            The names or shapes differ from `inputs`.
        SquishError
            The backend's runtime fails.
        ClosedError
            After `close`.

        Examples
        --------
        >>> class Handle:
        ...     inputs = {"x": ((2,), "f32")}
        ...     def predict(self, inputs):
        ...         return {"y": 2 * inputs["x"]}
        >>> chain = squish.open("model.gguf")["blk.0.ffn_norm.weight"].plan("numpy")  # in place of the model's chain
        >>> WholeModel("model.squizd", chain, Handle()).predict({"x": np.ones(2, "f4")})["y"].tolist()
        [2.0, 2.0]
        """
        import numpy as np

        handle = self._open
        inputs = {name: np.asarray(array) for name, array in inputs.items()}
        shapes = {name: array.shape for name, array in inputs.items()}
        expected = {name: tuple(shape) for name, (shape, _) in handle.inputs.items()}
        if shapes != expected:
            raise UsageError(
                "the inputs do not match the model",
                file=self.name,
                code="input",
                expected=_features(expected),
                found=_features(shapes),
            )
        with guarded(SquishError, f"running the model on {self.backend}", file=self.name):
            return dict(handle.predict(inputs))

    def close(self) -> None:
        """Unload the model; a second call has no effect.

        Examples
        --------
        >>> class Handle:
        ...     def close(self):
        ...         print("unloaded")
        >>> WholeModel("model.squizd", None, Handle()).close()
        unloaded
        """
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()

    @property
    def _open(self) -> WholeHandle:
        if self._handle is None:
            raise ClosedError("the model was unloaded", file=self.name, code="closed")
        return self._handle

    def __enter__(self) -> WholeModel:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._handle is None else f"{len(self.inputs)} inputs, {len(self.outputs)} outputs"
        return f"<WholeModel {self.name!r} on {self.backend}: {state}>"


def _features(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items()) or "none"
