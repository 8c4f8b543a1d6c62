"""Present arrays in memory as an open file, for `save` and `convert`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from squish_core import dtypes
from squish_core.errors import TensorError, UsageError
from squish_core.file import File
from squish_core.formats.assets import overlay_assets
from squish_core.io.local import open_folder
from squish_core.io.source import BytesSource, Source
from squish_core.limits import default
from squish_core.model import DENSE, Encoding, FileRef, Index, Part, Segment, TensorSpec
from squish_core.opening import with_assets
from squish_core.plugins.registry import Registry
from squish_core.plugins.registry import registry as installed

MEMORY = "memory"
"""Format of a file of arrays."""


def in_memory(
    tensors: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
    assets: str | os.PathLike[str] | Mapping[str, bytes] | None = None,
    registry: Registry | None = None,
    path: Path | None = None,
) -> File:
    """Return an open file whose parts refer to the memory of arrays; `path` is where they were read from."""
    source = _Arrays(path)
    specs = {}
    for name, value in tensors.items():
        if not isinstance(name, str):
            raise UsageError("a tensor name must be text", found=repr(name), code="name")
        part = source.add(name, *_bytes_of(name, value))
        specs[name] = TensorSpec(
            name=name, shape=part.shape, dtype=part.dtype, encodings=(Encoding(codec=DENSE, parts={"data": part}),)
        )
    names: tuple[str, ...] = ()
    blobs: dict[str, Part] = {}
    if isinstance(assets, Mapping):
        blobs = {name: source.add(name, memoryview(data), "u8", (len(data),)) for name, data in assets.items()}
    elif assets is not None:
        names = overlay_assets(source, open_folder(assets))
    index = Index(format=MEMORY, version="", files=source.files, tensors=specs, assets=blobs, meta=dict(metadata or {}))
    index = with_assets(index, source, names)
    return File(source, index, registry or installed(), default())


class _Arrays(Source):
    """A folder with one file per array, in insertion order."""

    is_dir = True

    def __init__(self, path: Path | None) -> None:
        super().__init__(str(path or "<arrays>"), 0)
        self.path = path
        self.files: list[FileRef] = []
        self._memory: list[Any] = []

    def add(self, name: str, data: Any, dtype: str, shape: tuple[int, ...]) -> Part:
        """Add an array as a file; returns the part that refers to it."""
        part = Part(dtype=dtype, shape=shape, segments=(Segment(len(self.files), 0, data.nbytes),))
        self.files.append(FileRef(str(len(self.files)), data.nbytes))
        self._memory.append((name, data))
        return part

    def _open_member(self, name: str) -> Source:
        tensor, data = self._memory[int(name)]
        return BytesSource(data, tensor)


def _bytes_of(name: str, value: Any) -> tuple[Any, str, tuple[int, ...]]:
    """Memory (contiguous, little-endian), dtype and shape of an array."""
    import numpy as np

    try:
        array = np.asarray(value) if hasattr(value, "__array__") or not hasattr(value, "__dlpack__") else _dlpack(value)
        dtype = dtypes.from_numpy(array.dtype)
    except TensorError as error:
        raise error.within(tensor=name) from None
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise UsageError("not an array", tensor=name, found=str(error).rstrip("."), code="array") from None
    if dtypes.bits(dtype) < 8:
        raise UsageError(
            "a dtype below 8 bits cannot be saved unpacked",
            tensor=name,
            found=dtype,
            code="dtype",
            hint="Save it as i8 or u8, or name an encoding: {option:encode=int4}.",
        )
    array = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
    return array.reshape(-1).view(np.uint8).data, dtype, array.shape


def _dlpack(value: Any) -> Any:
    import numpy as np

    return np.from_dlpack(value)
