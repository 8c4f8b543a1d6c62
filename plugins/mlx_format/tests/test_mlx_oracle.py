"""mlx on a CPU as an independent judge: of every mode it quantizes to, and of what is written here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest

import squish_core as squish

pytestmark = [pytest.mark.oracle, pytest.mark.peers]
MODES = [
    *(("affine", bits, group) for bits in (1, 2, 3, 4, 5, 6, 8) for group in (32, 64, 128)),
    ("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16),
]  # fmt: skip


def quantize(path: str, values: np.ndarray, mode: str, bits: int, group_size: int, dtype: str) -> Any:
    """Runs in the peer: writes `path` and returns the values of the codes, by mlx, in float32."""
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    weight = mx.array(values).astype(getattr(mx, dtype))
    parts = mx.quantize(weight, group_size=group_size, bits=bits, mode=mode)
    names = ("weight", "scales", "biases")[: len(parts)]
    mx.save_safetensors(path, {f"a.{name}": part for name, part in zip(names, parts)})
    wide = [parts[0], *(part if part.dtype == mx.uint8 else part.astype(mx.float32) for part in parts[1:])]
    return np.array(mx.dequantize(*wide, group_size=group_size, bits=bits, mode=mode, dtype=mx.float32))


def dequantize(path: str, mode: str, bits: int, group_size: int) -> Any:
    """Runs in the peer: the values of `a` in a file that was written here."""
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    stored = mx.load(path)
    parts = [stored[f"a.{name}"] for name in ("weight", "scales", "biases") if f"a.{name}" in stored]
    wide = [parts[0], *(part if part.dtype == mx.uint8 else part.astype(mx.float32) for part in parts[1:])]
    return np.array(mx.dequantize(*wide, group_size=group_size, bits=bits, mode=mode, dtype=mx.float32))


@pytest.mark.parametrize(("mode", "bits", "group"), MODES)
def test_what_mlx_quantizes_has_its_values(mode: str, bits: int, group: int, tmp_path: Path) -> None:
    values = np.random.default_rng(bits).normal(size=(32, 256)).astype(np.float32)
    for dtype in ("float32", "float16", "bfloat16"):
        path = tmp_path / dtype / "model.safetensors"
        path.parent.mkdir()
        quantization = {"mode": mode, "bits": bits, "group_size": group}
        expected = oracles.peer("mlx").run(quantize, path=str(path), values=values, dtype=dtype, **quantization)
        (path.parent / "config.json").write_text(json.dumps({"quantization": quantization}))
        with squish.open(path.parent) as file:
            assert (file.format, file.problems) == ("mlx", ())
            # mlx may fuse the multiplication and the addition of a bias: one rounding less
            np.testing.assert_allclose(file["a.weight"].numpy(), expected, rtol=1e-6, atol=2e-6 * (mode == "affine"))


@pytest.mark.parametrize("rule", ["q2", "q3", "q4", "q5", "q6", "q8", "mxfp4"])
def test_mlx_reads_what_is_written_here(rule: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(32, 256)).astype("<f4")
    header = json.dumps({"a.weight": {"dtype": "F32", "shape": [32, 256], "data_offsets": [0, values.nbytes]}}).encode()
    source = len(header).to_bytes(8, "little") + header + values.tobytes()
    squish.convert(source, tmp_path / "out", "mlx", encode=rule)
    quantization = json.loads((tmp_path / "out" / "config.json").read_text())["quantization"]
    (path,) = (tmp_path / "out").glob("*.safetensors")
    reference = oracles.peer("mlx").run(dequantize, path=str(path), **quantization)
    with squish.open(tmp_path / "out") as file:
        np.testing.assert_allclose(file["a.weight"].numpy(), reference, rtol=1e-6, atol=2e-6)
