"""Codebooks for values: k-means, and equal steps. Deterministic; no random start."""

from __future__ import annotations

import numpy as np

Array = np.ndarray
FITS = ("kmeans", "uniform")
ROUNDS = 100
"""Most rounds of k-means; on weights it settles in a few dozen."""
ROWS = 1 << 16
"""Vectors compared with all entries at a time."""
SAMPLE = 1 << 20
"""Most values that a codebook is fitted to; more are thinned out evenly."""
POINTS = 1 << 12
"""Places where the density of values is looked at."""


def codebook(values: Array, entries: int, fit: str) -> Array:
    """A table f32 [entries, vector] for values f32 [count, vector]; those that are few enough stand in it as they are.

    `kmeans` lowers the squared error (Lloyd's rounds from quantiles); `uniform` steps evenly from the smallest
    value to the largest (vectors: along each axis of the diagonal).
    """
    if not len(values):
        return np.zeros((entries, values.shape[1]), np.float32)
    if fit == "uniform":
        low, high = values.min(axis=0), values.max(axis=0)
        return np.linspace(low, high, entries, dtype=np.float32)
    # An odd step meets every column of a matrix whose width is a power of two.
    sample = values if len(values) <= SAMPLE else values[:: -(-len(values) // SAMPLE) | 1]
    if values.shape[1] > 1:
        return _vectors(sample, entries)
    ranked = np.sort(sample[:, 0])
    if np.count_nonzero(ranked[1:] != ranked[:-1]) < entries:
        found = np.unique(values)
        if len(found) <= entries:
            return np.resize(found, entries).astype(np.float32)[:, None]
    return _scalars(ranked, entries)


def nearest_vectors(table: Array, values: Array) -> Array:
    """The index (u8) of the entry nearest to each vector; of equals the first."""
    found = np.empty(len(values), np.uint8)
    weight = np.square(table, dtype=np.float64).sum(axis=1)
    for start in range(0, len(values), ROWS):
        rows = values[start : start + ROWS].astype(np.float64)
        found[start : start + ROWS] = np.argmin(weight - 2 * (rows @ table.T.astype(np.float64)), axis=1)
    return found


def _scalars(ranked: Array, entries: int) -> Array:
    """One dimension, sorted: a cluster is a run, and its mean a difference of two sums."""
    sums = np.concatenate([[0.0], np.cumsum(ranked, dtype=np.float64)])
    centers = _spread(ranked, entries)
    for _ in range(ROUNDS):
        # A bound that is rounded to the values' dtype may move a value that lies half way.
        bounds = ((centers[1:] + centers[:-1]) / 2).astype(ranked.dtype)
        edges = np.concatenate([[0], np.searchsorted(ranked, bounds, side="right"), [len(ranked)]])
        counts = np.diff(edges)
        means = np.diff(sums[edges]) / np.maximum(counts, 1)
        moved = np.where(counts > 0, means, centers)
        if np.array_equal(moved, centers):
            break
        centers = moved
    return centers.astype(np.float32)[:, None]


def _vectors(values: Array, entries: int) -> Array:
    """Lloyd's rounds over vectors, from the values at even steps along their sorted norms."""
    points = values.astype(np.float64)
    order = np.argsort(np.square(points).sum(axis=1), kind="stable")
    centers = points[order[(np.arange(entries) * len(points) + len(points) // 2) // entries]]
    for _ in range(ROUNDS):
        codes = nearest_vectors(centers, values)
        counts = np.bincount(codes, minlength=entries)
        sums = np.stack([np.bincount(codes, points[:, at], entries) for at in range(points.shape[1])], axis=1)
        moved = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centers)
        if np.allclose(moved, centers, rtol=1e-6, atol=0):
            break
        centers = moved
    return centers.astype(np.float32)


def _spread(ranked: Array, entries: int) -> Array:
    """Where to start: as dense as the cube root of the values' density, which is best for many entries.

    Source: Panter and Dite, 1951. The density is looked at between even ranks, and ever closer ones at both ends.
    """
    last = len(ranked) - 1
    ends = np.geomspace(1, max(last, 1), POINTS // 4).astype(np.int64)
    ranks = np.unique(np.concatenate([np.linspace(0, last, POINTS).astype(np.int64), ends, last - ends]))
    points = ranked[ranks].astype(np.float64)
    places = np.concatenate([[0.0], np.cumsum(np.cbrt(np.diff(ranks) * np.diff(points) ** 2))])
    found: Array = np.interp((np.arange(entries) + 0.5) / entries * places[-1], places, points)
    return found
