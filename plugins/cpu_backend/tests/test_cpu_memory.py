"""Kernels stay in bounds: all buffers are next to inaccessible pages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import random_parts
from cases import every
from squish_cpu import library

SCRIPT = Path(__file__).with_name("guarded.py")


@pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="needs mprotect")
@pytest.mark.parametrize("name", library.library().instructions)
def test_kernels_do_not_access_memory_outside_their_buffers(name: str) -> None:
    modules = str(Path(random_parts.__file__).parent)
    environment = {**os.environ, library.INSTRUCTIONS: name, library.THREADS: "1", "PYTHONPATH": modules}
    done = subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True)
    ran = done.stdout.splitlines()
    assert done.returncode == 0, f"ended with {done.returncode} after {ran[-1:]}: {done.stderr[-2000:]}"
    assert len(ran) == len(list(every()))
