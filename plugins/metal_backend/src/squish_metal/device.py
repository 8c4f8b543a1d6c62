"""MLX's device; all GPU checks are here."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import numpy as np

from squish_core.api import Availability, dtypes, install_command

if TYPE_CHECKING:
    import mlx.core as mx

VARIABLE = "SQUISH_METAL"
"""`cpu` enables the backend without a Metal device, for tests; it is slower than the NumPy backend."""
_NONE = Availability(ok=False, reason=f"no Metal device; {VARIABLE}=cpu runs MLX on the CPU, for tests")


def probe() -> Availability:
    """Probe for MLX and a Metal device; MLX is not imported on other systems than macOS."""
    on_cpu = os.environ.get(VARIABLE) == "cpu"
    if sys.platform != "darwin" and not on_cpu:
        return _NONE
    try:
        import mlx.core as mx
    except ImportError as error:
        return Availability(ok=False, reason=f"MLX cannot be imported: {error} (`{install_command('mlx')}`)")
    facts = {"mlx": mx.__version__}  # type: ignore[attr-defined]  # missing in the stubs
    if mx.metal.is_available():
        return Availability(ok=True, device=str(mx.device_info().get("device_name", "Metal")), facts=facts)
    slow = "MLX emulates its device on the CPU, which is slow"
    return Availability(ok=True, device="CPU", facts=facts, only_named=slow) if on_cpu else _NONE


def has_gpu() -> bool:
    """Return whether custom Metal kernels can run, which needs a GPU."""
    import mlx.core as mx

    return bool(mx.metal.is_available())


def to_numpy(array: mx.array) -> np.ndarray:
    """Evaluate an array and return its memory as NumPy; bfloat16 through its bits, since MLX does not export it."""
    import mlx.core as mx

    if array.dtype == mx.bfloat16:
        return np.array(array.view(mx.uint16), copy=False).view(dtypes.to_numpy("bf16"))
    return np.array(array, copy=False)
