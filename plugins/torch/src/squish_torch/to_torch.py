"""`File.to_torch`. This module imports without torch; without it, calls raise an error with the install command."""

from __future__ import annotations

from typing import Any

from squish_core.api import File

from .libraries import required


def to_torch(file: File, device: Any = "cpu", dtype: Any = None) -> dict[str, Any]:
    """Return every tensor of a file: dense ones are private mappings of the file on the CPU, others are decoded."""
    with required():
        from .files import decoded
    return {name: decoded(tensor, device, dtype) for name, tensor in file.items()}
