"""Kernels compiled for a GPU that need not be there: operations run up to the launch, and instructions are counted."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction


class Code(NamedTuple):
    """Machine code of a kernel: how often each instruction occurs, registers, and bytes to which they spill."""

    instructions: Counter[str]
    registers: int
    stack: int

    def count(self, pattern: str) -> int:
        """Instructions whose name matches."""
        return sum(number for name, number in self.instructions.items() if re.match(pattern, name))


class Absent:
    """A device of an architecture, which runs nothing."""

    def __init__(self, architecture: int) -> None:
        self._target = GPUTarget("cuda", architecture, 32)

    def get_current_target(self) -> GPUTarget:
        """What kernels are compiled for."""
        return self._target

    def get_current_device(self) -> int:
        """Its number: kernels are kept by device, and so by architecture."""
        return self._target.arch

    def get_current_stream(self, device: int) -> int:
        """Where kernels would run."""
        return 0


@contextmanager
def compiling(architecture: int) -> Iterator[dict[str, Any]]:
    """Kernels that are launched are compiled instead: their names and what they were compiled to."""
    found: dict[str, Any] = {}
    run: Callable[..., Any] = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        found[self.__name__] = run(self, *args, grid=grid, warmup=True, **options)

    with (
        mock.patch.object(JITFunction, "run", compile_only),
        mock.patch.object(triton.runtime.driver, "_active", Absent(architecture)),
    ):
        yield found


def measured(kernel: Any) -> Code:
    """The machine code of a compiled kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
        ask = [str(tools / "cuobjdump"), "-sass", "-res-usage", file.name]
        text = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
    names = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]+)", text)
    usage = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert usage is not None
    return Code(Counter(names), int(usage[1]), int(usage[2]))
