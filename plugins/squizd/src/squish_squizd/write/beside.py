"""Companions of the model in a SQUIZD file: draft head and Core ML package, from the source or from options."""

from __future__ import annotations

from contextlib import ExitStack

from squish_core.api import (
    Companions,
    Dropped,
    OutgoingChild,
    OutgoingCompanions,
    OutgoingTensor,
    Refusal,
    Sink,
    SquishError,
)  # fmt: skip

from . import coreml
from .draft import CHILD, LAYERS, VOCABULARY, Draft, draft_of_child, draft_of_file
from .names import logical_shapes
from .place import Placement, Wanted


def plan_draft(
    companions: Companions, wanted: Wanted, placement: Placement
) -> tuple[Draft | None, tuple[Dropped, ...]]:
    """The source's draft head as it will lie in the file, and the children that have no place."""
    draft, dropped = None, []
    for name, child in companions.children.items():
        tensors = [OutgoingTensor(spec, {}) for spec in child.tensors.values()]
        if name != CHILD:
            reason = f"SQUIZD holds one child, the draft head {CHILD}"
        elif wanted.draft:
            reason = "draft= takes its place"
        elif isinstance(planned := draft_of_child(OutgoingChild(tensors=tensors, meta=child.meta)), Refusal):
            reason = planned.why
        elif clash := _clash(placement, planned):
            reason = f"its tensor {clash} has another shape than the model's tensor of this name"
        else:
            draft = planned
            dropped += [Dropped("metadata", key, where=name) for key in child.meta if key not in (LAYERS, VOCABULARY)]
            continue
        dropped.append(Dropped("child", name, reason))
    return draft, tuple(dropped)


def _clash(placement: Placement, draft: Draft) -> str | None:
    """A name under which one shape would be read for two tensors; SQXT has one shape for each name."""
    shapes = logical_shapes(placement, draft)
    every = [*placement.placed, *(block for block, _ in draft.blocks(0))]
    wrong = (each.spec.name for each in every if tuple(shapes.get(each.spec.name, each.shape)) != each.spec.shape)
    return next(wrong, None)


def plan_appendix(companions: Companions, wanted: Wanted) -> tuple[int | None, tuple[Dropped, ...]]:
    """Bytes of the source's CoreML package (None: it has none to carry), and the encodings that have no place."""
    size, dropped = None, []
    for encoding in companions.whole:
        if encoding.codec.id != coreml.CODEC or set(encoding.parts) != {coreml.ROLE}:
            dropped.append(Dropped("encoding", str(encoding.codec), "SQUIZD holds Core ML packages of the whole model"))
        elif wanted.coreml:
            dropped.append(Dropped("encoding", str(encoding.codec), "coreml= takes its place"))
        else:
            size = encoding.parts[coreml.ROLE].nbytes
    return size, tuple(dropped)


def open_draft(companions: OutgoingCompanions, wanted: Wanted, opened: ExitStack) -> Draft | None:
    """The draft head to write; a file of it stays open as long as `opened`."""
    if wanted.draft:
        return draft_of_file(wanted.draft, opened)
    child = companions.children.get(CHILD)
    draft = None if child is None else draft_of_child(child)
    if isinstance(draft, Refusal):
        raise SquishError(f"the draft head does not fit: {draft.why}", code="draft")
    return draft


def write_appendix(sink: Sink, companions: OutgoingCompanions, wanted: Wanted) -> bool:
    """The CoreML package, if there is one to write."""
    if wanted.coreml:
        coreml.write_package(sink, wanted.coreml)
    elif companions.whole:
        coreml.copy_appendix(sink, companions.whole[0])
    return bool(wanted.coreml or companions.whole)
