"""Arrays over the mappings of files, for dense tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from squish_core.dtypes import to_numpy
from squish_core.io.source import Source
from squish_core.model import VIEWABLE, DenseFields, LazyTensors, TensorSpec

if TYPE_CHECKING:
    import numpy as np

COPY_LIMIT = 1 << 16
"""Elements up to which a copy is made from the mapping; beyond it, page faults cost more than a read call."""


def dense_records(tensors: Mapping[str, TensorSpec]) -> Iterable[tuple[str, DenseFields]]:
    """Name and record of each dense tensor in a single byte range."""
    if isinstance(tensors, LazyTensors):
        return tensors.dense_records()
    return ((name, record) for name, spec in tensors.items() if (record := spec.dense_record()) is not None)


class Views:
    """Makes arrays over a file's mappings without a `Tensor` each, for files with 20,000 small tensors."""

    def __init__(self, source_for: Callable[[int], Source]) -> None:
        import numpy as np

        self._source_for, self._array = source_for, np.ndarray
        self._mapped: dict[int, memoryview] = {}
        self._dtypes: dict[str, np.dtype] = {}

    def view(self, record: DenseFields) -> np.ndarray | None:
        """Read-only array of a tensor; None if its values must be decoded or fetched."""
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
