"""Buffers go to torch without a copy, types that NumPy lacks included."""

from __future__ import annotations

from pathlib import Path

import oracles
import pytest

ROOT = Path(__file__).resolve().parent.parent


def consume(root: str, dtype: str, raw: bytes) -> list:  # type: ignore[type-arg]
    """Runs in the peer."""
    import sys

    import torch

    sys.path.insert(0, root)
    from squish_core.buffers import Buffer

    held = bytearray(raw)
    tensor = torch.from_dlpack(Buffer(memoryview(held), dtype, (2, len(raw) // torch_width(dtype) // 2)))
    seen = [str(tensor.dtype), list(tensor.shape), tensor.to(torch.float64).flatten().tolist()]
    held[: torch_width(dtype)] = bytes(torch_width(dtype))  # a view sees the change, a copy does not
    return [*seen, float(tensor.to(torch.float64)[0, 0])]


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
def test_torch_takes_a_buffer_as_a_view(dtype: str, one: bytes, name: str) -> None:
    import inspect

    code = SNIPPET.format(width=inspect.getsource(torch_width), consume=inspect.getsource(consume))
    seen = oracles.peer("torch").run(code, root=str(ROOT), dtype=dtype, raw=one * 4)
    assert seen == [name, [2, 2], [1.0] * 4, 0.0]
