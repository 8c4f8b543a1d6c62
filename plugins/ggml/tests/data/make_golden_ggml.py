"""Write golden_ggml.npz from libggml itself: what gguf-py neither decodes nor encodes; see README.md."""

from __future__ import annotations

import ctypes
from pathlib import Path

import ggml
import numpy as np
from make_golden import inputs

SIZES = {"q1_0": (128, 18), "nvfp4": (64, 36)}


def main() -> None:
    """Decode random bytes of Q1_0; encode `inputs` to Q1_0 and NVFP4."""
    library = ctypes.CDLL(str(Path(ggml.__file__).parent / "lib" / "libggml-base.so"))
    arrays = {"q1_0_blocks": np.random.default_rng(20).integers(0, 256, (1, 9, 18), dtype=np.uint8)}
    arrays["q1_0_values"] = np.empty((1, 9 * 128), np.float32)
    blocks, values = arrays["q1_0_blocks"], arrays["q1_0_values"]
    library.dequantize_row_q1_0(
        *map(ctypes.c_void_p, (blocks.ctypes.data, values.ctypes.data)), ctypes.c_int64(values.size)
    )
    rows = inputs().reshape(-1, 128)
    for name, (elements, nbytes) in SIZES.items():
        stored = arrays[f"{name}_encoded"] = np.empty((len(rows), 128 // elements * nbytes), np.uint8)
        encode = getattr(library, f"quantize_row_{name}_ref")
        encode(*map(ctypes.c_void_p, (rows.ctypes.data, stored.ctypes.data)), ctypes.c_int64(rows.size))
    np.savez_compressed(Path(__file__).with_name("golden_ggml.npz"), allow_pickle=False, **arrays)


if __name__ == "__main__":
    main()
