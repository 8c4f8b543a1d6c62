"""Summary statistics of values in one pass: moments, quantiles, zeros, and a histogram of magnitudes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import gcd, inf, isfinite, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import define, evolve, field, frozen

from squish_core.backends.base import Counts
from squish_core.display import fit_all, table, to_json
from squish_core.errors import CodecError
from squish_core.shown import Plotted

if TYPE_CHECKING:
    from squish_core.backends.weight import Weight

COUNTED = ("values", "zeros", "nan", "infinite", "min", "max", "negative", "positive")
"""Fields that come from counts."""
QUANTILES = (0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
OUTLIER = 3
"""Standard deviations from the mean beyond which a value is an outlier; 0.27 % of normal values are."""
MOST_EXACT = 1 << 24
"""Values of which quantiles are exact; of a larger tensor they are those of an even sample of about as many."""
_STEP = 1 << 15
"""Values per step, whose f64 copies fit the cache."""
_SMALL, _NONFINITE = 0, 255
"""f32 exponent fields of zeros and subnormals, and of infinities and NaNs."""
LOWEST = -127
"""The power of two for f32 subnormals."""


@frozen(kw_only=True, repr=False)
class Statistics(Plotted):
    """Summary statistics of a tensor. Extremes, moments and quantiles cover finite values; None if there are none.

    `std` is that of the population, as NumPy's. `quantiles`: share -> value, interpolated as NumPy does. `outliers`:
    share of values more than 3 standard deviations from the mean. `sampled`: number of values from which quantiles
    and outliers come; all up to 16,777,216, else an even sample (`exact` says which).

    `negative` and `positive`: k -> number of finite values with a magnitude in [2**k, 2**(k + 1)). Bins at powers of
    two need no range in advance, and show what another float dtype would lose. `LOWEST` counts nonzero magnitudes
    below 2**-126, and 127 those of 2**127 and more.
    """

    values: int
    zeros: int
    nan: int
    infinite: int
    min: float | None
    max: float | None
    negative: Mapping[int, int]
    positive: Mapping[int, int]
    mean: float | None = None
    std: float | None = None
    rms: float | None = None
    quantiles: Mapping[float, float] = field(factory=dict)
    outliers: float | None = None
    sampled: int = 0

    @classmethod
    def of(cls, counts: Counts) -> Statistics:
        """Build from counts, without moments and quantiles."""
        powers, zeros, nan, low, high = counts
        powers = powers.copy()
        powers[:, _SMALL] -= zeros
        nonfinite = int(powers[:, _NONFINITE].sum())
        positive, negative = (
            {k + LOWEST: count for k, count in enumerate(side[:_NONFINITE].tolist()) if count} for side in powers
        )
        zero = int(zeros.sum())
        return cls(
            values=int(powers.sum()) + zero,
            zeros=zero,
            nan=nan,
            infinite=nonfinite - nan,
            min=low + 0.0 if isfinite(low) else None,
            max=high + 0.0 if isfinite(high) else None,
            negative=negative,
            positive=positive,
        )

    @property
    def absmax(self) -> float | None:
        """The largest magnitude of a finite value."""
        return None if self.min is None or self.max is None else max(-self.min, self.max)

    @property
    def exact(self) -> bool:
        """Whether quantiles and outliers are those of all values."""
        return self.sampled == self.values - self.nan - self.infinite

    def __repr__(self) -> str:
        nonfinite = (("nan", self.nan), ("infinite", self.infinite))
        counts = "".join(f" {name}={count}" for name, count in nonfinite if count)
        return f"<Statistics values={self.values} zeros={self.zeros}{counts} min={self.min} max={self.max}>"

    def __str__(self) -> str:
        return "\n".join(fit_all(statistics_lines(self)))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON.

        Returns
        -------
        dict
            The fields by name, `absmax` and `exact`.

        Examples
        --------
        >>> squish.open("model.gguf")["blk.0.ffn_norm.weight"].statistics().to_dict()["absmax"]
        1.0
        """
        return {**to_json(self), "absmax": self.absmax, "exact": self.exact}


COLUMNS = ("min", "max", "mean", "std", "outlier", "zeros", "inf", "NaN")
BAR = 40
"""Characters of the longest bar."""


def statistics_row(statistics: Statistics) -> tuple[str, ...]:
    """Return the cells for `COLUMNS`."""
    moments = (statistics.min, statistics.max, statistics.mean, statistics.std)
    cells = ("none" if value is None else f"{value:.4g}" for value in moments)
    outliers = "none" if statistics.outliers is None else f"{statistics.outliers:.2%}"
    counts = (statistics.zeros, statistics.infinite, statistics.nan)
    return *cells, outliers, *(f"{count:,}" for count in counts)


def statistics_lines(statistics: Statistics) -> list[str]:
    """Moments and counts, the quantiles, then the histogram of magnitudes."""
    rows = table(COLUMNS, ">" * len(COLUMNS), [statistics_row(statistics)])
    return [*rows, *quantile_lines(statistics), "", *magnitudes(statistics)]


def quantile_lines(statistics: Statistics) -> list[str]:
    """The quantiles as a table, below an empty line; nothing without finite values."""
    header = [f"{share:.3g}" for share in statistics.quantiles]
    values = [f"{value:.3g}" for value in statistics.quantiles.values()]
    note = [] if statistics.exact else [f"of an even sample of {statistics.sampled:,} values"]
    lines = table(("quantile", *header), "<" + ">" * len(header), [("", *values)])
    return ["", *lines, *note] if header else []


