"""The files in `data`, their contents, and hand-built blobs."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

TAGS = {"U8": 1, "I8": 1, "U32": 4, "I32": 4, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1}


def safetensors(tensors: Mapping[str, tuple[str, list[int], bytes]]) -> bytes:
    """Build a safetensors file from name -> (tag, shape, bytes)."""
    header, data = {}, b""
    for name, (tag, shape, raw) in tensors.items():
        header[name] = {"dtype": tag, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def legacy(*blobs: bytes) -> bytes:
    """Build a 0.x file with blobs numbered from 0."""
    return safetensors({str(number): ("U8", [len(blob)], blob) for number, blob in enumerate(blobs)})


def tensor(code: int, dims: list[int], data: bytes, length: int | None = None) -> bytes:
    """Pack a TENSOR of a blob."""
    size = len(data) if length is None else length
    return struct.pack(f"<III{len(dims)}I", size, code, len(dims), *dims) + data


def head(isq: int, version: int = 0x000200) -> bytes:
    """Pack the version and ISQ type of a blob."""
    return struct.pack("<IB", version, isq)


def named(**tensors: tuple[str, list[int], bytes]) -> bytes:
    """Build a 1.2 file with one layer `a`; in field names "_" is empty and double underscores are dots."""
    version = {
        f"uqff.version.{level}": ("U32", [], struct.pack("<I", number))
        for level, number in (("major", 1), ("minor", 2), ("patch", 0))
    }
    return safetensors({**{f"a.{name.replace('__', '.')}": value for name, value in tensors.items()}, **version})


def codes(file: Any) -> list[str]:
    """Codes of the problems found on opening, without missing companion files."""
    return [problem.code for problem in file.problems if problem.code != "companion"]


@pytest.fixture
def uqff() -> SimpleNamespace:
    """The builders of this module."""
    return SimpleNamespace(safetensors=safetensors, legacy=legacy, tensor=tensor, head=head, named=named, codes=codes)


@pytest.fixture
def data() -> Path:
    """The folder with files of other software."""
    return Path(__file__).with_name("data")


@pytest.fixture
def expected(data: Path) -> Any:
    """Folder -> tensor -> layer name, shape, sha256."""
    return json.loads((data / "expected.json").read_text())
