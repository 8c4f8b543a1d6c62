"""Load a model layer by layer under a memory budget, prefetching the next layers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

from attrs import field, frozen

from squish_core import dtypes
from squish_core.codes import ErrorCode
from squish_core.concurrency import map_in_order
from squish_core.errors import LimitError
from squish_core.file import File
from squish_core.limits import GIB
from squish_core.tensor import Tensor

THREADS = 2
LAYER = re.compile(r"(?:^|\.)(?:layers|blk|blocks|h|block|layer)\.(\d+)\.")


@frozen
class Layer(Mapping[str, Any]):
    """The tensors of one layer by name: arrays, or Weights on a backend.

    `number` is None for tensors outside layers. `prefix` is the name before the number: `encoder.block` and
    `decoder.block` are numbered separately.
    """

    number: int | None
    tensors: Mapping[str, Any] = field(repr=False)
    prefix: str = ""

    def __getitem__(self, name: str) -> Any:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


class _Group(NamedTuple):
    """A layer before it is loaded."""

    prefix: str
    number: int | None
    names: list[str]


def iter_layers(file: File, *, memory: int = GIB, backend: str | None = None) -> Iterator[Layer]:
    """Iterate over the layers of a file by prefix and number, loading ahead in threads.

    A layer is emptied when the next one is requested. Tensors outside layers come in groups without a number: those
    before all layers first, the others after the layers that precede them in the file.

    Parameters
    ----------
    file
        An open `File`.
    memory
        Maximum bytes of the prefetched layers and the current one together, decoded or as the `backend` stores them.
    backend
        Backend id to load on; None gives NumPy arrays.

    Yields
    ------
    Layer
        A layer with its `number` and `tensors` (name -> array or `Weight`).

    Raises
    ------
    LimitError
        A single layer is larger than `memory`.

    Examples
    --------
    >>> with squish.open("model.gguf") as file:
    ...     for layer in squish.iter_layers(file, memory=10**6):
    ...         print(layer.number, [(name, array.shape) for name, array in layer.tensors.items()])
    None [('token_embd.weight', (8, 32))]
    0 [('blk.0.ffn_up.weight', (64, 32)), ('blk.0.ffn_norm.weight', (32,))]
    """
    groups = _groups(file)
    sizes = [sum(_size(file[name], backend) for name in group.names) for group in groups]
    largest = max(range(len(sizes)), key=sizes.__getitem__, default=None)
    if largest is not None and sizes[largest] > memory:
        raise LimitError(
            "a layer is larger than the memory limit",
            file=file.name,
            tensor=groups[largest].names[0],
            expected=f"{memory} bytes",
            found=f"{sizes[largest]} bytes",
            code=ErrorCode.MEMORY,
            hint="Raise memory=.",
        )
    return _loaded(file, groups, sizes, memory, backend)


def _loaded(file: File, groups: list[_Group], sizes: list[int], memory: int, backend: str | None) -> Iterator[Layer]:
    def load(number: int) -> dict[str, Any]:
        tensors = (file[name] for name in groups[number].names)
        return {tensor.name: tensor.numpy(copy=True) if backend is None else tensor.load(backend) for tensor in tensors}

    loads = map_in_order(load, range(len(groups)), most=THREADS, weigh=sizes.__getitem__, budget=memory)
    with closing(loads):
        for group, tensors in zip(groups, loads):
            yield Layer(group.number, tensors, group.prefix)
            tensors.clear()


def _groups(file: File) -> list[_Group]:
    """Layers by prefix, in file order, and number; tensors outside layers follow the preceding prefix."""
    prefixes: dict[str, int] = {}
    groups: dict[tuple[int, bool, int], _Group] = {}
    layers = 0
    for name in file:
        if match := LAYER.search(name):
            prefix, number = name[: match.start(1) - 1], int(match[1])
            key = prefixes.setdefault(prefix, len(prefixes)), False, number
            layers += key not in groups
        else:
            prefix, number, key = "", None, (len(prefixes) - 1, True, layers)
        groups.setdefault(key, _Group(prefix, number, [])).names.append(name)
    return [groups[key] for key in sorted(groups)]


def _size(tensor: Tensor, backend: str | None) -> int:
    """Bytes of a tensor in memory."""
    if backend is not None:
        cost = tensor.plan(backend).chosen.cost
        return cost.resident if cost is not None else tensor.nbytes
    return dtypes.nbytes(tensor.bound.dtype, tensor.shape)
