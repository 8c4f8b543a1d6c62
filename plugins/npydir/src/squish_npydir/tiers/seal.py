"""Seals: records that a tier of one file agrees with the arrays that it was built from.

While the seal is valid, opening does not read the hundreds of array files; they are read on demand. Writing the
manifest, adding, replacing or removing an array, finishing the directory again, changing the tier or copying the
directory invalidates the seal: then everything is read and compared.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from squish_safetensors.api import TensorRecord, read_record

from squish_core.api import (
    ErrorCode,
    FileRef,
    FormatError,
    LazyTensors,
    Limits,
    SquishError,
    TensorSpec,
    open_source,
)
from squish_core.api import open as open_model

from ..read.folder import Folder
from ..read.manifest import MANIFEST, PLACE

SEALS = "squish_seals.json"
READY = f"{PLACE}/.manifest_ready"
INT4_READY = ".squish_int4_ready"
"""Sentinel of a directory whose INT8 arrays all have 4-bit ones."""


class Sealed(LazyTensors):
    """The tensors of a sealed tier. A view only needs the tier; a complete spec needs all files."""

    def __init__(
        self,
        records: Mapping[str, TensorRecord],
        complete: Callable[[str], TensorSpec],
        extents: Iterable[tuple[int, int, int, str]],
    ) -> None:
        super().__init__(records, read_record, extents)
        self._complete = complete

    def __getitem__(self, name: str) -> TensorSpec:
        if name not in self._specs:
            self._specs[name] = self._complete(name)
        return self._specs[name]

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class Files(Sequence[FileRef]):
    """The files of an Index, extended with further folders on first access."""

    def __init__(self, folder: Folder, places: Sequence[str]) -> None:
        self._folder, self._places, self._lock = folder, list(places), threading.Lock()

    def complete(self) -> None:
        """Number the files of all folders."""
        with self._lock:
            while self._places:
                place = self._places[-1]
                for name in sorted(self._folder.names(place)):
                    size, _ = self._folder.source.stat(f"{place}/{name}") or (0, 0)
                    self._folder.number(f"{place}/{name}", size)
                self._places.pop()

    @overload
    def __getitem__(self, number: int) -> FileRef: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[FileRef]: ...
    def __getitem__(self, number: int | slice) -> FileRef | Sequence[FileRef]:
        if not isinstance(number, int) or not 0 <= number < len(self._folder.refs):
            self.complete()
        return self._folder.refs[number]

    def __bool__(self) -> bool:
        return True  # the tier's own file exists

    def __len__(self) -> int:
        self.complete()
        return len(self._folder.refs)

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (tuple(self),)


def seal(path: Path, label: str, file: str) -> None:
    """Record the state of the files, if they open without problems and the tier in `file` is the first."""
    state = _state(Folder(source=open_source(path), limits=Limits()), file)
    with open_model(path, "npydir") as opened:
        specs = opened.index.tensors
        first = {spec.encodings[0].label for spec in specs.values() if spec.encodings}
        if isinstance(specs, Sealed) or opened.problems or first != {label}:
            return
    from squish_core.api import atomic_file  # opening a sealed tier writes nothing

    with atomic_file(path / SEALS) as sink:
        sink.write(json.dumps({label: state}).encode())


def is_valid(folder: Folder, label: str, file: str) -> bool:
    """Return whether the files are unchanged since the tier was sealed."""
    if not folder.has(SEALS):
        return False
    try:
        state = folder.json(SEALS, "list of seals").get(label)
        return bool(state) and state == _state(folder, file)
    except SquishError:
        return False


def changed(spec: TensorSpec) -> FormatError:
    """Return the error for files that contradict their seal."""
    return FormatError(
        "the directory's files contradict its sealed tier",
        tensor=spec.name,
        found=spec.problem,
        code=ErrorCode.CHANGED,
        hint=f"Remove {SEALS} and open the directory again.",
    )


def _state(folder: Folder, file: str) -> str:
    """Return sizes and modification times that change with the directory; empty if unavailable."""
    entries = [folder.source.stat(path) for path in (PLACE, READY, MANIFEST, file)]
    return "" if None in entries else json.dumps(entries)
