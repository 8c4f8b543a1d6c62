"""MLX and the device under it: the one place that knows whether there is a GPU."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import numpy as np

from squish_core.api import Availability, dtypes

if TYPE_CHECKING:
    import mlx.core as mx

VARIABLE = "SQUISH_METAL"
"""`cpu` lets the backend run where MLX has no Metal device: for checks, it is slower than the NumPy backend."""
_NONE = Availability(
    ok=False, reason=f"MLX has no Metal device here; {VARIABLE}=cpu runs what it can on the CPU, for checks"
)


def probe() -> Availability:
    """Whether MLX is here and has a Metal device; elsewhere than on a Mac it is not even imported to say no."""
    on_cpu = os.environ.get(VARIABLE) == "cpu"
    if sys.platform != "darwin" and not on_cpu:
        return _NONE
    try:
        import mlx.core as mx
    except ImportError as error:
        return Availability(ok=False, reason=f"MLX cannot be imported: {error} (`pip install mlx`)")
    facts = {"mlx": mx.__version__}  # type: ignore[attr-defined]  # the stubs lack it
    if mx.metal.is_available():
        return Availability(ok=True, device=str(mx.device_info().get("device_name", "Metal")), facts=facts)
    return Availability(ok=True, device="CPU", facts=facts, emulated=True) if on_cpu else _NONE


def has_gpu() -> bool:
    """Whether custom Metal kernels run; on the CPU, MLX has none."""
    import mlx.core as mx

    return bool(mx.metal.is_available())


def to_numpy(array: mx.array) -> np.ndarray:
    """The array's own memory as NumPy, evaluated; bfloat16 through its bits, which MLX does not hand out."""
    import mlx.core as mx

    if array.dtype == mx.bfloat16:
        return np.array(array.view(mx.uint16), copy=False).view(dtypes.to_numpy("bf16"))
    return np.array(array, copy=False)
