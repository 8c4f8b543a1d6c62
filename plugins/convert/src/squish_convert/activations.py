"""Activation statistics (imatrix), by which encoders weight errors: a file with one vector per tensor.

Reads llama.cpp's older format (`.dat`), too. Words: `activations` is the argument (a path, then the open file),
`statistics` the object that looks tensors up in it, and `magnitudes` the array for one tensor.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from squish_core import opening
from squish_core.errors import FormatError, LimitError, TensorError
from squish_core.file import File
from squish_core.formats.metadata import untyped
from squish_core.limits import Limits, default
from squish_core.model import TensorSpec, Typed
from squish_core.plugins.registry import Registry
from squish_core.text import counted

from .arrays import in_memory
from .families import GGUF, HF
from .mapping.codecs.heads import source_rows
from .mapping.pairing import Alias, Aliases

if TYPE_CHECKING:
    import numpy as np


SUFFIX = ".dat"
SUMS, COUNTS = ".in_sum2", ".counts"
"""Suffixes of a tensor's entries in an imatrix: sums of squared activations per column, and their counts."""
NAME, CHUNKS, DATASETS = "imatrix.file", "imatrix.chunk_count", "imatrix.datasets"
"""Metadata keys of the file's name, the number of chunks, and the names of data sets."""
LONGEST_NAME = 1 << 12
MOST_BYTES = 2 << 30


def read_imatrix(path: Path, *, limits: Limits | None = None, registry: Registry | None = None) -> File:
    """Read a `.dat` file as arrays under the names of newer GGUF files; FormatError if it is damaged.

    `limits` bounds the number of tensors, since each takes more memory than bytes in the file.
    """
    import numpy as np

    size = path.stat().st_size
    if size > MOST_BYTES:
        raise FormatError(
            "is too large for activation statistics",
            file=path.name,
            code="imatrix",
            expected=f"at most {MOST_BYTES}",
            found=size,
        )
    reader = _ImatrixReader(path)
    arrays = {}
    count, most = reader.number("number of tensors"), (limits or default()).tensors
    if count > most:
        raise LimitError(
            "too many tensors",
            file=path.name,
            offset=0,
            code="imatrix",
            limit="tensors",
            expected=f"at most {most}",
            found=count,
        )
    for _ in range(count):
        name = reader.text("length of a name")
        calls, columns = reader.number("number of calls"), reader.number("number of values")
        arrays[name + SUMS] = reader.floats(columns)
        arrays[name + COUNTS] = np.array([calls], np.float32)
    meta: dict[str, object] = {}
    if not reader.at_end:
        meta[CHUNKS] = Typed("u32", reader.number("number of chunks"))
        meta[DATASETS] = Typed("array:str", [reader.text("length of a dataset's name")])
    return in_memory(arrays, {**meta, NAME: path.name}, registry=registry, path=path)


def merge_imatrix(files: Sequence[File], *, registry: Registry | None = None) -> File:
    """Merge the statistics of several files: add sums, counts and chunks, and list all data sets.

    TensorError if the files do not match.
    """
    import numpy as np

    arrays: dict[str, np.ndarray] = {}
    meta: dict[str, Any] = {}
    for file in files:
        for name, tensor in file.items():
            values, present = tensor.numpy(dtype="f32"), arrays.get(name)
            if present is not None and (not name.endswith((SUMS, COUNTS)) or present.size != values.size):
                raise TensorError(
                    "cannot be merged with the same tensor of another file",
                    file=file.name,
                    tensor=name,
                    code="imatrix",
                    expected=f"sums and counts of shape {list(present.shape)}",
                    found=f"shape {list(values.shape)}",
                    hint="Pass one of the files, or files that llama-imatrix wrote for one model.",
                )
            # f64: counts of many runs exceed what f32 holds exactly
            sums = values if present is None else present + values.reshape(present.shape).astype(np.float64)
            arrays[name] = sums.astype(np.float32)
        chunks, datasets = (file.metadata.get(f"imatrix.{key}") for key in ("chunk_count", "datasets"))
        if isinstance(chunks, int):
            meta[CHUNKS] = Typed("u32", (meta[CHUNKS].value if CHUNKS in meta else 0) + chunks)
        if isinstance(datasets, Sequence):
            meta[DATASETS] = Typed("array:str", [*(meta[DATASETS].value if DATASETS in meta else ()), *datasets])
    meta[NAME] = ", ".join(Path(str(file.metadata.get(NAME, file.name))).name for file in files)
    return in_memory(arrays, meta, registry=registry)


