"""Difficult values for encoders: signs, outliers, zero and constant groups, groups of very different magnitude."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def hard_values() -> Iterator[tuple[str, np.ndarray]]:
    """Name and f32 [16, 1024], seeded."""
    chance = np.random.default_rng(7)
    plain = chance.standard_normal((16, 1024), np.float32)
    yield "plain", plain
    yield "small", plain * np.float32(1e-3)
    yield "positive", np.abs(plain)
    yield "negative", -np.abs(plain)
    yield "integers", np.round(3 * plain)
    yield "flat", np.full_like(plain, 3.25)
    yield "zeros", np.zeros_like(plain)
    yield "half zeros", np.where(chance.random(plain.shape) < 0.7, np.float32(0), plain)
    yield "half of each row zeros", plain * (np.arange(1024) >= 512)
    spread = np.exp(2 * chance.standard_normal((16, 32))).astype(np.float32)
    yield "groups of different size", plain * np.repeat(spread, 32, axis=1)
    outliers = plain.copy()
    outliers[:, ::32] *= 50
    yield "outliers", outliers
    yield "long tails", chance.standard_t(2, plain.shape).astype(np.float32) * np.float32(0.02)
    yield "spikes", np.where(chance.random(plain.shape) < 0.02, plain, np.float32(1e-6))
    yield "halfway between levels", chance.integers(-254, 255, plain.shape).astype(np.float32) / 2
    yield "tiny", plain * np.float32(1e-8)


def activations() -> np.ndarray:
    """Activations of 1024 columns: f32 over a wide range, with zeros, a zero group and a zero block."""
    chance = np.random.default_rng(8)
    seen = chance.random(1024, np.float32) ** 4 * 100
    seen[::13] = 0
    seen[64:96] = 0
    seen[256:512] = 0
    return np.ascontiguousarray(seen, np.float32)
