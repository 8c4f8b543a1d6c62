"""Copy checkpoints and their expected values: `python take.py FIXTURES DEST FAMILY [FAMILY ...]`.

FIXTURES has `<family>/<case>/`, `<family>/expected/<case>.npz`, the malformed cases, all unpacked, and outcomes.json,
of which those whose name ends with a word of MALFORMED for the families are taken. Expected values become the
SHA-256 of float32 values (little-endian, row-major, -0.0 as 0.0).
"""

import hashlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np

MALFORMED = {
    "mlx": ("mlx",), "gptq": ("gptq", "g_idx_high", "shards_ok", "shard_lacks_scales", "unknown_method", "awq_files"),
    "compressed-tensors": ("ct",), "fp8-block": ("fp8",), "bitsandbytes": ("bnb",),
}  # fmt: skip


def digest(values):
    return hashlib.sha256((np.asarray(values, "<f4") + np.float32(0)).tobytes()).hexdigest()


def main(fixtures, target, families):
    expected = {}
    for family in families:
        for case in sorted(path for path in (fixtures / family).iterdir() if path.name != "expected"):
            name = f"{family}-{case.name}"
            shutil.copytree(case, target / name)
            with np.load(fixtures / family / "expected" / f"{case.name}.npz") as values:
                expected[name] = {key: [list(values[key].shape), digest(values[key])] for key in values.files}
    endings = tuple(f"_{word}" for family in families for word in MALFORMED.get(family, ()))
    outcomes = {}
    for name, case in json.loads((fixtures / "outcomes.json").read_text())["cases"].items():
        if name.endswith(endings):
            shutil.copytree(fixtures / name, target / "malformed" / name)
            good = {key: digest(values) for key, values in case["good"].items()}
            outcomes[name] = {**case, "good": good}
    (target / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    (target / "malformed" / "outcomes.json").write_text(json.dumps(outcomes, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
