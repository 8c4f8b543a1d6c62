"""Whether Core ML can run here."""

from __future__ import annotations

import sys

from squish_core.api import Availability


def core_ml_availability() -> Availability:
    """Probe for Core ML through coremltools, on macOS only."""
    if sys.platform != "darwin":
        return Availability(ok=False, reason="Core ML needs macOS; ane:device=M1 plans for a device")
    try:
        import coremltools
    except ImportError as error:
        return Availability(ok=False, reason=f"coremltools cannot be imported: {error}")
    return Availability(ok=True, device="Neural Engine", facts={"coremltools": coremltools.__version__})
