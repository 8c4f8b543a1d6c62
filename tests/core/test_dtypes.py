"""Element types."""

from __future__ import annotations

import numpy as np
import pytest

from squish_core import dtypes

SMALL = [name for name in dtypes.NAMES if dtypes.bits(name) in (8, 16) and name != "bool"]


@pytest.mark.parametrize("source", SMALL)
@pytest.mark.parametrize("target", [name for name in dtypes.FLOATS if dtypes.bits(name) >= 8])
def test_a_dtype_holds_another_exactly_if_no_value_changes(source: str, target: str) -> None:
    """NumPy calls casts between small floats, and of bytes to them, safe that are not."""
    width = dtypes.bits(source)
    values = np.arange(1 << width, dtype=f"u{width // 8}").view(dtypes.to_numpy(source))
    with np.errstate(all="ignore"):
        before = values.astype(np.float64)
        after = dtypes.cast(values, target).astype(np.float64)
    same = ((before == after) | (np.isnan(before) & np.isnan(after))).all()
    assert dtypes.holds(target, source) == bool(same)
