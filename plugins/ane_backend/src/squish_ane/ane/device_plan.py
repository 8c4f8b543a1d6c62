"""A backend that plans for another device's Neural Engine without running anything."""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import evolve

from squish_core.api import (
    Availability,
    Backend,
    BoundEncoding,
    Cost,
    Encoding,
    ErrorCode,
    Offer,
    Refusal,
    Request,
    SquishError,
    TensorSpec,
    dtypes,
)

from ..coreml.archive import WHOLE
from . import facts, layout, planner
from .forms import dense_weights, unity_weights, weights_of

NOT_COUNTED = "zeros not counted (zeros=count reads the values)"


class DevicePlan(Backend):
    """Plans each tensor on a generation as the weight of a linear layer, or of a convolution [out, in, ...kernel].

    `counts_zeros`: plans read the values.
    """

    id = "ane"
    whole = True

    def __init__(self, generation: str, consumer: planner.Consumer, cores: int, *, counts_zeros: bool = False) -> None:
        self.generation, self.consumer, self.cores = generation, consumer, cores
        self.reads_values = counts_zeros

    def probe(self) -> Availability:
        return Availability(ok=True, device=f"{self.generation} (plan only)")

    def offer(self, request: Request) -> Offer | Refusal:
        encoding, spec = request.encoding, request.spec
        if spec is None or encoding.codec.id == WHOLE:
            return Refusal(
                backend=self.id, encoding=encoding, code="file", why="plans cover tensors, not whole packages"
            )
        rules = (
            (not spec.dtype.startswith("complex"), "the engine does not support complex weights"),
            (request.op != "experts", "plans cover no stacks of weights; op dense plans it as a convolution's weight"),
            (len(spec.shape) > 1, "plans cover weights of linear layers and convolutions"),
        )
        for holds, why in rules:
            if not holds:
                return Refusal(backend=self.id, encoding=encoding, code=ErrorCode.UNCOVERED, why=why)
        try:
            return self._offer(request, encoding, spec)
        except SquishError as error:
            return Refusal(backend=self.id, encoding=encoding, code=error.code or "illegal", why=str(error).rstrip("."))

    def _offer(self, request: Request, encoding: Encoding, spec: TensorSpec) -> Offer:
        assert request.codec is not None
        is_unity = self.consumer.depthwise and dtypes.count(spec.shape[1:]) == 1
        weights = unity_weights(spec) if is_unity else weights_of(encoding, spec, request.codec)
        target = weights or dense_weights(spec)
        verdict = planner.plan(target, self.generation, self.consumer)
        dense = encoding.codec.id == "dense"
        first = "rounded to float16 first" if dense else "decoded first, because the engine does not support this form"
        reason = verdict.why if weights else first
        cut = f", in {verdict.pieces} pieces" if verdict.pieces > 1 else ""
        about = layout.compiled(target, verdict, self.cores, spec.shape, self.consumer)
        if not (self.reads_values or "zeros" in about) and spec.elements:
            about["summary"] = "; ".join(filter(None, [about["summary"], NOT_COUNTED]))
        title = facts.ROWS[weights.form].title if weights else "dense float16"
        return Offer(
            backend=self.id,
            encoding=encoding,
            mode="stream" if verdict.mode == "stream" else "fold",
            ops=("linear" if len(spec.shape) == 2 else "dense",),
            storage=f"{title} on {self.generation}{cut} ({verdict.evidence}): {reason}",
            cost=Cost(stored=encoding.stored, resident=verdict.nbytes, moved=verdict.nbytes),
            facts=about,
        )

    def examine(self, offer: Offer, bound: BoundEncoding) -> Offer:
        """Count the zeros of a weight without a mask, and plan it under one."""
        assert offer.cost is not None
        spec = bound.spec
        if "zeros" in offer.facts or not spec.elements:
            return offer
        masked = planner.Weights(form="sparse", elements=spec.elements, nonzero=count_nonzero(bound))
        verdict = planner.plan(masked, self.generation, self.consumer)
        return evolve(offer, facts=layout.with_zeros(dict(offer.facts), masked, verdict, offer.cost.moved))

    def load(self, *_: Any) -> Any:
        raise SquishError("a device plan cannot run", found=f"ane:device for {self.generation}", code="plan")


def count_nonzero(bound: BoundEncoding) -> int:
    """Count the values that a mask would keep, panel by panel: those that float16 does not round to zero."""
    bound = bound.in_memory()
    panels = (bound.read(region) for region in bound.panels())
    return sum(int(np.count_nonzero(panel.astype(np.float32, copy=False).astype(np.float16))) for panel in panels)
