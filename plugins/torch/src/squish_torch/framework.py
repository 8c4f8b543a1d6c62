"""`File.to_torch`: the tensors of a file as torch tensors."""

from __future__ import annotations

from typing import Any

from squish_core.api import File, Framework

from .libraries import required


class Torch(Framework):
    """PyTorch, imported when tensors are made."""

    def tensors(self, file: File, device: Any = "cpu", dtype: Any = None) -> dict[str, Any]:
        """Dense tensors are private mappings of the file on the CPU; others are decoded."""
        with required():
            from .files import decoded
        return {name: decoded(tensor, device, dtype) for name, tensor in file.items()}
