"""Codebook fitting: k-means and uniform steps; deterministic."""

from __future__ import annotations

import numpy as np

Array = np.ndarray
FITS = ("kmeans", "uniform")
ROUNDS = 100
"""Maximum k-means iterations; weights converge in a few dozen."""
ROWS = 1 << 16
"""Vectors per iteration."""
SAMPLE = 1 << 20
"""Maximum number of values for fitting; larger inputs are sampled evenly."""
POINTS = 1 << 12
"""Sample points of the density of values."""


def codebook(values: Array, entries: int, fit: str) -> Array:
    """Fit a table f32 [entries, vector] to values f32 [count, vector].

    Up to `entries` distinct values are kept exactly. `kmeans` minimizes the squared error
    (Lloyd's algorithm); `uniform` steps evenly from the minimum to the maximum (vectors: along the diagonal).
    """
    if not len(values):
        return np.zeros((entries, values.shape[1]), np.float32)
    if fit == "uniform":
        low, high = values.min(axis=0), values.max(axis=0)
        return np.linspace(low, high, entries, dtype=np.float32)
    # An odd step samples every column of a matrix with a power-of-two width.
    sample = values if len(values) <= SAMPLE else values[:: -(-len(values) // SAMPLE) | 1]
    if values.shape[1] > 1:
        return _vectors(sample, entries)
    ranked = np.sort(sample[:, 0])
    if np.count_nonzero(ranked[1:] != ranked[:-1]) < entries:
        distinct = np.unique(values)
        if len(distinct) <= entries:
            return np.resize(distinct, entries).astype(np.float32)[:, None]
    return _scalars(ranked, entries)


def nearest_vectors(table: Array, values: Array) -> Array:
    """Return the index (u8) of the nearest entry for each vector, the first on ties."""
    codes = np.empty(len(values), np.uint8)
    weight = np.square(table, dtype=np.float64).sum(axis=1)
    for start in range(0, len(values), ROWS):
        rows = values[start : start + ROWS].astype(np.float64)
        codes[start : start + ROWS] = np.argmin(weight - 2 * (rows @ table.T.astype(np.float64)), axis=1)
    return codes


def _scalars(ranked: Array, entries: int) -> Array:
    """Run k-means on sorted scalars: a cluster is a range, its mean a difference of prefix sums."""
    sums = np.concatenate([[0.0], np.cumsum(ranked, dtype=np.float64)])
    centers = _initial_centers(ranked, entries)
    for _ in range(ROUNDS):
        # Rounding a bound to the values' dtype may move a value exactly between two centers.
        bounds = ((centers[1:] + centers[:-1]) / 2).astype(ranked.dtype)
        edges = np.concatenate([[0], np.searchsorted(ranked, bounds, side="right"), [len(ranked)]])
        counts = np.diff(edges)
        means = np.diff(sums[edges]) / np.maximum(counts, 1)
        updated = np.where(counts > 0, means, centers)
        if np.array_equal(updated, centers):
            break
        centers = updated
    return centers.astype(np.float32)[:, None]


def _vectors(values: Array, entries: int) -> Array:
    """Run k-means on vectors, starting from values evenly spaced in the order of their norms."""
    points = values.astype(np.float64)
    order = np.argsort(np.square(points).sum(axis=1), kind="stable")
    centers = points[order[(np.arange(entries) * len(points) + len(points) // 2) // entries]]
    for _ in range(ROUNDS):
        codes = nearest_vectors(centers, values)
        counts = np.bincount(codes, minlength=entries)
        sums = np.stack([np.bincount(codes, points[:, at], entries) for at in range(points.shape[1])], axis=1)
        updated = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centers)
        if np.allclose(updated, centers, rtol=1e-6, atol=0):
            break
        centers = updated
    return centers.astype(np.float32)


def _initial_centers(ranked: Array, entries: int) -> Array:
    """Return initial centers with the cube root of the values' density, optimal for many entries.

    Source: Panter and Dite, 1951. The density is sampled at even ranks, and geometrically denser at both ends.
    """
    last = len(ranked) - 1
    ends = np.geomspace(1, max(last, 1), POINTS // 4).astype(np.int64)
    ranks = np.unique(np.concatenate([np.linspace(0, last, POINTS).astype(np.int64), ends, last - ends]))
    points = ranked[ranks].astype(np.float64)
    places = np.concatenate([[0.0], np.cumsum(np.cbrt(np.diff(ranks) * np.diff(points) ** 2))])
    centers: Array = np.interp((np.arange(entries) + 0.5) / entries * places[-1], places, points)
    return centers
