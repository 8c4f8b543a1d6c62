"""What a target can store, measured for allocators: the bytes of each encoding, and its error on sampled rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from squish_core.codecs.allocator import AllocationTarget, EncodingOption
from squish_core.codecs.regions import Region, full
from squish_core.concurrency import Pool, workers
from squish_core.errors import SquishError
from squish_core.file import File
from squish_core.model import CodecSpec, TensorSpec

from .activations import ActivationStatistics
from .panels import PanelEncoder
from .step import Step

if TYPE_CHECKING:
    import numpy as np

SAMPLE = 1 << 17
"""Values of a tensor that are encoded to measure an error."""
RUNS = 16
"""Runs of rows that the sample consists of, spread over the tensor."""
GROUP_SIZES = (32, 64, 128)
"""Group sizes to compare where an encoding has a group size; the target refuses those that it does not store."""
WEIGHTED = {"search": "activations"}


@frozen
class MeasuredTarget(AllocationTarget):
    """The target of a conversion.

    Attributes
    ----------
    file
        The source, under the names and rows of the target.
    codecs
        The encodings that have a short name in the target.
    attempt, leave
        Plan a tensor as an encoding, or unchanged; SquishError if the target cannot store that.
    statistics
        Activation statistics, which weigh errors.
    total
        The bytes of all files of the target with these choices.
    """

    file: File
    codecs: Sequence[CodecSpec]
    attempt: Callable[[TensorSpec, CodecSpec], Step]
    leave: Callable[[TensorSpec], Step]
    statistics: ActivationStatistics | None
    total: Callable[[Mapping[str, CodecSpec | str]], int]

    def options(self, specs: Sequence[TensorSpec]) -> Mapping[str, Sequence[EncodingOption]]:
        with Pool(workers()) as pool:
            return {spec.name: found for spec, found in zip(specs, pool.map(self._options, specs))}

    def size(self, choices: Mapping[str, CodecSpec | str]) -> int:
        return self.total(choices)

    def _options(self, spec: TensorSpec) -> list[EncodingOption]:
        """Return the options of one tensor: as it is first, which wins over an encoding with no error on the sample."""
        magnitudes = None if self.statistics is None else _of_columns(self.statistics.of(spec))
        exact, others, sample = list[EncodingOption](), list[EncodingOption](), self._sample(spec)
        for codec, step in self._steps(spec, magnitudes is not None):
            if step.action == "copy":
                exact.append(EncodingOption(codec, step.size, 0.0))
            elif (error := self._error(step, sample, magnitudes)) is not None:
                others.append(EncodingOption(codec, step.size, error))
        with suppress(SquishError):  # the target cannot hold the tensor as it is
            exact.append(EncodingOption(None, self.leave(spec).size, 0.0))
        return [*exact, *others]

    def _steps(self, spec: TensorSpec, is_weighted: bool) -> Iterator[tuple[CodecSpec, Step]]:
        """Yield the encodings that fit a tensor: lossy ones, and the codes that it has; each stored form once."""
        seen = set()
        for codec in (each for named in self.codecs for each in _variants(named)):
            for params in ({**codec.params, **WEIGHTED}, codec.params) if is_weighted else (codec.params,):
                requested = evolve(codec, params=params)
                try:
                    step = self.attempt(spec, requested)
                except SquishError:
                    continue
                stored = str(step.spec.encodings[0].codec), step.spec.dtype
                is_option = step.action == "copy" or (step.is_lossy and step.encoder is None)
                if is_option and stored not in seen:
                    seen.add(stored)
                    yield requested, step
                break

    def _sample(self, spec: TensorSpec) -> np.ndarray:
        """Return rows of a tensor, f32 [rows, columns]."""
        import numpy as np

        bound = self.file[spec.name].bound
        runs = [bound.read(region).reshape(-1, spec.shape[-1]) for region in sample_regions(spec.shape)]
        return np.concatenate(runs).astype(np.float32, copy=False)

    def _error(self, step: Step, rows: np.ndarray, magnitudes: np.ndarray | None) -> float | None:
        """Return the error of an encoding; None if it cannot encode the rows, or does not keep them finite."""
        import numpy as np

        stored = evolve(step.spec.encodings[0], codec=step.codec)
        target = evolve(step.spec, shape=rows.shape, encodings=(stored,))
        needs = step.codec.params.get("search") == WEIGHTED["search"]
        encoder = PanelEncoder(self.file, step.name, target, step.origin, magnitudes if needs else None)
        try:
            decoded = encoder.decoded(rows.shape, encoder.encode(full(rows.shape), rows))
        except SquishError:
            return None
        weights = 1.0 if magnitudes is None else np.square(magnitudes, dtype=np.float64)
        with np.errstate(all="ignore"):
            error, energy = (
                float((np.square(values, dtype=np.float64) * weights).sum()) for values in (decoded - rows, rows)
            )
        relative = error / (energy or 1.0)
        return relative * step.spec.elements if np.isfinite(relative) else None


def _variants(codec: CodecSpec) -> Iterator[CodecSpec]:
    """Yield an encoding, and the same with other group sizes."""
    yield codec
    if "group_size" in codec.params:
        for size in GROUP_SIZES:
            yield evolve(codec, params={**codec.params, "group_size": size})


def _of_columns(magnitudes: np.ndarray | None) -> np.ndarray | None:
    """Return one magnitude for each column: of a stack, the root mean square of its tensors."""
    import numpy as np

    if magnitudes is None or magnitudes.ndim == 1:
        return magnitudes
    return np.sqrt(np.square(magnitudes, dtype=np.float64).mean(axis=0))


def sample_regions(shape: tuple[int, ...]) -> Iterator[Region]:
    """Yield regions of whole rows, spread over a tensor, with about `SAMPLE` values.

    >>> list(sample_regions((2, 3)))
    [(slice(0, 2, None), slice(0, 3, None))]
    >>> regions = list(sample_regions((8, 4096, 4096)))
    >>> len(regions), regions[1]
    (16, (slice(0, 1, None), slice(2048, 2050, None), slice(0, 4096, None)))
    """
    import numpy as np

    *lead, rows, columns = shape
    count = prod(lead) * rows
    most = max(SAMPLE // columns, 1)
    runs = prod(lead) if count <= most else min(RUNS, most)
    size = rows if count <= most else min(most // runs, rows)
    for run in range(runs):
        matrix, row = divmod(run * count // runs, rows)
        row = min(row, rows - size)
        places = tuple(slice(int(place), int(place) + 1) for place in np.unravel_index(matrix, lead)) if lead else ()
        yield (*places, slice(row, row + size), slice(0, columns))
