"""Encoding a tensor's values panel by panel, and measuring the result."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from attrs import evolve

from squish_core.codecs.base import MeasuringEncoder
from squish_core.codecs.bound import MEMORY_LIMIT, BoundEncoding
from squish_core.codecs.code_layout import Codes
from squish_core.codecs.regions import Region, full, sizes
from squish_core.file import File
from squish_core.model import DENSE, CodecSpec, Encoding, TensorSpec

from .compare.metrics import Distance
from .compatible import encoder_for
from .overflow import changed, check

if TYPE_CHECKING:
    import numpy as np


def reader_of(
    file: File, name: str, origin: Encoding, dtype: str, *, memory: int = MEMORY_LIMIT
) -> Callable[[Region], np.ndarray]:
    """A function that reads a region's values: as f32 if a compiled decoder is available, else in their own dtype.

    Values that already have `dtype` are never converted: f32 would lose NaN payloads. `memory`: bytes of parts that
    are kept in memory if reading them again costs anything.
    """
    import numpy as np

    bound, fill = file.bind(file.index.tensors[name], origin), None
    bound = bound.in_memory(memory)
    arrays = bound.arrays
    in_place = all(array.part.in_place and array.is_cheap for array in arrays.values())
    if bound.dtype != dtype and origin.codec.inner is None and in_place:
        parts = {role: array[...] for role, array in arrays.items()}
        encoder = encoder_for(file.registry, origin.codec, bound.spec).from_params(origin.codec.params)
        if isinstance(encoder, MeasuringEncoder):
            fill = encoder.decoder(bound.codec, parts, bound.spec)
    if fill is None:
        return bound.read

    def read(region: Region) -> np.ndarray:
        for array in arrays.values():
            array.check_size()
        out = np.empty(sizes(region), np.float32)
        fill(region, out)
        return out

    return read


def _typed(codec: CodecSpec, dtype: str) -> CodecSpec:
    """A codec, with the tensor's dtype for a dense one that it wraps: an inner codec does not see the tensor."""
    if codec.inner is None:
        return codec
    inner = evolve(codec.inner, params={"dtype": dtype}) if codec.inner == DENSE else _typed(codec.inner, dtype)
    return evolve(codec, inner=inner)


class PanelEncoder:
    """One encoding of the panels of a tensor's values."""

    def __init__(
        self, file: File, name: str, target: TensorSpec, origin: Encoding, activations: np.ndarray | None
    ) -> None:
        registry, self._target, spec = file.registry, target, _typed(target.encodings[0].codec, target.dtype)
        self._spec, self._codec, self._dense = spec, registry.codec(spec), spec.id == "dense"
        params = {"dtype": target.dtype, **spec.params} if self._dense else spec.params
        self._encoder = encoder_for(registry, spec, target).from_params(params, self._codec.inner)
        self._metrics = self._encoder if isinstance(self._encoder, MeasuringEncoder) else None
        self._activations = activations
        own = self._codec.value_dtype(target)
        source = registry.codec(origin.codec).value_dtype(file[name].spec)
        self._keeps_dtype = self._dense or source == own
        self.reader = partial(reader_of, file, name, origin, own)
        self.grain = self._codec.encode_grain(target)
        self.blocks = self.grain
        if not self._dense and self.grain and self.grain[-1] == 1:
            self.blocks = (*self.grain[:-1], None)  # panels are whole rows, so a scale may cover a row

    def panel(self, values: np.ndarray) -> np.ndarray:
        """The values in the encoder's dtype."""
        import numpy as np

        return values if self._keeps_dtype else values.astype(np.float32, copy=False)

    def encode(self, region: Region, values: np.ndarray) -> dict[str, np.ndarray]:
        """Encode a region's values, or some of its rows; statistics of a stack are of each of its tensors."""
        import numpy as np

        panel, activations = self.panel(values), self._activations
        if activations is None or activations.ndim == 1:
            columns = None if activations is None else activations[region[-1]]
            return self._encoder.encode(panel, activations=columns)
        members = [
            self._encoder.encode(member[None], activations=activations[number, region[-1]])
            for number, member in zip(range(region[0].start, region[0].stop), panel)
        ]
        return {role: np.concatenate([parts[role] for parts in members]) for role in members[0]}

    def changed(self, values: np.ndarray, encoded: dict[str, np.ndarray]) -> np.ndarray | None:
        """Mask of the values whose finiteness, infinity or NaN decoding changes; None if there are none."""
        bound = self._bound(values.shape, encoded)
        if self._sums(bound, values):
            return None
        mask = changed(values, bound.read())
        return mask if mask.any() else None

    def add_distance(
        self, distance: Distance, values: np.ndarray, encoded: dict[str, np.ndarray], start: tuple[int, ...] | None
    ) -> None:
        """Add the distance of an encoded panel from its values.

        `start`: the panel's first index, to check that finite values stayed finite; None skips the check.
        """
        bound = self._bound(values.shape, encoded)
        if sums := self._sums(bound, values):
            distance.take(*sums)
            return
        for region in bound.panels(budget=1 << 20, whole_rows=True):  # pieces that stay in the cache
            decoded = bound.read(region)
            distance.add(values[region], decoded)
            if distance.max_error == inf and start is not None:
                check(values[region], decoded, self.blocks, tuple(low + part.start for low, part in zip(start, region)))

    def _sums(self, bound: BoundEncoding, values: np.ndarray) -> tuple[float, float, float, float] | None:
        """The encoder's own error sums; None if it has none, or one is not finite."""
        if self._metrics is None:
            return None
        sums = self._metrics.compare(bound.codec, values, bound.parts, bound.spec)  # type: ignore[arg-type]
        return sums if sums and all(map(isfinite, sums)) else None

    def codes(self, shape: tuple[int, ...], encoded: dict[str, np.ndarray]) -> Codes | None:
        """The codes of an encoded panel; None if it has none."""
        return self._bound(shape, encoded).codes(full(shape))

    def _bound(self, shape: tuple[int, ...], encoded: dict[str, np.ndarray]) -> BoundEncoding:
        """An encoded panel as an encoding, its parts in their declared shapes."""
        spec = evolve(self._target, shape=shape)
        codec = self._codec
        if (params := codec.params_of_panel(encoded)) is not codec.params:
            codec = codec.from_params(params, codec.inner)
        declared = codec.parts(spec)
        parts: Any = {role: encoded[role].reshape(shape) for role, (_, shape) in declared.items()}
        encoding = Encoding(codec=evolve(self._spec, params=params))
        return BoundEncoding(codec, spec, encoding, parts)
