"""A text as windows of tokens, by llama.cpp's rule."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from squish_core.api import ErrorCode, UsageError


class Windows:
    """Consecutive windows of a text's tokens; tokens after the last whole window are left out.

    The tokens of the second half of each window are scored. If the tokenizer starts texts with BOS, it replaces the
    first token of each window.

    Parameters
    ----------
    tokenizer
        Of transformers.
    text
        File with the text, in UTF-8.
    window
        Tokens per window.

    Raises
    ------
    UsageError
        The text is not UTF-8, or shorter than one window.
    """

    def __init__(self, tokenizer: Any, text: str | Path, window: int) -> None:
        if window < 4:
            raise UsageError("the window is too small", found=window, expected="4 or more tokens", code=ErrorCode.USAGE)
        self.size = window
        self.bos = bos_of(tokenizer)
        ids = tokenizer(read_text(text), add_special_tokens=False)["input_ids"]
        self.tokens = np.asarray([*([] if self.bos is None else [self.bos]), *ids], dtype=np.int32)
        if len(self.tokens) < window:
            raise UsageError(
                "the text is shorter than one window", file=str(text), found=f"{len(self.tokens)} tokens",
                expected=f"{window} or more", code="text", hint="Give a longer text or a smaller --window.",
            )  # fmt: skip

    def __len__(self) -> int:
        return len(self.tokens) // self.size

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(len(self)):
            ids = torch.from_numpy(self.tokens[number * self.size : (number + 1) * self.size].astype(np.int64))
            if self.bos is not None:
                ids[0] = self.bos
            yield ids

    @property
    def first(self) -> int:
        """Position in a window whose logits are the first to be scored."""
        return self.size // 2

    @property
    def digest(self) -> str:
        """SHA-256 of the tokens."""
        return hashlib.sha256(self.tokens.tobytes()).hexdigest()


def read_text(path: str | Path) -> str:
    """The text of a file without its last newline, as llama.cpp reads it; UsageError if it is not UTF-8."""
    try:
        return Path(path).read_bytes().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UsageError(
            "the text is not UTF-8", file=str(path), offset=error.start, found=hex(error.object[error.start]),
            code="text",
        ) from None  # fmt: skip
    except OSError as error:
        raise UsageError("the text cannot be read", file=str(path), found=error.strerror, code="text") from None


def bos_of(tokenizer: Any) -> int | None:
    """The token that the tokenizer puts before a text; None if it puts none."""
    bos = tokenizer.bos_token_id
    return bos if bos is not None and tokenizer("a")["input_ids"][:1] == [bos] else None


def vocabulary_size(tokenizer: Any) -> int:
    """Number of token ids, up to the largest."""
    return max(tokenizer.get_vocab().values()) + 1


def vocabulary_digest(tokenizer: Any) -> str:
    """SHA-256 of the tokens and their ids."""
    return hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()
