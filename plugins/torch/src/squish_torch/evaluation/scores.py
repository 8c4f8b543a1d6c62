"""Perplexity and Kullback-Leibler divergence, accumulated in f64 over slices of logits."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from math import exp, inf, log, sqrt
from typing import Any

import numpy as np
import torch

SLICE = 1 << 21
"""Largest number of logits to convert to f64 at a time."""
QUANTILES = {"q99_9": 0.999, "q99": 0.99, "q95": 0.95, "q90": 0.9, "q50": 0.5, "q10": 0.1, "q5": 0.05, "q1": 0.01}
PER_UNIT = ("word_perplexity", "byte_perplexity", "bits_per_byte")
"""Metrics of lm-eval for a whole text."""


class Perplexity:
    """Sums of the log-likelihoods of tokens."""

    def __init__(self) -> None:
        self.tokens, self.sum, self.squares = 0, 0.0, 0.0

    def add(self, log_probabilities: torch.Tensor, targets: torch.Tensor) -> None:
        """Add positions: log-probabilities [positions, vocabulary] in f64, and the tokens that follow."""
        losses = -log_probabilities.gather(1, targets[:, None])[:, 0]
        self.tokens += len(losses)
        self.sum += float(losses.sum())
        self.squares += float(losses.square().sum())

    def state(self) -> dict[str, Any]:
        """Return the sums, for JSON."""
        return {"tokens": self.tokens, "sum": self.sum, "squares": self.squares}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from stored sums."""
        self.tokens, self.sum, self.squares = state["tokens"], state["sum"], state["squares"]

    def per_unit(self, words: int, size: int) -> dict[str, float]:
        """Return lm-eval's metrics for a text with this number of words and bytes."""
        values = exp(self.sum / words), exp(self.sum / size), self.sum / size / log(2)
        return dict(zip(PER_UNIT, values))

    @property
    def value(self) -> float:
        """exp of the mean negative log-likelihood."""
        return exp(self.sum / self.tokens)

    @property
    def uncertainty(self) -> float:
        """Standard error of the perplexity, as llama.cpp states it; 0 for one token."""
        if self.tokens < 2:
            return 0.0
        mean = self.sum / self.tokens
        return sqrt(max(self.squares / self.tokens - mean * mean, 0.0) / (self.tokens - 1)) * self.value


class Divergence:
    """KL divergence of a model from a base, position by position: one f64 for each scored token."""

    def __init__(self) -> None:
        self._values: list[np.ndarray] = []
        self._same_top = 0

    def add(self, base: torch.Tensor, log_probabilities: torch.Tensor, floor: float) -> None:
        """Add positions: log-probabilities of base and model, [positions, vocabulary] in f64.

        Log-probabilities of the base up to `floor` do not count.
        """
        self._values.append(divergences(base, log_probabilities, floor).numpy())
        self._same_top += int((base.argmax(1) == log_probabilities.argmax(1)).sum())

    def state(self) -> dict[str, Any]:
        """Return the values of all positions and the number of equal top tokens, for JSON."""
        values = np.concatenate(self._values).astype("<f8").tobytes() if self._values else b""
        return {"values": base64.b64encode(values).decode(), "same_top": self._same_top}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from stored values."""
        self._values = [np.frombuffer(base64.b64decode(state["values"]), "<f8")]
        self._same_top = state["same_top"]

    @property
    def same_top(self) -> float:
        """Share of positions where both models find the same token most probable."""
        return self._same_top / sum(map(len, self._values))

    def to_dict(self) -> dict[str, float]:
        """Return `mean`, `max` and quantiles, interpolated as in llama.cpp."""
        values = np.concatenate(self._values)
        quantiles = {name: float(np.quantile(values, fraction)) for name, fraction in QUANTILES.items()}
        return {"mean": float(values.mean()), "max": float(values.max()), **quantiles}


def slices(logits: torch.Tensor) -> list[slice]:
    """Return ranges of positions with at most `SLICE` logits each."""
    rows = max(1, SLICE // logits.shape[1])
    return [slice(start, start + rows) for start in range(0, len(logits), rows)]


def divergences(base: torch.Tensor, log_probabilities: torch.Tensor, floor: float = -inf) -> torch.Tensor:
    """Return the KL divergence from the base at each position, where the base's log-probabilities exceed `floor`."""
    terms = base.exp() * (base - log_probabilities)
    return torch.where(base > floor, terms, 0.0).sum(1)


def log_softmax(logits: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities in f64."""
    return torch.log_softmax(logits.double(), 1)
