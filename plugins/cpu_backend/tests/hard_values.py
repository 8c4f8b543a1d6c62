"""Difficult values for encoders: signs, outliers, zero and constant groups, groups of very different magnitude."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def hard_values() -> Iterator[tuple[str, np.ndarray]]:
    """Name and f32 [16, 1024], seeded."""
    chance = np.random.default_rng(7)
    normal = chance.standard_normal((16, 1024), np.float32)
    yield "plain", normal
    yield "small", normal * np.float32(1e-3)
    yield "positive", np.abs(normal)
    yield "negative", -np.abs(normal)
    yield "integers", np.round(3 * normal)
    yield "flat", np.full_like(normal, 3.25)
    yield "zeros", np.zeros_like(normal)
    yield "half zeros", np.where(chance.random(normal.shape) < 0.7, np.float32(0), normal)
    yield "half of each row zeros", normal * (np.arange(1024) >= 512)
    spread = np.exp(2 * chance.standard_normal((16, 32))).astype(np.float32)
    yield "groups of different size", normal * np.repeat(spread, 32, axis=1)
    outliers = normal.copy()
    outliers[:, ::32] *= 50
    yield "outliers", outliers
    yield "long tails", chance.standard_t(2, normal.shape).astype(np.float32) * np.float32(0.02)
    yield "spikes", np.where(chance.random(normal.shape) < 0.02, normal, np.float32(1e-6))
    yield "halfway between levels", chance.integers(-254, 255, normal.shape).astype(np.float32) / 2
    yield "tiny", normal * np.float32(1e-8)


def activations() -> np.ndarray:
    """Activations of 1024 columns: f32 over a wide range, with zeros, a zero group and a zero block."""
    chance = np.random.default_rng(8)
    seen = np.square(np.square(chance.random(1024, np.float32))) * 100  # `**` rounds differently on other processors
    seen[::13] = 0
    seen[64:96] = 0
    seen[256:512] = 0
    return np.ascontiguousarray(seen, np.float32)
