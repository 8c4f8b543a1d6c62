"""The files of a tokenizer of 64 tokens, for small models."""

from __future__ import annotations

import numpy as np
from squish_models.tokenizer import Tokenizer, huggingface_files

TOKENS = ("a", "b", "ab", "<|end|>", *(f"t{number}" for number in range(60)))
KINDS = np.array([1, 1, 1, 3, *[1] * 60], np.int32)
TOKENIZER = huggingface_files(
    Tokenizer(model="bpe", tokens=TOKENS, kinds=KINDS, merges=(("a", "b"),), pre="qwen2", special={"eos": 3})
)
