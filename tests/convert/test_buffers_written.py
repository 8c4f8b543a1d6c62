"""Memory that DLPack hands out may be written: neither the file nor any other array changes, and nothing crashes."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import run
from typing import Any

import numpy as np
import pytest

import squish_core as squish
from squish_core.errors import SquishError
from squish_core.io import local
from squish_core.io.buffer import _IS_COPIED, Buffer, _Managed, _Versioned
from squish_core.io.local import FileSource
from squish_core.io.source import BytesSource, Source

COUNT = 1 << 18
"""Values of the large tensor, which is mapped; eight are copied."""
VALUES = np.arange(COUNT, dtype="<f4")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint with a large tensor that does not begin at a page, and a small one."""
    ends = {"large": (0, COUNT), "small": (COUNT, COUNT + 8)}
    header = {
        name: {"dtype": "F32", "shape": [end - start], "data_offsets": [4 * start, 4 * end]}
        for name, (start, end) in ends.items()
    }
    text = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + VALUES.tobytes() + VALUES[:8].tobytes())
    return path


def part(path: Path, name: str = "large") -> Buffer:
    """The stored part of a tensor; the file is closed by then."""
    with squish.open(path) as file:
        return file[name].parts()["data"]


def pointer(capsule: Any, versioned: bool) -> tuple[int, int]:
    """Address of the data and flags of a capsule."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    if versioned:
        managed = _Versioned.from_address(get(capsule, b"dltensor_versioned"))
        return managed.tensor.data, managed.flags
    return _Managed.from_address(get(capsule, b"dltensor")).tensor.data, 0


WRITE = """
import ctypes, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_buffers_written import part, pointer
version = {version!r}
capsule = part(Path({path!r}), {name!r}).__dlpack__(max_version=version)
address, _ = pointer(capsule, version is not None)
ctypes.memset(address, 255, 32)
assert ctypes.string_at(address, 32) == bytes([255]) * 32
"""


@pytest.mark.parametrize("name", ["large", "small"])
@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_consumer_that_ignores_flags_cannot_crash_the_process(
    checkpoint: Path, name: str, version: tuple[int, int] | None
) -> None:
    """In a process of its own, as torch does it: straight through the pointer."""
    stored = checkpoint.read_bytes()
    code = WRITE.format(tests=str(Path(__file__).parent), path=str(checkpoint), name=name, version=version)
    finished = run([sys.executable, "-c", code], capture_output=True, text=True)
    assert finished.returncode == 0, (finished.returncode, finished.stderr)
    assert checkpoint.read_bytes() == stored


@pytest.mark.parametrize("name", ["large", "small"])
@pytest.mark.parametrize("closed", [False, True])
def test_writes_stay_in_their_array(checkpoint: Path, name: str, closed: bool) -> None:
    stored = checkpoint.read_bytes()
    with squish.open(checkpoint) as file:
        buffer, view = file[name].parts()["data"], file[name].numpy()
        if closed:
            file.close()
        first, second = np.from_dlpack(buffer), np.from_dlpack(buffer)
        first[:] = -1
        for other in (second, view, buffer.numpy(), np.from_dlpack(buffer)):
            np.testing.assert_array_equal(other, VALUES[: len(other)])
    assert checkpoint.read_bytes() == stored
    assert (first == -1).all()


def test_a_large_part_of_a_file_is_not_copied(checkpoint: Path) -> None:
    capsule = part(checkpoint).__dlpack__(max_version=(1, 0))
    assert pointer(capsule, True)[1] == 0


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs /proc")
def test_the_mapping_goes_with_its_last_array(checkpoint: Path) -> None:
    def n_mappings() -> int:
        return sum(
            "rw-p" in line and checkpoint.name in line for line in Path("/proc/self/maps").read_text().splitlines()
        )

    array = np.from_dlpack(part(checkpoint))
    tail = array[-1:]
    del array
    assert (n_mappings(), tail[0]) == (1, COUNT - 1)
    del tail
    assert n_mappings() == 0


def test_a_copy_is_returned_and_declared_on_request(checkpoint: Path) -> None:
    capsule = part(checkpoint).__dlpack__(max_version=(1, 0), copy=True)
    assert pointer(capsule, True)[1] == _IS_COPIED


def test_a_few_bytes_are_mapped_where_a_copy_is_ruled_out(checkpoint: Path) -> None:
    capsule = part(checkpoint, "small").__dlpack__(max_version=(1, 0), copy=False)
    assert pointer(capsule, True)[1] == 0


def bytes_in_memory(path: Path) -> Buffer:
    return _buffer(BytesSource(path.read_bytes()))


def replaced_file(path: Path) -> Buffer:
    buffer = _buffer(FileSource(path))
    os.replace(path.with_suffix(".other"), path)
    return buffer


def deleted_file(path: Path) -> Buffer:
    buffer = _buffer(FileSource(path))
    path.unlink()
    return buffer


def _buffer(source: Source) -> Buffer:
    offset, length = source.size - 4 * COUNT, 4 * COUNT
    return Buffer(source.view(offset, length), "f32", (COUNT,), source.writable_view(offset, length))


@pytest.mark.parametrize("make", [bytes_in_memory, replaced_file, deleted_file])
def test_bytes_that_no_longer_lie_in_a_file_are_copied(checkpoint: Path, make: Callable[[Path], Buffer]) -> None:
    checkpoint.with_suffix(".other").write_bytes(bytes(checkpoint.stat().st_size))
    buffer = make(checkpoint)
    values = buffer.numpy().copy()
    capsule = buffer.__dlpack__(max_version=(1, 0))
    assert pointer(capsule, True)[1] == _IS_COPIED
    np.from_dlpack(buffer)[:] = -1
    np.testing.assert_array_equal(buffer.numpy(), values)
    with pytest.raises(BufferError, match="copy=False"):
        buffer.__dlpack__(max_version=(1, 0), copy=False)


def test_a_file_that_shrank_is_a_typed_error(checkpoint: Path) -> None:
    buffer = part(checkpoint)
    os.truncate(checkpoint, 4096)
    with pytest.raises(SquishError) as refusal:
        buffer.__dlpack__()
    assert (refusal.value.code, refusal.value.file) == ("changed", str(checkpoint))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such flags")
@pytest.mark.parametrize("untracked", [False, True])
def test_mappings_leave_the_descriptor_alone(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, untracked: bool
) -> None:
    """Before Python 3.13 through the C library, from then on with `trackfd=False`."""
    if sys.version_info < (3, 13):
        monkeypatch.setattr(local, "UNTRACKED", {})  # the argument is new
    monkeypatch.setattr(local, "IS_UNTRACKED", untracked)
    offset, length = checkpoint.stat().st_size - 64, 64
    with checkpoint.open("rb") as file:
        view = local.map_shared(file.fileno(), offset + length)
        private = local.map_private(file.fileno(), offset, length)
        if untracked:
            with pytest.raises(OSError, match="greater than file size"):
                local.map_private(file.fileno(), 1 << 40, 1)
    stored = checkpoint.read_bytes()
    assert (view.readonly, private.readonly) == (True, False)
    assert bytes(view) == stored
    private[:] = bytes(length)
    assert bytes(view) == checkpoint.read_bytes() == stored
