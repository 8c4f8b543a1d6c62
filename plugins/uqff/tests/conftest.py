"""The files in `data`, what they hold, and blobs put together by hand."""

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
    """A safetensors file of name -> (tag, shape, bytes)."""
    header, data = {}, b""
    for name, (tag, shape, raw) in tensors.items():
        header[name] = {"dtype": tag, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def legacy(*blobs: bytes) -> bytes:
    """A 0.x file of blobs numbered from 0."""
    return safetensors({str(number): ("U8", [len(blob)], blob) for number, blob in enumerate(blobs)})


def tensor(code: int, dims: list[int], data: bytes, length: int | None = None) -> bytes:
    """A TENSOR of a blob."""
    size = len(data) if length is None else length
    return struct.pack(f"<III{len(dims)}I", size, code, len(dims), *dims) + data


def head(isq: int, version: int = 0x000200) -> bytes:
    """Version and ISQ type of a blob."""
    return struct.pack("<IB", version, isq)


def named(**tensors: tuple[str, list[int], bytes]) -> bytes:
    """A 1.2 file of one layer `a`: its fields, with "_" for nothing and double underscores for dots."""
    version = {f"uqff.version.{level}": ("U32", [], struct.pack("<I", number))
               for level, number in (("major", 1), ("minor", 2), ("patch", 0))}  # fmt: skip
    return safetensors({**{f"a.{name.replace('__', '.')}": value for name, value in tensors.items()}, **version})


def codes(file: Any) -> list[str]:
    """What opening found, but for the files that are not beside it."""
    return [problem.code for problem in file.problems if problem.code != "companion"]


@pytest.fixture
def uqff() -> SimpleNamespace:
    """What makes files by hand."""
    return SimpleNamespace(safetensors=safetensors, legacy=legacy, tensor=tensor, head=head, named=named, codes=codes)


@pytest.fixture
def data() -> Path:
    """The folder of files written by other software."""
    return Path(__file__).with_name("data")


@pytest.fixture
def expected(data: Path) -> Any:
    """Folder -> tensor -> layer's name, shape, sha256."""
    return json.loads((data / "expected.json").read_text())
