"""An open file: a mapping from names to tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve

from squish_core.display.notebook import file_lines, page
from squish_core.dtypes import to_numpy
from squish_core.errors import FormatError, Problem
from squish_core.formats.metadata import plain
from squish_core.guard import guarded, uncollected
from squish_core.io.buffer import Buffer
from squish_core.io.local import READERS
from squish_core.model import VIEWABLE, DenseRecord, LazyTensors, TensorSpec
from squish_core.reader import Reader
from squish_core.tensor import Tensor
from squish_core.text import close_matches

if TYPE_CHECKING:
    import numpy as np


class File(Reader, Mapping[str, "Tensor"]):
    """An open file: a mapping from tensor names to tensors, in file order. Safe to share between threads."""

    @property
    def path(self) -> Path | None:
        """Where it lies, a file or a folder; None for bytes in memory."""
        return self.source.path

    @property
    def size(self) -> int:
        """Bytes of all its files, its assets among them; of files that are compressed whole, those of their content."""
        return sum(ref.size for ref in self.index.files)

    @property
    def version(self) -> str:
        """Version or dialect of the format, as the file states it; "" where it has none."""
        return self.index.version

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata as plain values (`index.meta` keeps the stored types)."""
        return {key: plain(value) for key, value in self.index.meta.items()}

    meta = metadata

    @property
    def assets(self) -> Mapping[str, Buffer]:
        """Whole files that belong to the model (config, tokenizer), read when indexed."""
        return Assets(self)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What opening found; empty for a clean file."""
        return self.index.problems

    @property
    def children(self) -> dict[str, File]:
        """Indexes inside this file (a draft head), as files of their own."""
        return {
            name: File(self.source, evolve(child, files=child.files or self.index.files), self.registry, self.limits)
            for name, child in self.index.children.items()
        }

    def originals(self) -> File:
        """The same file as it is without its caches: what conversions start from."""
        if not self.index.caches:
            return self
        tensors = {name: spec.without(self.index.caches) for name, spec in self.index.tensors.items()}
        return File(self.source, evolve(self.index, tensors=tensors, caches=()), self.registry, self.limits)

    def __getitem__(self, name: str) -> Tensor:
        try:
            return Tensor(self, self.index.tensors[name])
        except KeyError:
            near = ", ".join(close_matches(name, self.index.tensors))
            raise KeyError(f"{name!r} is not in {self.name}" + (f"; near: {near}" if near else "")) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.index.tensors)

    def __len__(self) -> int:
        return len(self.index.tensors)

    def __contains__(self, name: object) -> bool:
        return name in self.index.tensors

    # A file is the same as itself alone: a mapping's equality would compare tensors, which are made at each look.
    __eq__, __hash__ = object.__eq__, object.__hash__

    def numpy(self, *, copy: bool = False) -> dict[str, np.ndarray]:
        """Every tensor as an array: read-only views of the file where values lie there as they are, else decoded.

        `copy=True` gives writable arrays that do not touch the file again.
        """
        tensors, view = self.index.tensors, Views(self).view
        arrays: dict[str, Any] = dict.fromkeys(tensors)
        with uncollected():
            for name, record in dense_records(tensors):
                if not copy:
                    arrays[name] = view(record)
                elif prod(record.shape) <= READ_FROM and (array := view(record)) is not None:
                    arrays[name] = array.copy()
        alone = [name for name, array in arrays.items() if array is None]
        if alone:
            from concurrent.futures import ThreadPoolExecutor

            # Several tensors at once: while one waits for the disk, another is read or decoded.
            with ThreadPoolExecutor(READERS) as readers:
                arrays.update(zip(alone, readers.map(lambda name: self[name].numpy(copy=copy), alone)))
        return arrays

    def get_tensor(self, name: str) -> np.ndarray:
        """Decoded array of one tensor (safetensors' habit)."""
        return self[name].numpy()

    def close(self) -> None:
        """Stop new reads; arrays handed out before stay valid."""
        self.source.close()

    def __enter__(self) -> File:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<File {self.name!r} format={self.format} tensors={len(self)}>"

    def _repr_html_(self) -> str:
        return page(file_lines(self))


READ_FROM = 1 << 16
"""Elements from which a copy is read rather than copied from the mapping: faults cost more than calls there."""


def dense_records(tensors: Mapping[str, TensorSpec]) -> Iterable[tuple[str, DenseRecord]]:
    """Name and record of each tensor whose values lie in one range of a file."""
    if isinstance(tensors, LazyTensors):
        return tensors.dense_records()
    return ((name, record) for name, spec in tensors.items() if (record := spec.dense_record()) is not None)


class Views:
    """Arrays over the mappings of a file, made without a `Tensor` each: what 20 000 small tensors need."""

    def __init__(self, file: File) -> None:
        import numpy as np

        self._file, self._array = file, np.ndarray
        self._mapped: dict[int, memoryview] = {}
        self._dtypes: dict[str, np.dtype] = {}

    def view(self, record: DenseRecord) -> np.ndarray | None:
        """Read-only array of a tensor; None if its values must be decoded."""
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
            source = self._file.source_for(file)
            memory = self._mapped[file] = source.view(0, source.size)
        return self._array(shape, dtype, memory, offset)


class Assets(Mapping[str, Buffer]):
    """Asset name -> Buffer, read when indexed."""

    def __init__(self, file: File) -> None:
        self._file = file

    def __getitem__(self, name: str) -> Buffer:
        part = self._file.index.assets[name]
        with guarded(FormatError, "reading an asset", file=self._file.name, part=name):
            return self._file.array(part).buffer()

    def __contains__(self, name: object) -> bool:
        return name in self._file.index.assets

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.index.assets)

    def __len__(self) -> int:
        return len(self._file.index.assets)

    def __repr__(self) -> str:
        return f"<Assets {', '.join(self) or 'none'}>"
