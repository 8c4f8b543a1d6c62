"""Arrays over the mappings of files, for tensors whose values lie there as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from squish_core.dtypes import to_numpy
from squish_core.io.source import Source
from squish_core.model import VIEWABLE, DenseFields, LazyTensors, TensorSpec

if TYPE_CHECKING:
    import numpy as np

READ_FROM = 1 << 16
"""Elements from which a copy is read rather than copied from the mapping: faults cost more than calls there."""


def dense_records(tensors: Mapping[str, TensorSpec]) -> Iterable[tuple[str, DenseFields]]:
    """Name and record of each tensor whose values lie in one range of a file."""
    if isinstance(tensors, LazyTensors):
        return tensors.dense_records()
    return ((name, record) for name, spec in tensors.items() if (record := spec.dense_record()) is not None)


class Views:
    """Arrays over the mappings of a file, made without a `Tensor` each: what 20 000 small tensors need."""

    def __init__(self, source_for: Callable[[int], Source]) -> None:
        import numpy as np

        self._source_for, self._array = source_for, np.ndarray
        self._mapped: dict[int, memoryview] = {}
        self._dtypes: dict[str, np.dtype] = {}

    def view(self, record: DenseFields) -> np.ndarray | None:
        """Read-only array of a tensor; None if its values must be decoded, or fetched."""
        name, shape, file, offset, _ = record
        dtype = self._dtypes.get(name)
        if dtype is None:
            if name not in VIEWABLE:
                return None
            dtype = self._dtypes[name] = to_numpy(name)
        if 0 in shape:
            return self._array(shape, dtype)
        memory = self._mapped.get(file)
        if memory is None:
            source = self._source_for(file)
            if not source.cheap_views:
                return None
            memory = self._mapped[file] = source.view(0, source.size)
        return self._array(shape, dtype, memory, offset)
