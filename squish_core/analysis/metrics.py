"""How far values are from others: exact equality, and sums over panels in f64."""

from __future__ import annotations

from math import inf, isfinite, log10, nan
from typing import TYPE_CHECKING, Any

from attrs import define

if TYPE_CHECKING:
    import numpy as np


_STEP = 1 << 14
"""Values taken at a time: their copies in f64 stay in the cache, and in memory that the allocator keeps."""
_EXACT = 2.0**53
"""Integers below this one are exact in f64."""


@define
class Distance:
    """Sums over panels of values and of what was made of them; equal NaNs and infinities are equal.

    Values with the same bits are equal. Other integers are subtracted as integers, and `max_error` of complex numbers
    is the modulus of their difference.
    """

    equal: bool = True
    max_error: float = 0.0
    error: float = 0.0
    power: float = 0.0
    norm: float = 0.0

    def add(self, values: np.ndarray, others: np.ndarray) -> None:
        """Add a panel of both."""
        import numpy as np

        flat = values.reshape(-1), others.reshape(-1)
        for start in range(0, values.size, _STEP):
            with np.errstate(all="ignore"):
                self._add(*(np.ascontiguousarray(side[start : start + _STEP]) for side in flat))

    def _add(self, values: np.ndarray, others: np.ndarray) -> None:
        import numpy as np

        pairs = "c" in (values.dtype.kind, others.dtype.kind)
        if pairs:
            values, others = _components(values), _components(others)
        x = values.astype(np.float64, copy=False)
        if _same_bits(values, others):
            y, gap = x, np.zeros_like(x)
        else:
            y = others.astype(np.float64, copy=False)
            gap = _gap(values, others, x, y)
        sums = _squares(gap, x, y)
        if not all(map(isfinite, sums)):
            # Equal NaNs and infinities are left out of all sums; others are infinitely far apart.
            odd = ~(np.isfinite(x) & np.isfinite(y))
            equal = (x == y) | (np.isnan(x) & np.isnan(y))
            x, y = (np.where(odd, 0, side) for side in (x, y))
            gap = np.where(odd, np.where(equal, 0, inf), gap)
            sums = _squares(gap, x, y)
        most = np.hypot(gap[0::2], gap[1::2]) if pairs else gap
        self.take(float(most.max()), *sums)

    def take(self, most: float, error: float, power: float, norm: float) -> None:
        """Add the largest error and the sums of a panel of both."""
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


def _same_bits(values: np.ndarray, others: np.ndarray) -> bool:
    import numpy as np

    return values.dtype == others.dtype and np.array_equal(values.view(np.uint8), others.view(np.uint8))


def _components(values: np.ndarray) -> np.ndarray:
    """Real and imaginary parts in turn."""
    import numpy as np

    if values.dtype.kind == "c":
        return values.view(values.real.dtype)
    return np.stack((values, np.zeros_like(values)), axis=-1).reshape(-1)


def _gap(values: np.ndarray, others: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Absolute differences; `x` and `y` are the same numbers in f64, which does not hold every integer of 64 bits."""
    import numpy as np

    gap: np.ndarray = x - y
    np.abs(gap, out=gap)
    sides = (values, others)
    if not any(side.dtype.kind in "iu" and side.itemsize == 8 for side in sides):
        return gap
    if all(side.dtype.kind in "iub" for side in sides):
        a, b = (side.astype(np.uint64) for side in sides)  # modulo 2**64, which keeps the order of negative numbers
        exact = np.where(a > b, a - b, b - a).astype(np.float64)
        return np.where((values < 0) == (others < 0), exact, gap)
    rounded = (gap == 0) & (np.abs(x) >= _EXACT)
    gap[rounded] = [abs(int(a) - int(b)) for a, b in zip(*(side[rounded].tolist() for side in sides))]
    return gap


def _squares(*arrays: np.ndarray) -> list[float]:
    """Sums of squares; by einsum, because a BLAS would start its threads for so little."""
    import numpy as np

    return [float(np.einsum("i,i", numbers, numbers)) for numbers in arrays]
