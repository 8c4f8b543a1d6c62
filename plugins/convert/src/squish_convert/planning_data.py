"""The data that planning reads; headers decide everything else.

- `repack_exactness`: the codes of a tensor that the target packs differently, to decide whether they fit (offsets,
  ranges, tables). `convert` reads only the first panel, and plans again if a later one does not fit.
- `complete_params`: the values of a tensor whose codec has a parameter for all of it (a global scale).
- `values_of`: the values that an allocator (`mixed`) measures.
- Activation statistics of the tensors to encode with them.
- Assets of up to 16 MiB (`companions.target_assets`): formats read configs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from math import isfinite
from typing import TYPE_CHECKING

from squish_core.checking.check import SourceReader
from squish_core.codecs.base import Codec, Params
from squish_core.codecs.bound import MEMORY_LIMIT
from squish_core.codecs.regions import Region, stored_panels
from squish_core.codes import ErrorCode
from squish_core.errors import CodecError
from squish_core.file import File
from squish_core.model import SAME_BYTES, Encoding, Exactness, TensorSpec
from squish_core.text import format_bytes

from .overflow import SATURATE, error_at
from .panels import ALL_PANELS, CodePanels, reader_of
from .step import Step

if TYPE_CHECKING:
    import numpy as np


def end_planning(reader: SourceReader) -> tuple[str, ...]:
    """Stop caching what is read; a note if the conversion reads bytes again that planning has read."""
    reader.cache.is_complete = True
    reader.cache.budget += MEMORY_LIMIT  # for the checks of the conversion
    if not reader.cache.missed:
        return ()
    return (f"planning read {reader.cache.missed:,} bytes that the conversion reads again: {_AGAIN}",)


_AGAIN = f"decisions that depend on whole tensors are kept up to {MEMORY_LIMIT >> 20} MiB"


def undecided_notes(steps: Iterable[Step]) -> tuple[str, ...]:
    """Return a note on the tensors of a remote file that a dry run judges by their first panel."""
    sizes = [step.stored for step in steps if step.action == "repack"]
    if not sizes:
        return ()
    size = format_bytes(sum(sizes))
    judged = f"tensors judged by their first codes: {len(sizes)}"
    return (f"{judged}; judging by all would read {size}, which the conversion does as it writes",)


def repack_exactness(
    file: File, spec: TensorSpec, origin: Encoding, target: Encoding, *, first_only: bool = False
) -> Exactness | None:
    """How exactly the target can store the source's codes, by the data; None if it cannot.

    `first_only`: read only the first panel; `RepackedPanels` checks the others while writing.
    """
    worst, sink = SAME_BYTES, file.registry.codec(target.codec)
    panels = CodePanels(file, spec, origin, target, memory=0 if first_only else ALL_PANELS)
    for codes, panel in map(panels.read, islice(panels.regions(), 1 if first_only else None)):
        exactness = None if codes is None else sink.holds(codes, panel)
        if exactness is None:
            return None
        if exactness != SAME_BYTES:
            worst = exactness
    return worst


def complete_params(codec: Codec, file: File, spec: TensorSpec, origin: Encoding, overflow: str) -> Params:
    """Return the parameters, completed from the values (`Codec.fit_params`).

    If the codec refuses the values, the error names the first bad one.
    """
    import numpy as np

    read = partial(values_of, file, spec, origin, codec.value_dtype(spec))
    limit = float(np.finfo(np.float32).max) / 2  # clipped limits are adjacent float32 values

    def clipped() -> Iterator[np.ndarray]:
        return (np.clip(values, -limit, limit) for values in read())

    for panels in (read, clipped) if overflow == SATURATE else (read,):
        try:
            return codec.fit_params(panels, spec)
        except CodecError as error:
            if error.code != ErrorCode.RANGE:
                raise
            refusal = error
    raise _located(refusal, spec, read()) from refusal


def _located(refusal: CodecError, spec: TensorSpec, values: Iterator[np.ndarray]) -> CodecError:
    """Error for the tensor's first non-finite value, or else for its largest one."""
    import numpy as np

    largest, error = -1.0, refusal
    for region, panel in zip(_value_regions(spec), values):
        magnitude = float(np.abs(panel).max(initial=0))  # NaN if there is one
        if not magnitude <= largest:
            largest, error = magnitude, error_at(panel, tuple(part.start for part in region), cause=refusal)
        if not isfinite(magnitude):
            break
    return error


def values_of(file: File, spec: TensorSpec, origin: Encoding, dtype: str) -> Iterator[np.ndarray]:
    """Yield a tensor's values in row panels: unchanged if they have this dtype, else as f32 or in their own dtype."""
    read = reader_of(file, spec.name, origin, dtype)
    for region in _value_regions(spec):
        yield read(region)


def _value_regions(spec: TensorSpec) -> Iterator[Region]:
    """Return the regions of `values_of`."""
    return stored_panels(spec.shape, (1,) * len(spec.shape), 4)
