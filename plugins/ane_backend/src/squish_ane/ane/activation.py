"""Activation tables: 33 knots that the engine interpolates, in the budget that they share with palettes.

Source: chapter 25, per-output-channel-group packing. The chapter counts 43 entries, its fields make 42: the last entry
here is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from attrs import field, frozen

from squish_core.api import SquishError

KNOTS, ENTRIES = 33, 43
SEGMENTS = KNOTS - 1
BYTES = ENTRIES * 2
FUNCTIONS: Mapping[str, tuple[Callable[[float], float], tuple[float, float]]] = {
    "sigmoid": (lambda x: 1 / (1 + math.exp(-x)), (-8.0, 8.0)),
    "tanh": (math.tanh, (-4.0, 4.0)),
    "silu": (lambda x: x / (1 + math.exp(-x)), (-8.0, 8.0)),
    "gelu": (lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))), (-4.0, 4.0)),
    "relu": (lambda x: max(x, 0.0), (-8.0, 8.0)),
}
"""Name -> the function and the domain over which its knots lie; the domains are ours."""


def _half(values: Sequence[float] | np.ndarray) -> np.ndarray:
    return np.asarray(values, np.float16)


@frozen(kw_only=True, eq=False)
class ActivationTable:
    """A table of half-precision entries: `domain` of the input, and the values at 33 knots at equal distances.

    `tails` (coefficients of extrapolation), `flag` and `mode` are only stored: `evaluate` clamps.
    """

    domain: tuple[float, float]
    knots: np.ndarray = field(converter=_half)
    tails: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    flag: float = 0.0
    mode: float = 0.0

    def __attrs_post_init__(self) -> None:
        low, high = self.domain
        if self.knots.shape != (KNOTS,) or not low < high:
            raise SquishError(
                "invalid activation table",
                expected=f"{KNOTS} knots over an increasing domain",
                found=f"{list(self.knots.shape)} over {low} to {high}",
                code="activation",
            )

    @classmethod
    def of(cls, name: str) -> ActivationTable:
        """Return the table of a function of `FUNCTIONS`."""
        function, (low, high) = FUNCTIONS[name]
        return cls(domain=(low, high), knots=[function(x) for x in np.linspace(low, high, KNOTS)])

    @property
    def scale(self) -> float:
        """Segments per unit of the input."""
        return SEGMENTS / (self.domain[1] - self.domain[0])

    def entries(self) -> np.ndarray:
        """Return the 43 entries: clamps, flag, scale, knots, tails, mode, and one that the chapter does not name."""
        fields = (*self.domain, self.flag, self.scale, *self.knots, *self.tails, self.mode, 0.0)
        return np.array(fields, np.float16)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        """Return the values that the engine computes, in half precision.

        The input maps onto the segments; its integer part selects one, its fraction interpolates between the knots.
        Beyond the domain, the result is the value at the end knot; NaN maps to the lower end.
        """
        low, high = self.domain
        inputs = np.nan_to_num(np.asarray(x, np.float32), nan=low, posinf=high, neginf=low)
        place = (np.clip(inputs, low, high) - np.float32(low)) * np.float32(self.scale)
        segment = np.minimum(place.astype(np.int32), SEGMENTS - 1)
        fraction = (place - segment).astype(np.float16)
        start, end = self.knots[segment], self.knots[segment + 1]
        return np.asarray(start + fraction * (end - start), np.float16)

    def error(self, name: str) -> float:
        """Return the largest difference from a function of `FUNCTIONS` over the domain, sampled within each segment."""
        x = np.linspace(*self.domain, 16 * SEGMENTS + 1)
        exact = np.array([FUNCTIONS[name][0](value) for value in x])
        return float(np.abs(self.evaluate(x).astype(np.float64) - exact).max())
