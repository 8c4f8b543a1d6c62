"""More arrays than a process may have files open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from npydir_samples import make

LOWERED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
import numpy as np, squish_core as squish
arrays = {}
with squish.open(sys.argv[1]) as file:
    for name, tensor in file.items():
        arrays[name] = tensor.numpy()  # a view of a mapping
        arrays[name + "/parts"] = tensor.parts()["data"].numpy()
    arrays |= {name + "/all": array for name, array in file.numpy().items()}
assert not any(array.flags.owndata for array in arrays.values())
for name, array in arrays.items():
    assert (array == int(name.partition("/")[0])).all(), name
report = squish.convert(sys.argv[1], sys.argv[2], "npydir")
assert len(report.steps) == 400
open("/dev/null").close()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="descriptors are limited by rlimits elsewhere")
def test_mapped_arrays_need_no_descriptors(tmp_path: Path) -> None:
    tensors = {f"{number}": {"pt": np.full((2, 4), number, np.float32), "shape": (2, 4)} for number in range(400)}
    folder = make(tmp_path / "m", tensors)
    process = subprocess.run(
        [sys.executable, "-c", LOWERED, str(folder), str(tmp_path / "out")], capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr
