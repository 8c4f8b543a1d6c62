"""Prepared weights of parts in memory, cached by the parts' addresses; the cache keeps no part alive."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import torch
from attrs import frozen
from torch.multiprocessing.reductions import StorageWeakRef

from squish_core.api import TensorSpec, Weight

from .description import read_description, tensor_from_parts

PANEL_ROWS = 96
"""Rows of x from which decoding to bf16 and torch's product are faster than the backend's own bf16 product."""
FLOATS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
"""Dtypes of x for products on raw addresses."""
_expired = torch.UntypedStorage._expired  # `StorageWeakRef.expired`, faster
SWEEP = 256
"""Number of new entries after which entries of freed memory are dropped."""


@frozen
class Entry:
    """A prepared weight, the memory that it reads, and how often that memory had been written.

    Attributes
    ----------
    weight
        The weight, whose handle reads the memory.
    memory
        Address of each part, the count of writes to it, and its storage.
    addresses
        Address of each part's storage, which `share_memory_` changes.
    threads
        Torch's number of threads.
    products
        Dtype of x -> `linear` on raw addresses, where the backend has it.
    panel_rows
        From this number of rows of a bf16 x on, panels are decoded to bf16 and torch multiplies them; None: never.
    """

    weight: Weight
    shape: tuple[int, ...]
    memory: tuple[tuple[int, int, StorageWeakRef], ...]
    addresses: tuple[int, ...]
    threads: int
    products: Mapping[torch.dtype, Callable[[int, int, int], None]]
    panel_rows: int | None

    def is_current(self, parts: Sequence[torch.Tensor]) -> bool:
        """Return whether these parts still have the bytes that were prepared, and torch its number of threads."""
        for part, (pointer, version, storage) in zip(parts, self.memory):
            if part.data_ptr() != pointer or (0 if part.is_inference() else part._version) != version:
                return False
            if _expired(storage.cdata):
                return False
        return torch.get_num_threads() == self.threads

    @property
    def is_alive(self) -> bool:
        """Whether the parts' memory is still alive, where it was."""
        storages = (torch.UntypedStorage._new_with_weak_ptr(storage.cdata) for _, _, storage in self.memory)
        return all(
            storage is not None and storage.data_ptr() == address for storage, address in zip(storages, self.addresses)
        )


Key = tuple[tuple[int, ...], str, str, int]
_entries: dict[Key, Entry] = {}
_lock = threading.Lock()
_added = 0


@lru_cache(4096)
def spec_of(description: str) -> TensorSpec:
    """Return the tensor of a description, with one encoding."""
    return read_description(description)


@lru_cache(4096)
def roles_of(description: str) -> tuple[str, ...]:
    """Return the roles of the parts, in the order of operations' arguments."""
    return tuple(sorted(spec_of(description).encodings[0].parts))


def weight_of(parts: Sequence[torch.Tensor], description: str, backend: str) -> Weight:
    """Return the weight of these parts, prepared once; as `entry_of`."""
    return entry_of(parts, description, backend).weight


def entry_of(parts: Sequence[torch.Tensor], description: str, backend: str) -> Entry:
    """Return the prepared entry for these parts (uint8, contiguous, in the CPU's memory).

    Raises
    ------
    SquishError
        No backend runs this encoding, or a part does not fit the description.
    """
    threads = torch.get_num_threads()
    key = (tuple([part.data_ptr() for part in parts]), description, backend, threads)
    entry = _entries.get(key)
    if entry is not None and entry.is_current(parts) and entry.is_alive:
        return entry
    return _prepare(key, parts)


def _prepare(key: Key, parts: Sequence[torch.Tensor]) -> Entry:
    global _added
    _, description, backend, threads = key
    spec = spec_of(description)
    buffers = dict(zip(roles_of(description), map(memory_of, parts)))
    tensor = tensor_from_parts(description, buffers)
    op = "experts" if len(spec.shape) == 3 else "linear" if len(spec.shape) == 2 else "dense"
    weight = tensor.load(_with_threads(tensor.plan(backend or None, op=op).chosen.backend, backend, threads), op=op)
    storages = tuple(StorageWeakRef(part.untyped_storage()) for part in parts)
    products = {dtype: weight.linear_pointers(name) for dtype, name in FLOATS.items() if op == "linear"}
    in_panels = weight.chain.options.get("activations") == "bf16" and multiplies_bf16()
    entry = Entry(
        weight,
        spec.shape,
        tuple(zip(key[0], map(_version, parts), storages)),
        tuple(part.untyped_storage().data_ptr() for part in parts),
        threads,
        {dtype: product for dtype, product in products.items() if product is not None},
        PANEL_ROWS if in_panels else None,
    )
    with _lock:
        _added += 1
        _entries[key] = entry
    if _added % SWEEP == 0:
        release_freed()
    return entry


def release_freed() -> None:
    """Drop prepared weights whose memory is gone."""
    with _lock:
        for stale in [key for key, entry in _entries.items() if not entry.is_alive]:
            del _entries[stale]


@lru_cache(1)
def multiplies_bf16() -> bool:
    """Return whether this CPU has instructions for products of bf16; without them torch's are slow."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("amx_bf16", "avx512_bf16"))


def _with_threads(chosen: str, backend: str, threads: int) -> str:
    """Return the backend with torch's number of threads, unless its options set another."""
    if chosen != "cpu" or "threads=" in backend:
        return backend or chosen
    separator = "," if ":" in backend else ":"
    return f"{backend or chosen}{separator}threads={threads}"


def memory_of(part: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor, without keeping it alive."""
    size = part.numel() * part.element_size()
    return memoryview((ctypes.c_ubyte * size).from_address(part.data_ptr() if size else 0)).cast("B")


def _version(part: torch.Tensor) -> int:
    return 0 if part.is_inference() else part._version
