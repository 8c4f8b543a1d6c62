"""The files of a tokenizer of 64 tokens, for small models."""

from __future__ import annotations

import numpy as np
from squish_models.tokenizer import Tokenizer, Vocabulary, huggingface_files

TOKENS = ("a", "b", "ab", "<|end|>", *(f"t{number}" for number in range(60)))
KINDS = np.array([1, 1, 1, 3, *[1] * 60], np.int32)
VOCABULARY = Vocabulary(tokens=TOKENS, kinds=KINDS, merges=(("a", "b"),))
TOKENIZER = huggingface_files(Tokenizer(model="bpe", vocabulary=VOCABULARY, pre="qwen2", special={"eos": 3}))
