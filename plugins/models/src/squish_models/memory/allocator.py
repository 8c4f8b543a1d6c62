"""The size of the buffer in which ggml keeps a graph's values, as ggml-alloc.c lays them out: best fit, in place."""

from __future__ import annotations

from attrs import define, field

ALIGNMENT = 64


@define(eq=False)
class Value:
    """A value of a graph: its bytes, how often it is used, and its place while it is in the buffer."""

    nbytes: int
    uses: int = 0
    stays: bool = False
    offset: int | None = None


@define
class Graph:
    """A graph in the order in which it is computed.

    Attributes
    ----------
    tokens
        The number of rows of the values that are added.
    """

    tokens: int
    _inputs: list[Value] = field(factory=list, init=False)
    _steps: list[tuple[Value, tuple[Value, ...], bool]] = field(factory=list, init=False)

    def input(self, nbytes: int) -> Value:
        """Add a value that is set before the graph runs."""
        value = Value(_padded(nbytes))
        self._inputs.append(value)
        return value

    def rows(self, width: int, *parents: Value, in_place: bool = False) -> Value:
        """Add a matrix of f32, a row for each token; `in_place`: it may take the place of a parent of its size."""
        return self.step(4 * width * self.tokens, *parents, in_place=in_place)

    def step(self, nbytes: int, *parents: Value, in_place: bool = False) -> Value:
        """Add a value that is computed from others; one without bytes only uses them."""
        value = Value(_padded(nbytes))
        for parent in parents:
            parent.uses += 1
        self._steps.append((value, parents, in_place))
        return value

    def peak(self) -> int:
        """Return the size of the buffer; the graph cannot be changed after it."""
        buffer = _Buffer()
        for value in self._inputs:
            value.offset = buffer.take(value.nbytes)
        for value, parents, in_place in self._steps:
            last = [each for each in parents if each.uses == 1 and not each.stays and each.nbytes == value.nbytes]
            if in_place and last:
                value.offset, last[0].offset = last[0].offset, None
            elif value.nbytes:
                value.offset = buffer.take(value.nbytes)
            for parent in parents:
                parent.uses -= 1
                if not parent.uses and not parent.stays and parent.offset is not None:
                    buffer.release(parent.offset, parent.nbytes)
                    parent.offset = None
        return buffer.size


class _Buffer:
    """The free blocks of a buffer that grows, as [offset, bytes] in order; the last one has no end."""

    def __init__(self) -> None:
        self.size = 0
        self._free = [[0, 1 << 62]]

    def take(self, nbytes: int) -> int:
        """Take the smallest free block that is large enough; the end of the buffer only where none is."""
        block = min((each for each in self._free[:-1] if each[1] >= nbytes), key=lambda each: each[1], default=None)
        block = self._free[-1] if block is None else block
        offset = block[0]
        block[0] += nbytes
        block[1] -= nbytes
        if not block[1]:
            self._free.remove(block)
        self.size = max(self.size, offset + nbytes)
        return offset

    def release(self, offset: int, nbytes: int) -> None:
        """Give a block back, joined with its free neighbours."""
        merged: list[list[int]] = []
        for each in sorted([*self._free, [offset, nbytes]]):
            if merged and sum(merged[-1]) == each[0]:
                merged[-1][1] += each[1]
            else:
                merged.append(each)
        self._free = merged


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
