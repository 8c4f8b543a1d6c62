"""Rows of stacked tensors, by the names of the separate tensors in other formats."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from attrs import evolve, frozen

from squish_core import dtypes
from squish_core.errors import CodecError
from squish_core.file import File
from squish_core.guard import guarded
from squish_core.model import Part, TensorSpec
from squish_core.tensor import Tensor

from ..mapping.row_views import cut

_NUMBER = re.compile(r"(?<![0-9])(?:0|[1-9][0-9]{0,17})(?![0-9])")


@frozen
class StackRow:
    """One row of a stacked tensor, as a tensor of its own."""

    stack: str
    number: int
    tensor: Tensor


def rows_of(file: File, names: Iterable[str]) -> dict[str, StackRow]:
    """Return the named tensors that the file stores as rows of stacked tensors."""
    absent = [name for name in names if name not in file]
    if not absent:
        return {}
    stacks = {spec.row_names: spec for spec in file.index.tensors.values() if spec.row_names is not None}
    rows = {}
    for name in absent:
        for number in _NUMBER.finditer(name) if stacks else ():
            spec = stacks.get((name[: number.start()], name[number.end() :]))
            row = None if spec is None else _row(file, spec, int(number[0]), name)
            if row is not None:
                rows[name] = row
    return rows


def complete_stacks(file: File, rows: Iterable[StackRow]) -> set[str]:
    """Return names of stacked tensors with all rows among `rows`."""
    counts = Counter(row.stack for row in rows)
    return {stack for stack, count in counts.items() if count == file[stack].shape[0]}


def _row(file: File, stack: TensorSpec, number: int, name: str) -> StackRow | None:
    """Return a row of a stacked tensor; None unless every part is stored row by row."""
    if not stack.shape or number >= stack.shape[0]:
        return None
    encoding = file[stack.name].bound.encoding
    parts = {}
    for role, part in encoding.parts.items():
        row_part = _row_of_part(part, stack.shape[0], number)
        if row_part is None:
            return None
        parts[role] = row_part
    spec = TensorSpec(name=name, shape=stack.shape[1:], dtype=stack.dtype)
    with guarded(CodecError, "declaring a row's parts", file=file.name, tensor=stack.name):
        declared = file.registry.codec(encoding.codec).parts(spec)
    if declared != {role: (part.dtype, part.shape) for role, part in parts.items()}:
        return None
    return StackRow(stack.name, number, Tensor(file, evolve(spec, encodings=(evolve(encoding, parts=parts),))))


def _row_of_part(part: Part, count: int, number: int) -> Part | None:
    """Return a row of a part; None if the part is compressed or not stored row by row."""
    shape = part.shape[1:]
    size = dtypes.nbytes(part.dtype, shape)
    if part.shape[:1] != (count,) or part.filters or size * count != part.nbytes:
        return None
    start = number * size
    data = None if part.data is None else bytes(part.data)[start : start + size]
    return evolve(part, shape=shape, segments=cut(part.segments, start, size), data=data, digest=None)
