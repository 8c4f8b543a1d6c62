"""The example that fills MLX modules runs and computes what the decoded weights give."""

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "mlx_modules.py"


def test_it_fills_every_layer_and_agrees() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("QuantizedLinear, 4 bits") == 6
    match = re.search(r"9 tensors; largest difference (\S+) of", done.stdout)
    assert match is not None
    assert float(match[1]) < 1e-2