class _ImatrixReader:
    """Reads the fields of a `.dat` file in order."""

    def __init__(self, path: Path) -> None:
        self._path, self._data, self._at = path, path.read_bytes(), 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._data)

    def number(self, field: str) -> int:
        (value,) = struct.unpack("<i", self._take(4, field))
        if value < 0:
            raise self._error(field, "at least 0", value, self._at - 4)
        return int(value)

    def text(self, field: str) -> str:
        length = self.number(field)
        if length > LONGEST_NAME:
            raise self._error(field, f"at most {LONGEST_NAME}", length, self._at - 4)
        try:
            return self._take(length, "a name").decode()
        except UnicodeDecodeError as error:
            raise self._error("a name", "UTF-8", error, self._at - length) from None

    def floats(self, count: int) -> np.ndarray:
        import numpy as np

        return np.frombuffer(self._take(4 * count, "values"), "<f4").astype(np.float32)

    def _take(self, size: int, field: str) -> bytes:
        if self._at + size > len(self._data):
            raise self._error(field, f"{size} bytes", f"{len(self._data) - self._at} bytes to the end", self._at)
        self._at += size
        return self._data[self._at - size : self._at]

    def _error(self, field: str, expected: object, found: object, offset: int) -> FormatError:
        return FormatError(
            f"is not an imatrix file of llama.cpp: {field}",
            file=self._path.name,
            code="imatrix",
            offset=offset,
            expected=str(expected),
            found=str(found)[:80],
        )


def open_activations(
    source: Any, *, limits: Limits | None = None, registry: Registry | None = None
) -> AbstractContextManager[File]:
    """Open a file of statistics of any format, or llama.cpp's older `.dat`; several files are merged."""
    if isinstance(source, (list, tuple)):
        if len(source) == 1:
            return open_activations(source[0], limits=limits, registry=registry)
        with ExitStack() as stack:
            opened = (open_activations(each, limits=limits, registry=registry) for each in source)
            return merge_imatrix([stack.enter_context(file) for file in opened], registry=registry)
    if isinstance(source, (str, Path)) and Path(source).suffix == SUFFIX and Path(source).is_file():
        return read_imatrix(Path(source), limits=limits, registry=registry)
    return opening.open(source, limits=limits, registry=registry)


