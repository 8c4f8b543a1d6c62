"""Buffers go to torch, types that NumPy lacks included; what torch writes stays in its tensor."""

from __future__ import annotations

from pathlib import Path

import oracles
import pytest

ROOT = Path(__file__).resolve().parents[2]


def consume(root: str, dtype: str, raw: bytes) -> list:  # type: ignore[type-arg]
    """Runs in the peer."""
    import sys

    import torch

    sys.path.insert(0, root)
    from squish_core.io.buffer import Buffer

    buffer = Buffer(memoryview(raw), dtype, (2, len(raw) // torch_width(dtype) // 2))
    tensor = torch.from_dlpack(buffer)
    facts = [str(tensor.dtype), list(tensor.shape), tensor.to(torch.float64).flatten().tolist()]
    tensor[0] = 0
    return [*facts, bytes(buffer.raw) == raw]


def write(root: str, path: str) -> list:  # type: ignore[type-arg]
    """Runs in the peer: writes to the mapped bytes of a file, and multiplies in dtypes that NumPy lacks."""
    import sys
    from pathlib import Path

    import torch

    sys.path.insert(0, root)
    from squish_core.io.buffer import Buffer, copy_of_dlpack
    from squish_core.io.local import FileSource

    source, stored = FileSource(Path(path)), Path(path).read_bytes()
    buffer = Buffer(source.view(0, source.size), "u8", (source.size,), source.writable_view(0, source.size))
    tensor, other = torch.from_dlpack(buffer), torch.from_dlpack(buffer)
    tensor.zero_()
    kept = Path(path).read_bytes() == stored == bytes(buffer.raw) == bytes(other.tolist())
    values = torch.arange(12).reshape(3, 4).T
    copies = [copy_of_dlpack(values.to(dtype)) for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float32)]
    return [kept, int(tensor.sum()), *(copy.astype("f4").tolist() for copy in copies)]


def torch_width(dtype: str) -> int:
    """Bytes of an element."""
    return {"bf16": 2, "f32": 4, "f8_e4m3": 1, "f8_e5m2": 1, "u8": 1}[dtype]


SNIPPET = """
{width}

{consume}

result = consume(root, dtype, raw)
"""


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("dtype", "one", "name"),
    [
        ("bf16", b"\x80\x3f", "torch.bfloat16"), ("f32", b"\x00\x00\x80\x3f", "torch.float32"),
        ("f8_e4m3", b"\x38", "torch.float8_e4m3fn"), ("f8_e5m2", b"\x3c", "torch.float8_e5m2"),
        ("u8", b"\x01", "torch.uint8"),
    ],
)  # fmt: skip
def test_torch_takes_a_buffer_and_leaves_its_bytes(dtype: str, one: bytes, name: str) -> None:
    import inspect

    code = SNIPPET.format(width=inspect.getsource(torch_width), consume=inspect.getsource(consume))
    seen = oracles.peer("torch").run(code, root=str(ROOT), dtype=dtype, raw=one * 4)
    assert seen == [name, [2, 2], [1.0] * 4, True]


@pytest.mark.oracle
def test_torch_writes_to_a_mapped_file_and_its_dtypes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * 1024)
    kept, total, *copies = oracles.peer("torch").run(write, root=str(ROOT), path=str(path))
    assert (kept, total) == (True, 0)
    assert copies == [[[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]] * 3
