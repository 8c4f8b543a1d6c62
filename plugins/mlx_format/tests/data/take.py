"""Copy checkpoints and their expected values here: `python take.py FIXTURES FAMILY [FAMILY ...]`.

FIXTURES has `<family>/<case>/`, `<family>/expected/<case>.npz`, the malformed cases, all unpacked, and outcomes.json.
Expected values become the SHA-256 of float32 values (little-endian, row-major, -0.0 as 0.0).

Written by mlx 0.32.4 on CPU (config.json as mlx-lm writes it); expected values by mx.dequantize with scales widened to
float32. The malformed ones were made by hand.
"""

import hashlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


def digest(values):
    return hashlib.sha256((np.asarray(values, "<f4") + np.float32(0)).tobytes()).hexdigest()


def main(fixtures, families):
    expected = {}
    for family in families:
        for case in sorted(path for path in (fixtures / family).iterdir() if path.name != "expected"):
            name = f"{family}-{case.name}"
            shutil.copytree(case, HERE / name)
            with np.load(fixtures / family / "expected" / f"{case.name}.npz") as values:
                expected[name] = {key: [list(values[key].shape), digest(values[key])] for key in values.files}
    outcomes = {}
    for name, case in json.loads((fixtures / "outcomes.json").read_text())["cases"].items():
        if any(name.endswith(f"_{family}") for family in families):
            shutil.copytree(fixtures / name, HERE / "malformed" / name)
            good = {key: digest(values) for key, values in case["good"].items()}
            outcomes[name] = {**case, "good": good}
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    (HERE / "malformed" / "outcomes.json").write_text(json.dumps(outcomes, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
