"""What `build.py instructions` counts: products and decoding of one matrix, between two marks (calls of `getppid`)."""

import os

import numpy as np
from random_parts import random_tensor

from squish_core.api import CodecSpec

ROWS, COLUMNS = 512, 4096
AFFINE = {"bits": 4, "group_size": 64, "offset": "bias", "scale_dtype": "f16"}
CODECS = {name: CodecSpec(f"ggml.{name}") for name in ("q4_0", "q8_0", "q4_k", "q6_k")}
CODECS["affine, 4 bits"] = CodecSpec("affine", AFFINE)
REQUESTS = ("cpu:threads=1", "cpu:activations=int8,threads=1", "cpu:activations=int8,repack=rows,threads=1")

if __name__ == "__main__":
    x = {count: np.random.default_rng(0).standard_normal((count, COLUMNS), np.float32) for count in (1, 8)}
    for name, codec in CODECS.items():
        tensor = random_tensor(codec, (ROWS, COLUMNS), finite=True)
        for request in REQUESTS:
            weight = tensor.load(request)
            for count, vectors in x.items():
                weight.linear(vectors)
                os.getppid()
                weight.linear(vectors)
                os.getppid()
                print(f"{name} | {request} | {count} | {ROWS * COLUMNS * count}", flush=True)
