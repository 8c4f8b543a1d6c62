"""Stacks tensors on reading, for codecs whose parts cannot be stacked as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import evolve

from squish_core.codecs.base import Parts, Region, Wrapper
from squish_core.codecs.code_layout import CodeLayout, Codes
from squish_core.codes import ErrorCode
from squish_core.errors import CodecError
from squish_core.model import TensorSpec

if TYPE_CHECKING:
    import numpy as np


def member_role(number: int, role: str) -> str:
    """Role of a part of one tensor of a stack.

    >>> member_role(3, "scale")
    '3.scale'
    """
    return f"{number}.{role}"


class Stack(Wrapper):
    """A wrapping codec that only decodes. Every tensor of the stack has parts of its own: `0.data`, `1.data`."""

    def wrapped(self, spec: TensorSpec) -> TensorSpec:
        """One tensor of the stack; CodecError for a scalar."""
        if not spec.shape:
            raise CodecError("a stack needs an axis", code=ErrorCode.PARAMS, expected="at least one axis", found="none")
        return evolve(spec, shape=spec.shape[1:])

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        declared = self.inner.parts(self.wrapped(spec))
        return {member_role(n, role): form for n in range(spec.shape[0]) for role, form in declared.items()}

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        return (1, *self.inner.grain(self.wrapped(spec)))

    def check_parts(self, parts: Parts, spec: TensorSpec) -> None:
        for number in range(spec.shape[0]):
            self.inner.check_parts(self._of(parts, spec, number), self.wrapped(spec))

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        for number, values in zip(range(region[0].start, region[0].stop), out):
            member = self._of(parts, spec, number)
            self.inner.decode(member, self.wrapped(spec), region=region[1:], out=values)

    def code_layout(self, spec: TensorSpec) -> CodeLayout | None:
        layout = self.inner.code_layout(self.wrapped(spec))
        return None if layout is None else evolve(layout, group=(1, *layout.group))

    def codes(self, parts: Parts, spec: TensorSpec, region: Region) -> Codes | None:
        members = [
            self.inner.codes(self._of(parts, spec, number), self.wrapped(spec), region[1:])
            for number in range(region[0].start, region[0].stop)
        ]
        return _stacked([codes for codes in members if codes is not None]) if all(members) else None

    def _of(self, parts: Parts, spec: TensorSpec, number: int) -> Parts:
        """Return the parts of one tensor."""
        return {role: parts[member_role(number, role)] for role in self.inner.parts(self.wrapped(spec))}


def _stacked(members: Sequence[Codes]) -> Codes | None:
    """Return the codes of a stack; None if the layouts of its tensors differ."""
    import numpy as np

    if not members:
        return None
    first = members[0]
    tables = [codes.table for codes in members if codes.table is not None]
    same_tables = all(np.array_equal(table, tables[0]) for table in tables)
    if any(codes.group != first.group for codes in members) or not same_tables:
        return None

    def packed() -> np.ndarray | None:
        words = [codes.words for codes in members if codes.words is not None]
        return np.stack(words) if len(words) == len(members) else None

    offsets, factors = [codes.offset for codes in members], [codes.global_scale for codes in members]
    return Codes(
        layout=evolve(first.layout, group=(1, *first.layout.group)),
        shape=(len(members), *first.shape),
        group=(1, *first.group),
        scale=np.stack([codes.scale for codes in members]),
        offset=None if offsets[0] is None else np.stack([array for array in offsets if array is not None]),
        global_scale=None if factors[0] is None else np.stack([array for array in factors if array is not None]),
        table=first.table,
        unpack=lambda: np.stack([codes.values for codes in members]),
        pack=packed,
    )
