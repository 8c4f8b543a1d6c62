"""Which device there is, asked of the driver: torch is not imported where there is none."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from importlib.util import find_spec

from squish_core.api import Availability, install_command

LOWEST = 80
"""The first architecture with the matrix units that the kernels use (Ampere)."""
INTERPRETER = "TRITON_INTERPRET"
"""Triton's own variable: 1 runs kernels on the CPU, for tests."""
COPIES = "NumPy arrays would be copied to its device and back in each call"
_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_MAJOR, _MINOR = 75, 76
"""Attributes of a device in the driver's interface."""


def is_interpreted() -> bool:
    """Return whether Triton's interpreter runs the kernels on the CPU."""
    return os.environ.get(INTERPRETER) == "1"


@cache
def architecture() -> int | None:
    """Return the architecture of the first device, such as 90; None without one."""
    try:
        driver = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    count, device, major, minor = (ctypes.c_int() for _ in range(4))
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return None
    driver.cuDeviceGet(ctypes.byref(device), 0)
    for value, attribute in ((major, _MAJOR), (minor, _MINOR)):
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
    return 10 * major.value + minor.value


@cache
def not_installed() -> str:
    """Return which libraries are missing, with the command that installs them; empty if none is."""
    missing = [name for name in ("torch", "triton") if find_spec(name) is None]
    command = install_command("squish-cuda", extra="[triton]") if missing else ""
    return f"{' and '.join(missing)} not installed (`{command}`)" if missing else ""


def probe() -> Availability:
    """Return whether the kernels run here (a device, torch, Triton); they take NumPy arrays only if named."""
    if reason := not_installed():
        return Availability(ok=False, reason=reason)
    if is_interpreted():
        return Availability(ok=True, device="CPU, in Triton's interpreter", only_named="its device is emulated")
    found = architecture()
    if found is None:
        return Availability(ok=False, reason="no CUDA device; cuda:device=sm_90 plans for one")
    if found < LOWEST:
        reason = f"the device is of architecture sm_{found}, the kernels need sm_{LOWEST} or later"
        return Availability(ok=False, reason=reason)
    return Availability(ok=True, device=f"sm_{found}", only_named=COPIES)
