"""A backend that plans for another device's Neural Engine without running anything."""

from __future__ import annotations

from typing import Any

from squish_core.api import Availability, Backend, Cost, Encoding, Offer, Refusal, Request, SquishError, TensorSpec

from ..coreml.archive import WHOLE
from . import facts, layout, planner
from .forms import dense_weights, weights_of


class DevicePlan(Backend):
    """Plans each tensor on a generation as the weight of a linear layer."""

    id = "ane"
    whole = True

    def __init__(self, generation: str, consumer: planner.Consumer, cores: int) -> None:
        self.generation, self.consumer, self.cores = generation, consumer, cores

    def probe(self) -> Availability:
        return Availability(ok=True, device=f"{self.generation} (plan only)")

    def offer(self, request: Request) -> Offer | Refusal:
        encoding, spec = request.encoding, request.spec
        if spec is None or encoding.codec.id == WHOLE:
            return Refusal(
                backend=self.id, encoding=encoding, code="file", why="plans cover tensors, not whole packages"
            )
        try:
            return self._offer(request, encoding, spec)
        except SquishError as error:
            return Refusal(backend=self.id, encoding=encoding, code=error.code or "illegal", why=str(error).rstrip("."))

    def _offer(self, request: Request, encoding: Encoding, spec: TensorSpec) -> Offer:
        assert request.codec is not None
        weights = weights_of(encoding, spec, request.codec)
        target = weights or dense_weights(spec)
        verdict = planner.plan(target, self.generation, self.consumer)
        dense = encoding.codec.id == "dense"
        first = "rounded to float16 first" if dense else f"Core ML does not support {encoding.codec.id}: decoded first"
        reason = verdict.why if weights else first
        cut = f", in {verdict.pieces} pieces" if verdict.pieces > 1 else ""
        about = layout.compiled(target, verdict, self.cores, spec.shape, self.consumer.stride)
        title = facts.ROWS[weights.form].title if weights else "dense float16"
        return Offer(
            backend=self.id, encoding=encoding, mode="stream" if verdict.mode == "stream" else "fold", ops=("linear",),
            storage=f"{title} on {self.generation}{cut} ({verdict.evidence}): {reason}",
            cost=Cost(stored=encoding.stored, resident=verdict.nbytes, moved=verdict.nbytes), facts=about,
        )  # fmt: skip

    def load(self, *_: Any) -> Any:
        raise SquishError("a device plan cannot run", found=f"ane:device for {self.generation}", code="plan")
