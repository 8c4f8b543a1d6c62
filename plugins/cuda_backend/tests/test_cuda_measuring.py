"""The script that measures on a device runs from end to end in Triton's interpreter, on tiny sizes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="with a device, the script itself is run")
def test_the_measuring_script_fills_its_page() -> None:
    page = ROOT / "docs" / "backends" / "cuda.md"
    before = page.read_bytes()
    command = [sys.executable, "-m", "benchmarks.cuda"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert page.read_bytes() == before
    found = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    for first in ("torch bf16 4x256", "q4_0 4x256", "iq3_s 4x256", "torch bf16 ", "q4_0 ", "q8_0 "):
        rows = [line for line in found if line.startswith(f"| {first}")]
        assert rows, done.stdout[-4000:]
        assert not any("nan" in line for line in rows)
    assert "1 passed" in done.stdout
