"""Formats that store more than tensors: children (a draft head) and encodings of the whole model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from squish_core.formats.base import Options, WritableContainer
from squish_core.formats.outgoing import OutgoingTensor, Stream
from squish_core.formats.write_plan import WritePlan
from squish_core.io.sink import Sink
from squish_core.model import Encoding, Index, Part, TensorSpec


@frozen(kw_only=True)
class Companions:
    """What a source has besides tensors: child indexes by name, and encodings of the whole model."""

    children: Mapping[str, Index] = field(factory=dict)
    whole: Sequence[Encoding] = ()


@frozen(kw_only=True)
class OutgoingChild:
    """A child to write: its tensors, encoded as in the source, its metadata and its assets."""

    tensors: Sequence[OutgoingTensor]
    meta: Mapping[str, Any] = field(factory=dict)
    assets: Mapping[str, bytes] = field(factory=dict)


@frozen(kw_only=True)
class OutgoingWhole:
    """An encoding of the whole model to write, its parts as streams."""

    encoding: Encoding
    parts: Mapping[str, Stream]


@frozen(kw_only=True)
class OutgoingCompanions:
    """The companions to write: those that the plan did not drop."""

    children: Mapping[str, OutgoingChild] = field(factory=dict)
    whole: Sequence[OutgoingWhole] = ()


NO_COMPANIONS, NO_OUTGOING_COMPANIONS = Companions(), OutgoingCompanions()
"""Nothing besides tensors, in a source and in a target."""


class CompositeContainer(WritableContainer):
    """A file format that can store children and encodings of the whole model; they are copied, never re-encoded.

    `plan_file` lists those it cannot store in `WritePlan.dropped`, under the child's name (kind `child`) or the
    codec (kind `encoding`); `write` gets the rest.

    Examples
    --------
    >>> from squish_core import api
    >>> class Crate(api.CompositeContainer):
    ...     def plan_file(self, specs, meta, assets, options, companions=api.NO_COMPANIONS):
    ...         dropped = tuple(api.Dropped("child", name) for name in companions.children if name != "draft")
    ...         return api.WritePlan(dropped=dropped)
    >>> index = api.Index(format="crate", version="1", files=(), tensors={})
    >>> Crate().plan_file((), {}, {}, {}, api.Companions(children={"draft": index, "other": index})).dropped
    (Dropped(kind='child', name='other', reason='', where=''),)
    """

    def plan_file(
        self,
        specs: Sequence[TensorSpec],
        meta: Mapping[str, Any],
        assets: Mapping[str, Part],
        options: Options,
        companions: Companions = NO_COMPANIONS,
    ) -> WritePlan:
        """`WritableContainer.plan_file` with companions.

        Parameters
        ----------
        specs, meta, assets, options
            As in `WritableContainer.plan_file`.
        companions
            Children and encodings of the whole model. `write` gets those that the plan does not drop.

        Returns
        -------
        WritePlan
            Dropped items, including companions.
        """
        return super().plan_file(specs, meta, assets, options)

    def write(
        self,
        sink: Sink,
        tensors: Sequence[OutgoingTensor],
        meta: Mapping[str, Any],
        assets: Mapping[str, bytes],
        options: Options,
        companions: OutgoingCompanions = NO_OUTGOING_COMPANIONS,
    ) -> None:
        """`WritableContainer.write` with companions.

        Parameters
        ----------
        sink, tensors, meta, assets, options
            As in `WritableContainer.write`.
        companions
            The companions that the plan did not drop.
        """
        super().write(sink, tensors, meta, assets, options)
