"""Error metrics between two arrays: exact equality, and sums in f64 over panels."""

from __future__ import annotations

from math import inf, isfinite, log10, nan
from typing import TYPE_CHECKING, Any

from attrs import define

if TYPE_CHECKING:
    import numpy as np


_STEP = 1 << 14
"""Values per step, whose f64 copies fit the cache and memory that the allocator reuses."""
_EXACT = 2.0**53
"""Integers below this are exact in f64."""


@define
class Distance:
    """Error sums over panels of two arrays; equal NaNs and infinities count as equal.

    Values with equal bits are equal. Differences of integers are exact, and `max_error` of complex numbers
    is the modulus of their difference.
    """

    equal: bool = True
    max_error: float = 0.0
    error: float = 0.0
    power: float = 0.0
    norm: float = 0.0

    def add(self, values: np.ndarray, other: np.ndarray) -> None:
        """Add a panel of both."""
        import numpy as np

        flat = values.reshape(-1), other.reshape(-1)
        for start in range(0, values.size, _STEP):
            with np.errstate(all="ignore"):
                self._add(*(np.ascontiguousarray(side[start : start + _STEP]) for side in flat))

    def _add(self, values: np.ndarray, other: np.ndarray) -> None:
        import numpy as np

        pairs = "c" in (values.dtype.kind, other.dtype.kind)
        if pairs:
            values, other = _components(values), _components(other)
        x = values.astype(np.float64, copy=False)
        if _same_bits(values, other):
            y, gap = x, np.zeros_like(x)
        else:
            y = other.astype(np.float64, copy=False)
            gap = _gap(values, other, x, y)
        sums = _squares(gap, x, y)
        if not all(map(isfinite, sums)):
            # Equal NaNs and infinities do not count; other pairs with one have an infinite error.
            nonfinite = ~(np.isfinite(x) & np.isfinite(y))
            equal = (x == y) | (np.isnan(x) & np.isnan(y))
            x, y = (np.where(nonfinite, 0, side) for side in (x, y))
            gap = np.where(nonfinite, np.where(equal, 0, inf), gap)
            sums = _squares(gap, x, y)
        errors = np.hypot(gap[0::2], gap[1::2]) if pairs else gap
        self.take(float(errors.max()), *sums)

    def take(self, max_error: float, error: float, power: float, norm: float) -> None:
        """Add the largest error and the sums of a panel."""
        self.equal = self.equal and max_error == 0
        self.max_error = max(self.max_error, max_error)
        self.error += error
        self.power += power
        self.norm += norm

    def merge(self, other: Distance) -> None:
        """Add the sums of another distance; rounding depends only on the order of the panels."""
        self.take(other.max_error, other.error, other.power, other.norm)

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
        """Cosine similarity."""
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


def _same_bits(values: np.ndarray, other: np.ndarray) -> bool:
    import numpy as np

    return values.dtype == other.dtype and np.array_equal(values.view(np.uint8), other.view(np.uint8))


def _components(values: np.ndarray) -> np.ndarray:
    """Real and imaginary parts, interleaved."""
    import numpy as np

    if values.dtype.kind == "c":
        return values.view(values.real.dtype)
    return np.stack((values, np.zeros_like(values)), axis=-1).reshape(-1)


def _gap(values: np.ndarray, other: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Absolute differences; `x` and `y` are the values in f64, which cannot represent every 64-bit integer."""
    import numpy as np

    gap: np.ndarray = x - y
    np.abs(gap, out=gap)
    sides = (values, other)
    if not any(side.dtype.kind in "iu" and side.itemsize == 8 for side in sides):
        return gap
    if all(side.dtype.kind in "iub" for side in sides):
        a, b = (side.astype(np.uint64) for side in sides)  # modulo 2**64, which keeps the order of negative numbers
        exact = np.where(a > b, a - b, b - a).astype(np.float64)
        return np.where((values < 0) == (other < 0), exact, gap)
    inexact = (gap == 0) & (np.abs(x) >= _EXACT)
    gap[inexact] = [abs(int(a) - int(b)) for a, b in zip(*(side[inexact].tolist() for side in sides))]
    return gap


def _squares(*arrays: np.ndarray) -> list[float]:
    """Sums of squares, by einsum: BLAS would start threads for a small array."""
    import numpy as np

    return [float(np.einsum("i,i", numbers, numbers)) for numbers in arrays]
