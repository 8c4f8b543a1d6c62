"""Windows of tokens of a text, as in llama.cpp or lm-eval."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import frozen

from squish_core.api import ErrorCode, UsageError

LLAMA_CPP, LM_EVAL = "llama.cpp", "lm-eval"
DEFINITIONS = {
    LLAMA_CPP: "the second half of each window, as llama.cpp",
    LM_EVAL: "every token once in sliding windows, as lm-eval",
}
"""Definition of perplexity -> the tokens that it scores."""
Progress = Callable[[str, int, int], None]
"""Called with the name of the step, the tokens so far, and all tokens."""


@frozen
class Window:
    """Tokens of one forward pass; those after position `first` are scored."""

    ids: torch.Tensor
    first: int

    @property
    def targets(self) -> torch.Tensor:
        """The scored tokens."""
        return self.ids[self.first + 1 :]


class Windows:
    """The windows of a text.

    llama.cpp: windows are consecutive, and the second half is scored. If the tokenizer adds BOS, BOS replaces the
    first token of each window. Tokens after the last full window are left out.

    lm-eval: every token is scored once, after at most `window` tokens. BOS (or EOS without a BOS) precedes the
    text; a BOS that the tokenizer adds as well is scored. Windows are disjoint except for the last, which is filled
    up with scored tokens.

    Parameters
    ----------
    tokenizer
        Tokenizer of transformers.
    text
        File with the text, in UTF-8.
    window
        Tokens per window.
    definition
        "llama.cpp" or "lm-eval".
    limit
        Number of windows to use; all by default.

    Raises
    ------
    UsageError
        The text is not UTF-8 or too short, or an argument is invalid.
    """

    def __init__(
        self, tokenizer: Any, text: str | Path, window: int, definition: str = LLAMA_CPP, limit: int | None = None
    ) -> None:
        check_numbers(window, limit)
        if definition not in DEFINITIONS:
            raise UsageError(
                "unknown definition of perplexity",
                found=repr(definition),
                expected=", ".join(DEFINITIONS),
                code=ErrorCode.USAGE,
            )
        self.size, self.definition, self.text = window, definition, str(text)
        content = read_text(text)
        self.bos = bos_of(tokenizer)
        first = self.bos
        if definition == LM_EVAL:
            first = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        else:
            content = content.removesuffix("\n")  # as llama.cpp reads it
        ids = tokenizer(content, add_special_tokens=definition == LM_EVAL)["input_ids"]
        self.tokens = np.asarray([*([] if first is None else [first]), *ids], dtype=np.int32)
        least = window if definition == LLAMA_CPP else 2
        if len(self.tokens) < least:
            raise UsageError(
                "the text is too short",
                file=str(text),
                found=f"{len(self.tokens)} tokens",
                expected=f"{least} or more",
                code="text",
                hint="Use a longer text or a smaller --window.",
            )
        whole = len(self.tokens) // window if definition == LLAMA_CPP else -(-(len(self.tokens) - 1) // window)
        self._count = min(whole, limit or whole)
        self.content = content if self._count == whole else None
        """The text, if all of it is used."""

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Window:
        if not 0 <= number < self._count:
            raise IndexError(number)
        start = number * self.size
        if self.definition == LLAMA_CPP:
            ids = self._ids(start, start + self.size)
            if self.bos is not None:
                ids[0] = self.bos
            return Window(ids, self.size // 2)
        end = min(start + self.size, len(self.tokens) - 1)
        begin = max(end - self.size, 0)
        return Window(self._ids(begin, end + 1), start - begin)

    def __iter__(self) -> Iterator[Window]:
        return (self[number] for number in range(self._count))

    def _ids(self, start: int, end: int) -> torch.Tensor:
        return torch.from_numpy(self.tokens[start:end].astype(np.int64))

    @property
    def total(self) -> int:
        """Tokens that a model runs on."""
        return self.size * self._count

    @property
    def digest(self) -> str:
        """SHA-256 of the tokens."""
        return hashlib.sha256(self.tokens.tobytes()).hexdigest()

    @property
    def words(self) -> int:
        """Number of words, as lm-eval counts them; 0 if windows are left out."""
        return len(re.split(r"\s+", self.content)) if self.content else 0

    @property
    def bytes(self) -> int:
        """Number of bytes of the text; 0 if windows are left out."""
        return len(self.content.encode()) if self.content else 0


def check_numbers(window: int, limit: int | None) -> None:
    """Raise UsageError if a window has no tokens to score, or the limit leaves no window."""
    for name, value, least in (("window", window, 4), ("limit", limit, 1)):
        if value is not None and value < least:
            raise UsageError(f"{name} is too small", found=value, expected=f"{least} or more", code=ErrorCode.USAGE)


def read_text(path: str | Path) -> str:
    """Return the text of a file; raise UsageError if it is not UTF-8."""
    try:
        return Path(path).read_bytes().decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            "the text is not UTF-8",
            file=str(path),
            offset=error.start,
            found=hex(error.object[error.start]),
            code="text",
        ) from None
    except OSError as error:
        raise UsageError("the text cannot be read", file=str(path), found=error.strerror, code="text") from None


def bos_of(tokenizer: Any) -> int | None:
    """Return the token that the tokenizer puts before a text; None if it puts none."""
    bos = tokenizer.bos_token_id
    return bos if bos is not None and tokenizer("a")["input_ids"][:1] == [bos] else None


def vocabulary_size(tokenizer: Any) -> int:
    """Return number of token ids, up to the largest."""
    return max(tokenizer.get_vocab().values()) + 1


def vocabulary_digest(tokenizer: Any) -> str:
    """Return SHA-256 of the tokens and their ids."""
    return hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()
