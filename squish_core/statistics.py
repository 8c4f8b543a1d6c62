"""Summary statistics of values: extremes, zeros, and a histogram of magnitudes, in one pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from squish_core.display.notebook import page
from squish_core.display.tables import fit_all, table
from squish_core.errors import CodecError
from squish_core.model import to_json

if TYPE_CHECKING:
    import numpy as np

_STEP = 1 << 15
"""Values per step: their f64 copies stay in the cache."""
_SMALL, _ODD = 0, 255
"""Stored f32 exponents of zeros and subnormals, and of infinities and NaNs."""
LOWEST = -127
"""The power of two that f32 subnormals are counted under."""


@frozen(kw_only=True, repr=False)
class Statistics:
    """Summary statistics of a tensor. `least` and `greatest` cover finite values; None if there are none.

    `negative` and `positive`: k -> number of finite values with a magnitude in [2**k, 2**(k + 1)). Powers of two need
    no range in advance, and show what another float type would lose. `LOWEST` counts magnitudes below 2**-126 except
    0, 127 those from 2**127 on.
    """

    values: int
    zeros: int
    nan: int
    infinite: int
    least: float | None
    greatest: float | None
    negative: Mapping[int, int]
    positive: Mapping[int, int]

    @classmethod
    def of(cls, powers: np.ndarray, zeros: np.ndarray, nan: int, least: float, greatest: float) -> Statistics:
        """From counts: `powers` [2, 256] by sign and exponent as an f32 stores them, `zeros` [2] by sign; the extremes
        are infinite where no value is finite."""
        powers = powers.copy()
        powers[:, _SMALL] -= zeros
        odd = int(powers[:, _ODD].sum())
        positive, negative = (
            {at + LOWEST: count for at, count in enumerate(side[:_ODD].tolist()) if count} for side in powers
        )
        zero = int(zeros.sum())
        return cls(
            values=int(powers.sum()) + zero, zeros=zero, nan=nan, infinite=odd - nan,
            least=least + 0.0 if isfinite(least) else None, greatest=greatest + 0.0 if isfinite(greatest) else None,
            negative=negative, positive=positive,
        )  # fmt: skip

    @property
    def absmax(self) -> float | None:
        """The largest magnitude of a finite value."""
        return None if self.least is None or self.greatest is None else max(-self.least, self.greatest)

    def __repr__(self) -> str:
        odd = "".join(f" {name}={count}" for name, count in (("nan", self.nan), ("infinite", self.infinite)) if count)
        return f"<Statistics values={self.values} zeros={self.zeros}{odd} least={self.least} greatest={self.greatest}>"

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
    """The cells of `COLUMNS`."""
    extremes = ("none" if value is None else f"{value:.6g}" for value in (statistics.least, statistics.greatest))
    counts = (statistics.values, statistics.zeros, statistics.infinite, statistics.nan)
    return *extremes, *(f"{count:,}" for count in counts)


def statistics_lines(statistics: Statistics) -> list[str]:
    """Extremes and counts, then how many values have which magnitude."""
    return [*table(COLUMNS, ">>>>>>", [statistics_row(statistics)]), "", *magnitudes(statistics)]


def magnitudes(statistics: Statistics) -> list[str]:
    """Counts of values from a power of two to the next, with a bar for both signs together."""
    both = Counter(statistics.negative) + Counter(statistics.positive)
    rows = [
        (f"2^{at} = {2.0**at:.3g}" if at > LOWEST else "0", f"{statistics.negative.get(at, 0):,}",
         f"{statistics.positive.get(at, 0):,}", "#" * -(-BAR * count // max(both.values())))
        for at, count in sorted(both.items())
    ]  # fmt: skip
    return table(("|x| from", "negative", "positive", ""), ">>><", rows)


def _none(count: int) -> np.ndarray:
    import numpy as np

    return np.zeros(count, np.int64)


@define
class Tally:
    """Counts over panels of values of any real dtype: by the sign and exponent that they have as f64; zeros by sign."""

    counts: np.ndarray = field(factory=lambda: _none(1 << 12))
    zeros: np.ndarray = field(factory=lambda: _none(2))
    nan: int = 0
    least: float = inf
    greatest: float = -inf

    def add(self, values: np.ndarray) -> None:
        """Take in a panel."""
        import numpy as np

        if values.dtype.kind == "c":
            raise CodecError("complex numbers have no order", expected="real numbers", found=str(values.dtype))
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
            self.least = min(self.least, float(x.min(initial=inf)))
            self.greatest = max(self.greatest, float(x.max(initial=-inf)))

    def statistics(self) -> Statistics:
        """All that was taken in."""
        import numpy as np

        apart = 1023 + LOWEST  # exponents of f64 and of f32: what is past those of f32 is counted with its last ones
        starts = [0, *range(apart + 1, apart + _ODD), (1 << 11) - 1]
        powers = np.add.reduceat(self.counts.reshape(2, -1), starts, axis=1)
        return Statistics.of(powers, self.zeros, self.nan, self.least, self.greatest)
