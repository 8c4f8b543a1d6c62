"""The encodings of a target that come nearest to codes it cannot store, ranked by measured error."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import islice

from attrs import frozen

from squish_core.codecs.regions import stored_panels
from squish_core.errors import SquishError
from squish_core.file import File
from squish_core.model import CodecSpec, TensorSpec
from squish_core.plugins.registry import Registry

from .compare.metrics import Distance
from .panels import EncodedPanels
from .step import Step

SUGGESTED = 3
"""Maximum number of encodings to suggest for a codec."""
SAMPLED_PANELS, SAMPLED_BYTES = 2, 128 << 10
"""Panels that are encoded to measure an error, and bytes of a panel as f32."""
SMALL_FLOAT = 4
"""Bits of the floats that never stand for integer codes: they have fewer levels where most values are."""
Attempt = Callable[[TensorSpec, CodecSpec], Step]
"""What encoding a tensor would be; SquishError if the target has no such encoding of it."""


@frozen
class Nearest:
    """An encoding of the target: its short name, bits per weight, and the signal-to-noise ratio in dB of a sample of
    the values; None if it was not measured, as of a remote file, whose values are not read for it."""

    name: str
    bits: float
    decibels: float | None

    def __str__(self) -> str:
        error = "the error is measured while writing" if self.decibels is None else f"{self.decibels:.1f} dB"
        return f"{self.bits:.3g} bits a weight, {error}"


def nearest_encodings(
    file: File, group: Sequence[TensorSpec], aliases: Collection[str], attempt: Attempt
) -> list[Nearest]:
    """The encodings that every tensor of a group can have, the most exact first, without those that another one
    surpasses in error and in size.

    `group` are tensors of one codec; `aliases` are the short names of the target's encodings.
    """
    source = _table_bits(group[0], group[0].encodings[0].codec, file.registry)
    found = []
    for name in aliases:
        try:
            step = attempt(group[0], CodecSpec(name))
        except SquishError:
            continue
        is_float = 0 < _table_bits(step.spec, step.codec, file.registry) <= SMALL_FLOAT
        if step.codec.id != "dense" and step.is_lossy and not (is_float and source == 0):
            found.append(Nearest(name, step.bits, None if file.source.is_remote else _decibels(file, step)))
    if file.source.is_remote:
        bits = 8 * group[0].encodings[0].stored / max(group[0].elements, 1)
        found.sort(key=lambda each: (abs(each.bits - bits), each.name))
    else:
        found.sort(key=lambda each: (-(each.decibels or 0), each.bits, each.name))
    front: list[Nearest] = []
    for each in found:
        surpassed = front and not file.source.is_remote and each.bits >= front[-1].bits
        if not surpassed and _fits_all(group[1:], each, attempt):
            front.append(each)
        if len(front) == SUGGESTED:
            break
    return front


def _fits_all(group: Sequence[TensorSpec], encoding: Nearest, attempt: Attempt) -> bool:
    try:
        return all(attempt(spec, CodecSpec(encoding.name)) for spec in group)
    except SquishError:  # codes that some of the tensors cannot have
        return False


def _decibels(file: File, step: Step) -> float | None:
    """The signal-to-noise ratio of the first values; None if they cannot be encoded, which converting reports."""
    total = Distance()
    panels = EncodedPanels(file, step, None)
    regions = stored_panels(step.spec.shape, panels.grain, 4, budget=SAMPLED_BYTES)
    try:
        for _, distance, _ in panels.measured(islice(regions, SAMPLED_PANELS)):
            if distance is not None:
                total.merge(distance)
    except SquishError:
        return None
    return total.snr


def _table_bits(spec: TensorSpec, codec: CodecSpec, registry: Registry) -> int:
    """The bits of codes that stand for floats of a table; 0 if they are integers, or the codec does not say."""
    if codec.id not in registry.codecs:
        return 0
    layout = registry.codec(codec).code_layout(spec)
    return layout.bits if layout is not None and layout.table is not None else 0
