"""The plan of a file: what its format cannot store, and notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import field, frozen
from attrs.validators import deep_iterable, instance_of

from squish_core.formats.dropped import Dropped


@frozen(kw_only=True)
class WritePlan:
    """What a file will lack of the content of its source.

    `dropped`: what the format cannot store. `notes`: sentences for the user. `stacks`: name of a stacked tensor ->
    names of the tensors in its rows, in order.
    """

    dropped: tuple[Dropped, ...] = field(default=(), validator=deep_iterable(instance_of(Dropped)))
    notes: tuple[str, ...] = ()
    stacks: Mapping[str, Sequence[str]] = field(factory=dict)
