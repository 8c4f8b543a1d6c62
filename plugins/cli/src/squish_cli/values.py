"""`squish info FILE PATTERN`: statistics of the values of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from squish_core.display.tables import table
from squish_core.statistics import COLUMNS, magnitudes, statistics_row

from .output import Answer

if TYPE_CHECKING:
    from squish_core.tensor import Tensor


def values(file: str, tensors: Sequence[Tensor]) -> Answer:
    """Statistics of each tensor, with counts by magnitude if there is only one."""
    pairs = [(tensor, tensor.statistics()) for tensor in tensors]
    data = [
        {"name": tensor.name, "shape": tensor.shape, "dtype": tensor.dtype, "codec": tensor.codec, **stats.to_dict()}
        for tensor, stats in pairs
    ]  # fmt: skip
    rows = [(*statistics_row(stats), tensor.name) for tensor, stats in pairs]
    lines = table((*COLUMNS, "name"), ">>>>>><", rows)
    if len(pairs) == 1:
        lines += ["", *magnitudes(pairs[0][1])]
    return Answer({"file": file, "tensors": data}, lines)
