"""llama.cpp's logits files: log-probabilities of a base in 16 bits; llama.cpp can write or read them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch

from squish_core.api import FormatError, Sink, TruncatedError, UsageError

from .windows import Windows

MAGIC = b"_logits_"
HEADER = struct.Struct("<8sIii")
CLIP = 16.0
"""Largest distance below the largest logit that is stored; lower logits are clamped."""
FLOOR = -16.0
"""Log-probabilities up to this value are left out of the divergence."""


class LogitsFile:
    """A logits file of llama.cpp, read window by window.

    Parameters
    ----------
    path
        The file.

    Raises
    ------
    FormatError
        The file is not a logits file, or its header is invalid.
    TruncatedError
        The file is shorter than its header states.
    """

    def __init__(self, path: str | Path) -> None:
        self.name = str(path)
        self._path = Path(path)
        with open(path, "rb") as file:
            head = file.read(HEADER.size)
            if len(head) < HEADER.size or not head.startswith(MAGIC):
                raise FormatError(
                    "not a logits file of llama.cpp",
                    file=self.name,
                    offset=0,
                    expected=repr(MAGIC),
                    found=repr(head[:8]),
                    code="magic",
                )
            _, self.window, self.vocabulary, self.windows = HEADER.unpack(head)
            if self.window < 4 or self.vocabulary < 1 or self.windows < 1:
                raise FormatError(
                    "a logits file has invalid sizes",
                    file=self.name,
                    offset=len(MAGIC),
                    code="size",
                    found=f"window {self.window}, vocabulary {self.vocabulary}, {self.windows} windows",
                )
            self.row = row_size(self.vocabulary)
            self.rows = self.window - 1 - self.window // 2
            self._start = HEADER.size + 4 * self.window * self.windows
            expected = self._start + 2 * self.row * self.rows * self.windows
            size = self._path.stat().st_size
            if size < expected:
                raise TruncatedError(
                    "the logits file is truncated",
                    file=self.name,
                    offset=size,
                    expected=f"{expected} bytes",
                    found=f"{size} bytes",
                    code="truncated",
                )
            self.tokens = np.frombuffer(file.read(4 * self.window * self.windows), "<i4")

    def check(self, windows: Windows, vocabulary: int) -> None:
        """Raise UsageError if the window size, the vocabulary or the tokens differ."""
        used = self.windows if windows.content is None and self.windows > len(windows) else len(windows)
        for code, expected, found in (
            ("window", self.window, windows.size),
            ("vocabulary", self.vocabulary, vocabulary),
            ("windows", self.windows, used),
        ):
            if expected != found:
                raise UsageError(
                    f"the logits file has another {code}", file=self.name, code=code, expected=expected, found=found
                )
        tokens = windows.tokens[: len(windows) * windows.size]
        if not np.array_equal(self.tokens[: len(tokens)], tokens):
            index = int(np.flatnonzero(self.tokens[: len(tokens)] != tokens)[0])
            raise UsageError(
                "the tokenizers split the text differently",
                file=self.name,
                code="tokenizer",
                offset=HEADER.size + 4 * index,
                expected=int(self.tokens[index]),
                found=int(tokens[index]),
            )

    def __getitem__(self, number: int) -> torch.Tensor:
        """Return log-probabilities [positions, vocabulary] of a window, in f64."""
        size = 2 * self.row * self.rows
        with open(self._path, "rb") as file:
            file.seek(self._start + number * size)
            data = np.frombuffer(file.read(size), "<u2").reshape(self.rows, self.row)
        scales = np.ascontiguousarray(data[:, :4]).view("<f4").astype(np.float64)
        return torch.from_numpy(scales[:, :1] * data[:, 4 : 4 + self.vocabulary] + scales[:, 1:])


def row_size(vocabulary: int) -> int:
    """16-bit words of a row: two f32, and a code for each token, padded to an even number."""
    return 2 * ((vocabulary + 1) // 2) + 4


def write_header(sink: Sink, windows: Windows, vocabulary: int) -> None:
    """Write the sizes and the tokens."""
    sink.write(HEADER.pack(MAGIC, windows.size, vocabulary, len(windows)))
    sink.write(windows.tokens[: windows.size * len(windows)].astype("<i4").tobytes())


def write_rows(sink: Sink, log_probabilities: torch.Tensor) -> None:
    """Write the rows of one window, from log-probabilities in f64."""
    values = log_probabilities.numpy().astype(np.float32)
    count, vocabulary = values.shape
    rows = np.zeros((count, row_size(vocabulary)), "<u2")
    largest = values.max(1, keepdims=True)
    lowest = np.maximum(values.min(1, keepdims=True), largest - np.float32(CLIP))
    scales = (largest - lowest) / np.float32(65535)
    rows[:, :4] = np.concatenate((scales, lowest), 1).astype("<f4").view("<u2")
    with np.errstate(all="ignore"):
        codes = np.where(scales > 0, np.floor((values - lowest) / scales + np.float32(0.5)), 0)
    rows[:, 4 : 4 + vocabulary] = np.clip(codes, 0, 65535).astype("<u2")
    sink.write(rows.tobytes())


def is_logits_file(path: Any) -> bool:
    """Return whether a file starts with the magic bytes of this format."""
    if not isinstance(path, (str, Path)) or not Path(path).is_file():
        return False
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC
