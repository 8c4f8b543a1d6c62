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
)

from ..read.names import shape_in
from . import coreml
from .draft import CHILD, CONFIG, LAYERS, VOCABULARY, Draft, draft_of_child, draft_of_file
from .names import logical_shapes
from .place import Placement, WriteOptions


def dropped_children(companions: Companions, options: WriteOptions, placement: Placement) -> tuple[Dropped, ...]:
    """Return the children that SQUIZD cannot store, and what it cannot store of the draft head."""
    dropped = []
    for name, child in companions.children.items():
        tensors = [OutgoingTensor(spec, {}) for spec in child.tensors.values()]
        sizes = {key: bytes(part.nbytes) for key, part in child.assets.items() if key == CONFIG}
        outgoing = OutgoingChild(tensors=tensors, meta=child.meta, assets=sizes)
        if name != CHILD:
            reason = f"SQUIZD stores one child, the draft head named {CHILD}"
        elif options.draft:
            reason = "replaced by the option draft"
        elif isinstance(planned := draft_of_child(outgoing), Refusal):
            reason = planned.why
        elif clash := _clash(placement, planned):
            reason = f"its tensor {clash} and the model's tensor of the same name differ in shape"
        else:
            dropped += [Dropped("metadata", key, where=name) for key in child.meta if key not in (LAYERS, VOCABULARY)]
            dropped += [Dropped("asset", key, where=name) for key in child.assets if key != CONFIG]
            continue
        dropped.append(Dropped("child", name, reason))
    return tuple(dropped)


def _clash(placement: Placement, draft: Draft) -> str | None:
    """Return a name whose shape in SQXT is wrong for one of two tensors: SQXT has one shape per name."""
    shapes = {name: tuple(shape) for name, shape in logical_shapes(placement, draft).items()}
    blocks = [*placement.blocks, *(block for block, _ in draft.blocks(0))]
    clashes = (each.spec.name for each in blocks if shape_in(shapes, each.spec.name, each.shape) != each.spec.shape)
    return next(clashes, None)


def dropped_encodings(companions: Companions, options: WriteOptions) -> tuple[Dropped, ...]:
    """Return the encodings of the whole model that SQUIZD cannot store."""
    dropped = []
    for encoding in companions.whole:
        if encoding.codec.id != coreml.CODEC or set(encoding.parts) != {coreml.ROLE}:
            dropped.append(
                Dropped("encoding", str(encoding.codec), "SQUIZD stores only Core ML packages of the whole model")
            )
        elif options.coreml:
            dropped.append(Dropped("encoding", str(encoding.codec), "replaced by the option coreml"))
    return tuple(dropped)


def open_draft(companions: OutgoingCompanions, options: WriteOptions, stack: ExitStack) -> Draft | None:
    """Open the draft head to write; its file is closed with `stack`."""
    if options.draft:
        return draft_of_file(options.draft, stack)
    child = companions.children.get(CHILD)
    draft = None if child is None else draft_of_child(child)
    if isinstance(draft, Refusal):
        raise SquishError(f"SQUIZD cannot store the draft head: {draft.why}", code="draft")
    return draft


def write_appendix(sink: Sink, companions: OutgoingCompanions, options: WriteOptions) -> bool:
    """Write the CoreML package, if any; returns whether there was one."""
    if options.coreml:
        coreml.write_package(sink, options.coreml)
    elif companions.whole:
        coreml.copy_appendix(sink, companions.whole[0])
    return bool(options.coreml or companions.whole)
