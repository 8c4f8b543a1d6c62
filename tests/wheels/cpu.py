"""Check the compiled backend in an environment with its wheel: it runs here, and multiplies as NumPy does."""

from pathlib import Path

import numpy as np

import squish_core as squish

SAMPLE = Path(__file__).resolve().parents[1] / "data" / "sample.gguf"

probe = squish.registry().backend("cpu").probe()
if not probe.ok:
    raise SystemExit(probe.reason)
with squish.open(SAMPLE) as file:
    matrix = next(file[name] for name in file if file[name].ndim == 2)
    values = matrix.numpy().astype(np.float32)
    x = np.linspace(-1, 1, values.shape[1], dtype=np.float32)[None]
    if not np.allclose(matrix.load(backend="cpu").linear(x), x @ values.T, rtol=1e-3, atol=1e-3):
        raise SystemExit("a product differs from NumPy's")
print("cpu: ok", dict(probe.facts))