def magnitudes(statistics: Statistics) -> list[str]:
    """Number of values per power of two, with a bar for both signs together."""
    both = Counter(statistics.negative) + Counter(statistics.positive)
    rows = []
    for k, count in sorted(both.items()):
        start = f"2^{k} = {2.0**k:.3g}" if k > LOWEST else "0"
        signs = (f"{side.get(k, 0):,}" for side in (statistics.negative, statistics.positive))
        rows.append((start, *signs, "#" * -(-BAR * count // max(both.values()))))
    return table(("|x| from", "negative", "positive", ""), ">>><", rows)


def _none(count: int) -> np.ndarray:
    return np.zeros(count, np.int64)


@define
class Tally:
    """Counts values of any real dtype, panel by panel: by f64 sign and exponent, zeros by sign."""

    counts_by_exponent: np.ndarray = field(factory=lambda: _none(1 << 12))
    zeros: np.ndarray = field(factory=lambda: _none(2))
    nan: int = 0
    low: float = inf
    high: float = -inf

    def add(self, values: np.ndarray) -> None:
        """Add a panel."""
        if values.dtype.kind == "c":
            raise CodecError(
                "complex numbers cannot be ordered", expected="real numbers", found=str(values.dtype), code="dtype"
            )
        flat = values.reshape(-1)
        for start in range(0, flat.size, _STEP):
            with np.errstate(invalid="ignore"):  # signaling NaNs
                x = np.ascontiguousarray(flat[start : start + _STEP], np.float64)
            bits = x.view(np.int64)
            self.counts_by_exponent += np.bincount(bits >> 52 & 0xFFF, minlength=self.counts_by_exponent.size)
            self.zeros += [np.count_nonzero(bits == zero) for zero in (0, np.iinfo(np.int64).min)]
            if not (isfinite(x.min()) and isfinite(x.max())):
                self.nan += int(np.count_nonzero(np.isnan(x)))
                x = x[np.isfinite(x)]
            self.low = min(self.low, float(x.min(initial=inf)))
            self.high = max(self.high, float(x.max(initial=-inf)))

    def counts(self) -> Counts:
        """Counts of all panels."""
        shift = 1023 + LOWEST  # f64 exponents beyond the range of f32 are counted in its first and last bins
        starts = [0, *range(shift + 1, shift + _NONFINITE), (1 << 11) - 1]
        powers = np.add.reduceat(self.counts_by_exponent.reshape(2, -1), starts, axis=1)
        return Counts(powers, self.zeros, self.nan, self.low, self.high)


class Moments:
    """Mean, variance and a sample of finite values, panel by panel."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        size = int(np.prod(shape, dtype=object))
        columns = shape[-1] if shape else 1
        self._stride = -(-size // MOST_EXACT) or 1
        while self._stride > 1 and gcd(self._stride, columns) > 1:  # else some columns would never be sampled
            self._stride += 1
        self._seen, self._count, self._mean, self._squares = 0, 0, 0.0, 0.0
        self._sample: list[np.ndarray] = []

    def add(self, values: np.ndarray) -> None:
        """Add a panel."""
        flat = values.reshape(-1)
        narrow = flat.dtype.itemsize <= 2 or flat.dtype == np.float32
        taken = flat[-self._seen % self._stride :: self._stride].astype(np.float32 if narrow else np.float64)
        self._sample.append(taken if np.isfinite(taken).all() else taken[np.isfinite(taken)])
        self._seen += flat.size
        for start in range(0, flat.size, _STEP):
            self._merge(np.asarray(flat[start : start + _STEP], np.float64))

    def _merge(self, x: np.ndarray) -> None:
        """Add a few values: the sum of squares around the mean is merged, which loses no digits."""
        if not isfinite(mean := float(x.mean())):
            x = x[np.isfinite(x)]
            mean = float(x.mean()) if x.size else 0.0
        if x.size:
            total, delta, deviations = self._count + x.size, mean - self._mean, x - mean
            self._squares += float(deviations @ deviations) + delta * delta * self._count * x.size / total
            self._mean += delta * x.size / total
            self._count = total

    def fields(self) -> dict[str, Any]:
        """Fields of `Statistics`."""
        if not self._count:
            return {}
        variance = self._squares / self._count
        std, sample = sqrt(variance), np.concatenate(self._sample)
        far = np.count_nonzero(abs(sample - self._mean) > OUTLIER * std)
        values = np.quantile(sample, QUANTILES, overwrite_input=True) if sample.size else ()
        return {
            "mean": self._mean,
            "std": std,
            "rms": sqrt(variance + self._mean * self._mean),  # ** raises where * is infinite
            "quantiles": dict(zip(QUANTILES, map(float, values))),
            "outliers": far / sample.size if sample.size else None,
            "sampled": sample.size,
        }


def statistics_of_weight(weight: Weight, counts: Counts | None, panels: Iterable[np.ndarray]) -> Statistics:
    """Statistics of a loaded weight, from its panels; its backend may have counted the values already."""
    tally, moments = Tally(), Moments(weight.shape)
    with np.errstate(over="ignore", invalid="ignore"):  # values near the limit of f64, signaling NaNs
        for panel in panels:
            if counts is None:
                tally.add(panel)
            moments.add(panel)
    return evolve(Statistics.of(counts or tally.counts()), **moments.fields())
