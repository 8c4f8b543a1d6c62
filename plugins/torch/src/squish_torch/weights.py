"""Prepared weights of parts in memory, cached by the parts' addresses; the cache keeps no part alive."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from squish_core.api import TensorSpec, Weight, read_description, tensor_from_parts

SWEEP = 256
"""Number of new entries after which entries of freed memory are dropped."""


class Entry(NamedTuple):
    """A prepared weight, the memory that it reads, and how often that memory had been written."""

    weight: Weight
    storages: tuple[StorageWeakRef, ...]
    versions: tuple[int, ...]
    multiply: Callable[[int, int, int], None] | None
    """`linear` on raw addresses, if the backend supports it."""

    @property
    def is_alive(self) -> bool:
        """Whether the parts' memory is still alive."""
        return not any(storage.expired() for storage in self.storages)


Key = tuple[tuple[int, ...], str, str, int]
_entries: dict[Key, Entry] = {}
_lock = threading.Lock()
_added = 0


@lru_cache(4096)
def spec_of(description: str) -> TensorSpec:
    """The tensor of a description, with one encoding."""
    return read_description(description)


@lru_cache(4096)
def roles_of(description: str) -> tuple[str, ...]:
    """The roles of the parts, in the order of operations' arguments."""
    return tuple(sorted(spec_of(description).encodings[0].parts))


def weight_of(parts: Sequence[torch.Tensor], description: str, backend: str) -> Weight:
    """The weight of these parts, prepared once; as `entry_of`."""
    return entry_of(parts, description, backend).weight


def entry_of(parts: Sequence[torch.Tensor], description: str, backend: str) -> Entry:
    """The prepared entry for these parts (uint8, contiguous, in the CPU's memory).

    Raises
    ------
    SquishError
        No backend runs this encoding, or a part does not fit the description.
    """
    threads = torch.get_num_threads()
    key = (tuple([part.data_ptr() for part in parts]), description, backend, threads)
    entry = _entries.get(key)
    if entry is not None and entry.is_alive and entry.versions == tuple(map(_version, parts)):
        return entry
    return _prepared(key, parts)


def _prepared(key: Key, parts: Sequence[torch.Tensor]) -> Entry:
    global _added
    _, description, backend, threads = key
    spec = spec_of(description)
    stored = dict(zip(roles_of(description), map(memory_of, parts)))
    tensor = tensor_from_parts(description, stored)
    op = "experts" if len(spec.shape) == 3 else "linear" if len(spec.shape) == 2 else "dense"
    weight = tensor.load(_with_threads(tensor.plan(backend or None, op=op).chosen.backend, backend, threads), op=op)
    storages = tuple(StorageWeakRef(part.untyped_storage()) for part in parts)
    multiply = weight.linear_pointers() if op == "linear" else None
    entry = Entry(weight, storages, tuple(map(_version, parts)), multiply)
    with _lock:
        _added += 1
        if _added % SWEEP == 0:
            for stale in [each for each, old in _entries.items() if not old.is_alive]:
                del _entries[stale]
        _entries[key] = entry
    return entry


def _with_threads(chosen: str, backend: str, threads: int) -> str:
    """The backend with torch's number of threads, unless its options set another."""
    if chosen != "cpu" or "threads=" in backend:
        return backend or chosen
    separator = "," if ":" in backend else ":"
    return f"{backend or chosen}{separator}threads={threads}"


def memory_of(part: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor, without keeping it alive."""
    size = part.numel() * part.element_size()
    return memoryview((ctypes.c_ubyte * size).from_address(part.data_ptr() if size else 0)).cast("B")


def _version(part: torch.Tensor) -> int:
    return 0 if part.is_inference() else part._version
