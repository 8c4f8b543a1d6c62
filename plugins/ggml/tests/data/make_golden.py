"""Write golden.npz from gguf-py, the reference implementation of the block types; see README.md."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

DECODED = (
    "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "tq1_0", "tq2_0", "mxfp4", "nvfp4",
    "iq4_nl", "iq4_xs",
)  # fmt: skip
ENCODED = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "mxfp4")
TERNARY = ("tq1_0", "tq2_0")
BLOCKS_OF = {32: 24, 64: 12, 256: 6}


def inputs() -> np.ndarray:
    """Rows of 64 values on which encoders disagree most easily."""
    random = np.random.default_rng(19)
    normal = random.standard_normal((4, 64)).astype(np.float32)
    ties = (random.integers(-254, 255, (4, 64)) / 2).astype(np.float32)
    ties[:, ::32] = np.array([[127], [-8], [7.5], [-127]], np.float32)
    equal = np.repeat(np.array([[0], [-0.0], [1], [-3.3]], np.float32), 64, axis=1)
    signs = random.choice(np.array([-1, 1], np.float32), (2, 64))
    sizes = [normal * np.float32(size) for size in (1e-44, 1e-39, 1e-7, 1e6, 1e30)]
    return np.concatenate([normal, ties, equal, signs, *sizes])


def main() -> None:
    """Decode random bytes and encode `inputs` with gguf-py."""
    random = np.random.default_rng(20)
    arrays = {"inputs": inputs()}
    np.seterr(all="ignore")  # random scales are sometimes NaN or infinite, on purpose
    for name in DECODED:
        kind = gguf.GGMLQuantizationType[name.upper()]
        elements, nbytes = gguf.GGML_QUANT_SIZES[kind]
        blocks = random.integers(0, 256, (1, BLOCKS_OF[elements], nbytes), dtype=np.uint8)
        arrays[f"{name}_blocks"] = blocks
        arrays[f"{name}_values"] = gguf.dequantize(blocks.reshape(1, -1), kind)
    for name in ENCODED:
        arrays[f"{name}_encoded"] = gguf.quantize(arrays["inputs"], gguf.GGMLQuantizationType[name.upper()])
    for name in TERNARY:
        rows = arrays["inputs"].reshape(-1)[: arrays["inputs"].size // 256 * 256].reshape(-1, 256)
        arrays[f"{name}_encoded"] = gguf.quantize(rows, gguf.GGMLQuantizationType[name.upper()])
    np.savez_compressed(Path(__file__).with_name("golden.npz"), allow_pickle=False, **arrays)


if __name__ == "__main__":
    main()
