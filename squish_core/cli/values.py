"""What `squish info` tells of the values of tensors that are named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from squish_core.cli.output import Answer, table
from squish_core.statistics import LOWEST

if TYPE_CHECKING:
    from squish_core.statistics import Statistics
    from squish_core.tensor import Tensor

BAR = 40
"""Characters of the longest bar."""


def values(file: str, tensors: Sequence[Tensor]) -> Answer:
    """Statistics of each tensor; for one alone, the counts by magnitude too."""
    found = [(tensor, tensor.statistics()) for tensor in tensors]
    data = [
        {"name": tensor.name, "shape": tensor.shape, "dtype": tensor.dtype, "codec": tensor.codec, **told.to_dict()}
        for tensor, told in found
    ]  # fmt: skip
    rows = [
        (*map(shown, (told.least, told.greatest)),
         *(f"{count:,}" for count in (told.values, told.zeros, told.infinite, told.nan)), tensor.name)
        for tensor, told in found
    ]  # fmt: skip
    lines = table(("least", "greatest", "values", "zeros", "infinite", "NaN", "name"), ">>>>>><", rows)
    if len(found) == 1:
        lines += ["", *magnitudes(found[0][1])]
    return Answer({"file": file, "tensors": data}, lines)


def shown(number: float | None) -> str:
    """A value in a few digits."""
    return "none" if number is None else f"{number:.6g}"


def magnitudes(told: Statistics) -> list[str]:
    """Counts of values from a power of two to the next, with a bar for both signs together."""
    both = Counter(told.negative) + Counter(told.positive)
    rows = [
        (f"2^{at} = {2.0**at:.3g}" if at > LOWEST else "0", f"{told.negative.get(at, 0):,}",
         f"{told.positive.get(at, 0):,}", "#" * -(-BAR * count // max(both.values())))
        for at, count in sorted(both.items())
    ]  # fmt: skip
    return table(("from", "negative", "positive", ""), ">>><", rows)
