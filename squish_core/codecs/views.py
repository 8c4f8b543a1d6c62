"""Arrays over the mappings of files, for dense tensors.

Apart from `file`, because it makes no tensors: a file may have 20,000 small ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from squish_core.dtypes import to_numpy
from squish_core.guard import gc_paused
from squish_core.io.source import Source
from squish_core.model import VIEWABLE, DenseFields, LazyTensors, TensorSpec

if TYPE_CHECKING:
    import numpy as np

COPY_LIMIT = 1 << 16
"""Elements up to which a copy is made from the mapping; beyond it, page faults cost more than a read call."""


def dense_views(
    tensors: Mapping[str, TensorSpec], source_for: Callable[[int], Source]
) -> Iterator[tuple[str, np.ndarray]]:
    """Name and read-only array of each tensor that can be viewed: dense, in one byte range of a file that is mapped.

    It makes no `Tensor`: a file may have 20,000 small ones.
    """
    import numpy as np

    array = np.ndarray
    kinds: dict[str, np.dtype | None] = {}
    mappings: dict[int, memoryview | None] = {}
    for name, (dtype, shape, file, offset, _) in _dense_records(tensors):
        if dtype not in kinds:
            kinds[dtype] = to_numpy(dtype) if dtype in VIEWABLE else None
        if (kind := kinds[dtype]) is None:
            continue
        if 0 in shape:
            yield name, array(shape, kind)
            continue
        if file not in mappings:
            source = source_for(file)
            mappings[file] = source.view(0, source.size) if source.cheap_views else None
        if (mapping := mappings[file]) is not None:
            yield name, array(shape, kind, mapping, offset)


def dense_arrays(
    tensors: Mapping[str, TensorSpec], source_for: Callable[[int], Source], *, copy: bool
) -> dict[str, Any]:
    """Name -> array of each tensor; None for those that must be decoded, or are faster to read than to copy."""
    arrays: dict[str, Any] = dict.fromkeys(tensors)
    with gc_paused():
        for name, view in dense_views(tensors, source_for):
            if not copy:
                arrays[name] = view
            elif view.size <= COPY_LIMIT:
                arrays[name] = view.copy()
    return arrays


def _dense_records(tensors: Mapping[str, TensorSpec]) -> Iterable[tuple[str, DenseFields]]:
    """Name and record of each dense tensor in a single byte range."""
    if isinstance(tensors, LazyTensors):
        return tensors.dense_records()
    return ((name, record) for name, spec in tensors.items() if (record := spec.dense_record()) is not None)