class ActivationStatistics:
    """Magnitudes of activations per column of each tensor, from an open file.

    The file has vectors of mean magnitudes under the tensors' names, or is an imatrix of llama.cpp (root mean squares).
    A tensor is looked up by its name, then by its names in the other layouts of the family.

    Parameters
    ----------
    file
        The open file of statistics.
    model
        The file whose tensors are encoded.
    """

    def __init__(self, file: File, model: File) -> None:
        self._file, self._aliases = file, Aliases(model)

    def names(self, specs: Iterable[TensorSpec]) -> frozenset[str]:
        """Return names of the tensors with statistics; TensorError as in `of`."""
        return frozenset(spec.name for spec in specs if self.of(spec) is not None)

    def of(self, spec: TensorSpec) -> np.ndarray | None:
        """A tensor's magnitudes, [columns], or [tensors, columns] of a stack; None if there are none or all are zero.

        In a stack, a tensor without input has equal magnitudes, as in llama.cpp. TensorError unless every column has a
        finite magnitude.
        """
        import numpy as np

        array = self._stored(spec)
        if array is None or not array.any():
            return None
        return np.where(array.any(axis=1, keepdims=True), array, 1) if array.ndim > 1 else array

    def are_zero(self, spec: TensorSpec) -> bool:
        """Return whether a tensor has statistics, and all are zero: it had no input."""
        array = self._stored(spec)
        return array is not None and not array.any()

    def unseen(self, spec: TensorSpec) -> list[int]:
        """Numbers of the tensors of a stack without input; empty if there are no statistics or all are zero."""
        array = self._stored(spec)
        if array is None or array.ndim < 2 or not array.any():
            return []
        return [number for number, row in enumerate(array) if not row.any()]

    def _stored(self, spec: TensorSpec) -> np.ndarray | None:
        """Return a tensor's stored statistics; zeros for tensors without input."""
        import numpy as np

        entries, layout = self._entries(spec.name)
        if not entries:
            return None
        arrays = [self._magnitudes(entry, number, spec) for entry, number in entries]
        is_stack = len(spec.shape) > 2 and len(arrays) == spec.shape[0] > 1
        array = np.stack(arrays) if is_stack and arrays[0].ndim == 1 else arrays[0]
        legal = (spec.shape[-1:], (spec.shape[0], spec.shape[-1])) if len(spec.shape) > 2 else (spec.shape[-1:],)
        if layout is not None and (order := self._aliases.columns(spec.name, layout == GGUF, array.shape[-1])):
            array = array[..., source_rows(order)]
        if array.shape not in legal or not np.isfinite(array).all() or (array < 0).any():
            raise TensorError(
                "invalid activation statistics",
                file=self._file.name,
                tensor=spec.name,
                expected=f"[{spec.shape[-1] if spec.shape else 0}], finite and not negative",
                found=_fault_of(array),
                code="imatrix",
                hint="Compute the statistics again, or leave them out.",
            )
        return array

    def metadata(self, prefix: str) -> dict[str, Typed]:
        """Metadata about the statistics, under a format's own keys."""
        meta = self._file.metadata
        entries = sum(name.endswith(SUMS) for name in self._file) or len(self._file)
        recorded: dict[str, Typed] = {"file": Typed("str", Path(str(meta.get(NAME, self._file.name))).name)}
        datasets = untyped(meta.get("imatrix.datasets"))
        if isinstance(datasets, Sequence) and datasets:
            recorded["dataset"] = Typed("str", str(datasets[0]))
        recorded["entries_count"] = Typed("u32", entries)
        chunks = untyped(meta.get("imatrix.chunk_count", 0))
        if isinstance(chunks, int) and 0 < chunks < 1 << 32:
            recorded["chunks_count"] = Typed("u32", chunks)
        return {f"{prefix}.{key}": value for key, value in recorded.items()}

    def _entries(self, name: str) -> tuple[tuple[Alias, ...], str | None]:
        """Return a tensor's entries in the file, each with its number in a stack, and the layout of another name."""
        for layout, aliases in zip((None, HF, GGUF), (((name, None),), *self._aliases.of(name))):
            entries = tuple((entry, number) for alias, number in aliases if (entry := self._entry(alias)) is not None)
            if len(entries) == len(aliases):
                return tuple(dict.fromkeys(entries)), layout
        return (), None

    def _entry(self, name: str) -> str | None:
        candidates = (name, name.removesuffix(".weight"), f"{name}{SUMS}")
        return next((entry for entry in candidates if entry in self._file), None)

    def _magnitudes(self, entry: str, number: int | None, spec: TensorSpec) -> np.ndarray:
        """The magnitudes of an entry: a vector, or root mean squares from llama.cpp's sums (of a stack, or one tensor).

        Roots are f64: their squares are the f32 means again. A tensor without input has zeros within a stack, and ones
        alone.
        """
        import numpy as np

        if not entry.endswith(SUMS):
            vector = self._file[entry].numpy(dtype="f32")
            return vector if number is None or vector.ndim < 2 else vector[number]
        columns = spec.shape[-1] if spec.shape else 1
        counts_name = entry.removesuffix(SUMS) + COUNTS
        counts = (
            self._file[counts_name].numpy(dtype="f32") if counts_name in self._file else np.full(1, np.nan, np.float32)
        )
        sums = self._file[entry].numpy(dtype="f32")
        if sums.size % max(columns, 1) or counts.size not in (1, sums.size // max(columns, 1)):
            return sums  # `of` refuses the shape
        sums, counts = sums.reshape(-1, columns), counts.reshape(-1, 1)
        with np.errstate(all="ignore"):
            means = sums / counts
            unseen = (counts == 0) & ((len(counts) > 1) | (sums == 0).all(axis=1, keepdims=True))
            means = np.where(unseen, np.float32(number is not None and counts.any()), means)
            if number is not None and len(means) > number:
                means = means[number : number + 1]
            elif len(means) > 1 and len(means) != spec.shape[0]:
                means = (sums.sum(0, dtype=np.float64) / counts.sum(dtype=np.float64))[None].astype(np.float32)
            roots = np.sqrt(means.astype(np.float64))
        return roots if len(roots) > 1 else roots[0]


def _fault_of(array: np.ndarray) -> str:
    """What is wrong with statistics: their values, or else their shape."""
    import numpy as np

    counts = {"NaN": np.isnan(array).sum(), "infinite": np.isinf(array).sum(), "negative": (array < 0).sum()}
    faults = [f"{count} {kind}" for kind, count in counts.items() if count]
    return f"{' and '.join(faults)} of {counted(array.size, 'value')}" if faults else f"shape {list(array.shape)}"


def recorded_metadata(statistics: ActivationStatistics | None, prefix: str | None) -> Mapping[str, Typed]:
    """Metadata of a target about the statistics that it was encoded with."""
    return {} if statistics is None or prefix is None else statistics.metadata(prefix)
