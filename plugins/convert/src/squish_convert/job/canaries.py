"""Canary panels: a fixed panel through each encoder, to compare two machines before they share a job."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from squish_core import dtypes
from squish_core.codecs.regions import Region, full, stored_panels
from squish_core.errors import CodecError
from squish_core.file import File

from ..activations import Activations
from ..panel_parts import part_bytes
from ..panels import EncodedPanels
from ..plan import ConversionPlan
from ..step import Step
from ..virtual import panels_of

if TYPE_CHECKING:
    import numpy as np

BUDGET = 1 << 16
"""Approximate bytes of values in a canary panel."""


def canaries(plan: ConversionPlan, file: File, activations: Activations | None) -> dict[str, str]:
    """Codec id -> SHA-256 of a fixed panel of its first tensor, as this process encodes it."""
    encoded = [step for step in reversed(plan.steps) if step.action == "encode" and step.spec.elements]
    steps = {step.encoding_codec.id: step for step in encoded}
    return {name: _digest(file, steps[name], activations) for name in sorted(steps)}


def _digest(file: File, step: Step, activations: Activations | None) -> str:
    panels = panels_of(file, step, activations)
    assert isinstance(panels, EncodedPanels)
    grain = panels.encoder.grain
    region = next(stored_panels(step.spec.shape, grain, 4, budget=BUDGET), full(step.spec.shape))
    values = _values(region, dtypes.to_numpy(file.bind(file.index.tensors[step.name], step.origin).dtype))
    digest = sha256()
    try:
        with panels.guard():
            parts = panels.encoder.encode(region, values)
    except CodecError as error:  # such as values that a lossless codec cannot hold
        return f"error {error.code}"
    for role in sorted(parts):
        digest.update(part_bytes(parts[role]))
    return digest.hexdigest()


def _values(region: Region, dtype: np.dtype) -> np.ndarray:
    """Values between -1 and 1 from a multiplicative hash: the same on every machine and with every NumPy."""
    import numpy as np

    shape = tuple(part.stop - part.start for part in region)
    hashes = np.arange(1, dtypes.count(shape) + 1, dtype=np.uint64) * np.uint64(2654435761) % np.uint64(1 << 32)
    return (hashes.astype(np.float64) / 2**31 - 1).astype(np.float32).astype(dtype).reshape(shape)
