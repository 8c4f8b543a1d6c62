"""How far values are from others: sums over panels, in f64."""

from __future__ import annotations

from math import inf, isfinite, log10, nan
from typing import TYPE_CHECKING, Any

from attrs import define

if TYPE_CHECKING:
    import numpy as np


_STEP = 1 << 15
"""Values taken at a time: their copies in f64 stay in the cache."""


@define
class Distance:
    """Sums over panels of values and of what was made of them; equal NaNs and infinities are equal."""

    equal: bool = True
    max_error: float = 0.0
    error: float = 0.0
    power: float = 0.0
    norm: float = 0.0

    def add(self, values: np.ndarray, others: np.ndarray) -> None:
        """Take in a panel of both."""
        import numpy as np

        flat = values.reshape(-1), others.reshape(-1)
        for start in range(0, values.size, _STEP):
            x, y = (np.asarray(side[start : start + _STEP], np.float64) for side in flat)
            with np.errstate(invalid="ignore"):
                gap = x - y
            most = max(float(gap.max()), -float(gap.min()))
            if not isfinite(most):
                # Equal NaNs and infinities are left out of all sums; others are infinitely far apart.
                odd = ~(np.isfinite(x) & np.isfinite(y))
                equal = (x == y) | (np.isnan(x) & np.isnan(y))
                x, y = (np.where(odd, 0, side) for side in (x, y))
                gap = np.where(odd & ~equal, inf, x - y)
                most = float(np.abs(gap).max())
            # einsum, because a BLAS would start its threads for so little
            self.take(most, *(float(np.einsum("i,i", each, each)) for each in (gap, x, y)))

    def take(self, most: float, error: float, power: float, norm: float) -> None:
        """Take in what was found for a panel of both: the largest error, and the sums."""
        self.equal = self.equal and most == 0
        self.max_error = max(self.max_error, most)
        self.error += error
        self.power += power
        self.norm += norm

    @property
    def nmse(self) -> float:
        """Squared error over squared values."""
        return 0.0 if self.equal else self.error / self.power if self.power else inf

    @property
    def snr(self) -> float:
        """Signal-to-noise ratio in dB."""
        return -10 * log10(self.nmse) if 0 < self.nmse < inf else -inf if self.nmse else inf

    @property
    def cosine(self) -> float:
        """Cosine of the angle between the two."""
        if self.equal:
            return 1.0
        if not (self.power and self.norm):
            return 0.0
        if not isfinite(self.error):
            return nan
        dot = (self.power + self.norm - self.error) / 2
        return dot / (self.power * self.norm) ** 0.5

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON: SNR in dB."""
        return {"snr": self.snr, "nmse": self.nmse, "max_error": self.max_error, "cosine": self.cosine}
