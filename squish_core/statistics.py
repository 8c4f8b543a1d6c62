"""Summary statistics of values in one pass: extremes, zeros, and a histogram of magnitudes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from squish_core.display import fit_all, page, table, to_json
from squish_core.errors import CodecError

if TYPE_CHECKING:
    import numpy as np

_STEP = 1 << 15
"""Values per step, whose f64 copies fit the cache."""
_SMALL, _NONFINITE = 0, 255
"""f32 exponent fields of zeros and subnormals, and of infinities and NaNs."""
LOWEST = -127
"""The power of two for f32 subnormals."""


@frozen(kw_only=True, repr=False)
class Statistics:
    """Summary statistics of a tensor. `min` and `max` cover finite values; None if there are none.

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

    @classmethod
    def of(cls, powers: np.ndarray, zeros: np.ndarray, nan: int, low: float, high: float) -> Statistics:
        """Build from counts: `powers` [2, 256] by sign and exponent field of f32, `zeros` [2] by sign.

        `low` and `high` are infinite if no value is finite.
        """
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

    def __repr__(self) -> str:
        nonfinite = (("nan", self.nan), ("infinite", self.infinite))
        counts = "".join(f" {name}={count}" for name, count in nonfinite if count)
        return f"<Statistics values={self.values} zeros={self.zeros}{counts} min={self.min} max={self.max}>"

    def __str__(self) -> str:
        return "\n".join(fit_all(statistics_lines(self)))

    def _repr_html_(self) -> str:
        return page(statistics_lines(self))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON.

        Returns
        -------
        dict
            The fields by name, and `absmax`.

        Examples
        --------
        >>> squish.open("model.gguf")["blk.0.ffn_norm.weight"].statistics().to_dict()["absmax"]
        1.0
        """
        return {**to_json(self), "absmax": self.absmax}


COLUMNS = ("min", "max", "values", "zeros", "infinite", "NaN")
BAR = 40
"""Characters of the longest bar."""


def statistics_row(statistics: Statistics) -> tuple[str, ...]:
    """Return the cells for `COLUMNS`."""
    extremes = ("none" if value is None else f"{value:.6g}" for value in (statistics.min, statistics.max))
    counts = (statistics.values, statistics.zeros, statistics.infinite, statistics.nan)
    return *extremes, *(f"{count:,}" for count in counts)


def statistics_lines(statistics: Statistics) -> list[str]:
    """Extremes and counts, then the histogram of magnitudes."""
    return [*table(COLUMNS, ">>>>>>", [statistics_row(statistics)]), "", *magnitudes(statistics)]


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
    import numpy as np

    return np.zeros(count, np.int64)


@define
class Tally:
    """Counts values of any real dtype, panel by panel: by f64 sign and exponent, zeros by sign."""

    counts: np.ndarray = field(factory=lambda: _none(1 << 12))
    zeros: np.ndarray = field(factory=lambda: _none(2))
    nan: int = 0
    low: float = inf
    high: float = -inf

    def add(self, values: np.ndarray) -> None:
        """Add a panel."""
        import numpy as np

        if values.dtype.kind == "c":
            raise CodecError(
                "complex numbers cannot be ordered", expected="real numbers", found=str(values.dtype), code="dtype"
            )
        flat = values.reshape(-1)
        for start in range(0, flat.size, _STEP):
            with np.errstate(invalid="ignore"):  # signaling NaNs
                x = np.ascontiguousarray(flat[start : start + _STEP], np.float64)
            bits = x.view(np.int64)
            self.counts += np.bincount(bits >> 52 & 0xFFF, minlength=self.counts.size)
            self.zeros += [np.count_nonzero(bits == zero) for zero in (0, np.iinfo(np.int64).min)]
            if not (isfinite(x.min()) and isfinite(x.max())):
                self.nan += int(np.count_nonzero(np.isnan(x)))
                x = x[np.isfinite(x)]
            self.low = min(self.low, float(x.min(initial=inf)))
            self.high = max(self.high, float(x.max(initial=-inf)))

    def statistics(self) -> Statistics:
        """Statistics of all panels."""
        import numpy as np

        shift = 1023 + LOWEST  # f64 exponents beyond the range of f32 are counted in its first and last bins
        starts = [0, *range(shift + 1, shift + _NONFINITE), (1 << 11) - 1]
        powers = np.add.reduceat(self.counts.reshape(2, -1), starts, axis=1)
        return Statistics.of(powers, self.zeros, self.nan, self.low, self.high)
