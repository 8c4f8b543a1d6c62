"""Load a model layer by layer under a memory budget, the next layers while one is in use."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from attrs import field, frozen

from squish_core import dtypes
from squish_core.errors import LimitError
from squish_core.handles import File
from squish_core.limits import GIB
from squish_core.tensors import Tensor

THREADS = 2
_LAYER = re.compile(r"(?:^|\.)(?:layers|blk|blocks|h|block|layer)\.(\d+)\.")


@frozen
class Layer(Mapping[str, Any]):
    """The tensors of one layer by name: arrays, or Weights on a backend. `number` is None for what is in no layer."""

    number: int | None
    tensors: Mapping[str, Any] = field(repr=False)

    def __getitem__(self, name: str) -> Any:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


def stream(file: File, *, memory: int = GIB, backend: str | None = None) -> Iterator[Layer]:
    """The layers of a file in the order in which they begin, loaded ahead by threads.

    `memory`: bytes that the layers in flight and the one handed out may take together, decoded (on a `backend`: as it
    holds them); LimitError when one layer alone is larger. A layer is emptied when the following one is asked for. What
    lies between layers comes as layers without a number.
    """
    groups = _groups(file)
    sizes = [sum(_size(file[name], backend) for name in names) for _, names in groups]
    largest = max(range(len(sizes)), key=sizes.__getitem__, default=None)
    if largest is not None and sizes[largest] > memory:
        raise LimitError(
            "one layer is larger than the memory allowed", file=file.name, tensor=groups[largest][1][0],
            expected=f"{memory} bytes", found=f"{sizes[largest]} bytes", code="memory", hint="Allow that much.",
        )  # fmt: skip
    return _loaded(file, groups, sizes, memory, backend)


def _loaded(
    file: File, groups: list[tuple[int | None, list[str]]], sizes: list[int], memory: int, backend: str | None
) -> Iterator[Layer]:
    def load(names: list[str]) -> dict[str, Any]:
        return {name: file[name].numpy(copy=True) if backend is None else file[name].load(backend) for name in names}

    ahead: deque[Future[dict[str, Any]]] = deque()
    started = done = taken = 0
    pool = ThreadPoolExecutor(THREADS, "squish-layers")
    try:
        while done < len(groups):
            while started < len(groups) and taken + sizes[started] <= memory and len(ahead) <= THREADS:
                ahead.append(pool.submit(load, groups[started][1]))
                taken += sizes[started]
                started += 1
            tensors = ahead.popleft().result()
            yield Layer(groups[done][0], tensors)
            tensors.clear()
            taken -= sizes[done]
            done += 1
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _groups(file: File) -> list[tuple[int | None, list[str]]]:
    """Layer numbers and names: a layer's tensors together where its first one lies, the others where they are."""
    numbered: dict[int, list[str]] = {}
    groups: list[tuple[int | None, list[str]]] = []
    for name in file:
        match = _LAYER.search(name)
        number = int(match[1]) if match else None
        if number is None:
            if not groups or groups[-1][0] is not None:
                groups.append((None, []))
            groups[-1][1].append(name)
        elif number in numbered:
            numbered[number].append(name)
        else:
            numbered[number] = [name]
            groups.append((number, numbered[number]))
    return groups


def _size(tensor: Tensor, backend: str | None) -> int:
    """Bytes of a tensor in memory."""
    if backend is not None:
        cost = tensor.chain(backend).chosen.cost
        return cost.resident if cost is not None else tensor.nbytes
    encoding = tensor.readable()
    codec = tensor.file.registry.codec(encoding.codec)
    return dtypes.nbytes(codec.value_dtype(tensor.spec, encoding.codec.params), tensor.shape)
