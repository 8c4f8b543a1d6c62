"""llama.cpp's older activation statistics (`.dat`): of each tensor its name, calls and sums of squares."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from squish_core.errors import FormatError, LimitError, TensorError
from squish_core.file import File
from squish_core.limits import Limits, default
from squish_core.model import Typed
from squish_core.plugins.registry import Registry

from .arrays import in_memory

if TYPE_CHECKING:
    import numpy as np

SUFFIX = ".dat"
SUMS, COUNTS = ".in_sum2", ".counts"
"""What llama.cpp's imatrix has for a tensor: sums of squared activations per column, and how many were summed."""
NAME, CHUNKS, DATASETS = "imatrix.file", "imatrix.chunk_count", "imatrix.datasets"
"""Keys of the file's name, of the number of texts and of their names."""
LONGEST_NAME = 1 << 12
MOST_BYTES = 2 << 30


def read_imatrix(path: Path, *, limits: Limits | None = None, registry: Registry | None = None) -> File:
    """Read a file as arrays under the names that the newer GGUF files have; FormatError if it is damaged.

    `limits` bounds the number of tensors: each takes more memory than the few bytes that it may have in the file.
    """
    import numpy as np

    size = path.stat().st_size
    if size > MOST_BYTES:
        raise FormatError(
            "is too large for activation statistics", file=path.name, code="imatrix", expected=f"at most {MOST_BYTES}",
            found=size,
        )  # fmt: skip
    reader = _Reader(path)
    arrays = {}
    count, most = reader.number("number of tensors"), (limits or default()).tensors
    if count > most:
        raise LimitError(
            "too many tensors", file=path.name, offset=0, code="imatrix", limit="tensors", expected=f"at most {most}",
            found=count,
        )  # fmt: skip
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
    """The statistics of several files as one: sums and counts are added; TensorError if they do not fit together.

    Their data sets are listed together, and their chunks added.
    """
    import numpy as np

    arrays: dict[str, np.ndarray] = {}
    meta: dict[str, Any] = {}
    for file in files:
        for name, tensor in file.items():
            values, present = tensor.numpy(dtype="f32"), arrays.get(name)
            if present is not None and (not name.endswith((SUMS, COUNTS)) or present.size != values.size):
                raise TensorError(
                    "cannot be merged with the same tensor of another file", file=file.name, tensor=name,
                    code="imatrix", expected=f"sums and counts of shape {list(present.shape)}",
                    found=f"shape {list(values.shape)}",
                    hint="Pass one of the files, or files that llama-imatrix wrote for one model.",
                )  # fmt: skip
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


class _Reader:
    """Fields of a file in order."""

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
            f"is not an imatrix file of llama.cpp: {field}", file=self._path.name, code="imatrix", offset=offset,
            expected=str(expected), found=str(found)[:80],
        )  # fmt: skip
