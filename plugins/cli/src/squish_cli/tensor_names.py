"""Names of the tensors of a local file, for completion: from the header of GGUF and safetensors, which takes a tenth of
the time that opening the file takes, since that imports NumPy. Other formats are opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

HEADER = 100 << 20
"""Maximum bytes of a header."""
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Type of a value in GGUF's metadata -> its bytes."""
TEXT, ARRAY = 8, 9
QUANTIZED = (".scales", ".qweight", ".weight_scale", ".weight_packed", ".weight_scale_inv", ".SCB", ".absmax", ".W_q")
"""Ends of names that a format merges into one tensor."""


def tensor_names(path: str) -> list[str]:
    """Return the names of the tensors of a file or folder; none if it cannot be read."""
    for read in (header_names, opened_names):
        try:
            names = read(path)
        except Exception:  # completion offers nothing where a file is damaged
            continue
        if names is not None:
            return names
    return []


def header_names(path: str) -> list[str] | None:
    """Return the names in the header of a GGUF or safetensors file; None where only opening it tells."""
    if os.path.isdir(path):
        path = next(filter(os.path.exists, (os.path.join(path, name) for name in MEMBERS)), path)
    if path.endswith(".json"):
        return merged(shard_names(path))
    with open(path, "rb") as file:
        start = file.read(9)
        if start[:4] == b"GGUF":
            file.seek(4)
            return list(gguf_names(file))
        if start[8:] == b"{" and not path.endswith(".uqff"):
            size = int.from_bytes(start[:8], "little")
            file.seek(8)
            return merged(sorted(_json(file.read(size)).keys() - {"__metadata__"}) if size <= HEADER else [])
    return None


MEMBERS = ("model.safetensors.index.json", "model.safetensors")
"""Files of a folder whose names are those of the model."""


def shard_names(path: str) -> list[str]:
    """Return the names in the index of a sharded model."""
    with open(path, "rb") as file:
        return sorted(_json(file.read(HEADER))["weight_map"])


def _json(data: bytes) -> dict[str, dict[str, str]]:
    import json

    parsed: dict[str, dict[str, str]] = json.loads(data)
    return parsed


def merged(names: list[str]) -> list[str] | None:
    """Return the names, or None if some are parts of quantized tensors."""
    return None if any(name.endswith(QUANTIZED) for name in names) else names


def gguf_names(file: BinaryIO) -> Iterator[str]:
    """Yield the names of a GGUF file after its magic, in the order of the file."""
    version = _number(file, 4)
    if not 2 <= version <= 3:
        raise ValueError(version)
    count, keys = _number(file, 8), _number(file, 8)
    for _ in range(keys):
        _skip(file, _number(file, 8))
        _skip_value(file, _number(file, 4))
    for _ in range(count):
        name = file.read(_number(file, 8)).decode()
        _skip(file, 8 * _number(file, 4) + 12)
        yield name


def _number(file: BinaryIO, size: int) -> int:
    data = file.read(size)
    if len(data) < size:
        raise EOFError
    return int.from_bytes(data, "little")


def _skip(file: BinaryIO, count: int) -> None:
    if count > HEADER:
        raise ValueError(count)
    file.seek(count, os.SEEK_CUR)


def _skip_value(file: BinaryIO, kind: int) -> None:
    """Skip a value of GGUF's metadata."""
    if kind == TEXT:
        _skip(file, _number(file, 8))
    elif kind == ARRAY:
        kind, count = _number(file, 4), _number(file, 8)
        if kind in SIZES:
            _skip(file, SIZES[kind] * count)
        else:
            for _ in range(count):
                _skip_value(file, kind)
    else:
        _skip(file, SIZES[kind])


def opened_names(path: str) -> list[str]:
    """Return the names of the tensors of an opened file."""
    import gc

    gc.disable()  # it would take 80 ms while modules load
    from squish_core.opening import open as open_file

    with open_file(path) as file:
        return list(file)
