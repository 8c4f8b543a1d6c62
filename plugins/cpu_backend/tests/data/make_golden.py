"""Writes encodings.json beside it: SHA-256 of the blocks that libggml makes of the tests' hard values,
and, but for Q8_0, MXFP4 and NVFP4, with an importance matrix too.

pip install ggml-python==0.0.45 numpy; python make_golden.py
"""

import ctypes
import hashlib
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from hard_values import activations, hard_values

TYPES = {
    "q4_0": (2, 32, 18), "q4_1": (3, 32, 20), "q5_0": (6, 32, 22), "q5_1": (7, 32, 24), "q8_0": (8, 32, 34),
    "q4_k": (12, 256, 144), "q5_k": (13, 256, 176), "q6_k": (14, 256, 210), "iq4_nl": (20, 32, 18),
    "iq4_xs": (23, 256, 136), "q2_k": (10, 256, 84),
    "q3_k": (11, 256, 110), "mxfp4": (39, 32, 17), "nvfp4": (40, 64, 36),
}  # fmt: skip
UNWEIGHTED = ("q8_0", "mxfp4", "nvfp4")


def main() -> None:
    spec = importlib.util.find_spec("ggml")
    assert spec is not None
    assert spec.origin is not None
    base = ctypes.CDLL(str(Path(spec.origin).parent / "lib" / "libggml-base.so"))
    quantize = base.ggml_quantize_chunk
    quantize.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    importance = np.square(activations())
    golden: dict[str, dict[str, str]] = {}
    for name, (number, elements, nbytes) in TYPES.items():
        for weights in (None, importance) if name not in UNWEIGHTED else (None,):
            golden[name if weights is None else f"{name} activations"] = results = {}
            for kind, values in hard_values():
                values = np.ascontiguousarray(values, np.float32)
                out = np.zeros(values.size // elements * nbytes, np.uint8)
                pointer = None if weights is None else weights.ctypes.data
                quantize(number, values.ctypes.data, out.ctypes.data, 0, *values.shape, pointer)
                results[kind] = hashlib.sha256(out.tobytes()).hexdigest()
    Path(__file__).with_name("encodings.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
