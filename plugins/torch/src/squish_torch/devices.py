"""Devices by name, checked before anything is loaded."""

from __future__ import annotations

from typing import Any

import torch

from squish_core.api import ErrorCode, UsageError

CPU, CUDA, META = "cpu", "cuda", "meta"


def available_devices() -> list[str]:
    """Return the names of the devices of this machine that torch can use."""
    found = [CPU]
    if torch.cuda.is_available():
        found += [f"{CUDA}:{number}" for number in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append("mps")
    return found


def device_named(name: Any) -> torch.device:
    """Return a device of this machine.

    Parameters
    ----------
    name
        "cpu", "cuda", "cuda:1", or a `torch.device`.

    Raises
    ------
    UsageError
        Torch has no such device here; the error lists those that it has.
    """
    found = available_devices()
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    types = {each.partition(":")[0] for each in found}
    if device is not None and (device.type in (CPU, META) or str(device) in {*found, *types}):
        return device
    raise UsageError(
        "the device is not available",
        found=str(name),
        expected=" or ".join(found),
        code=ErrorCode.USAGE,
        hint=_hint(device),
    )


def _hint(device: torch.device | None) -> str:
    if device is None or device.type != CUDA or torch.cuda.is_available():
        return "Name one of these, or leave out {option:device}."
    if torch.version.cuda is None:
        return "This torch is built for the CPU: install one for CUDA (https://pytorch.org/get-started/locally)."
    return "Torch finds no GPU: `nvidia-smi` says whether the driver does."
