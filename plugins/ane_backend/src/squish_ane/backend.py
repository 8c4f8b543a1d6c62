"""The Neural Engine as a backend: whole Core ML packages on a Mac, and plans for any device anywhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from squish_core.api import Availability, Backend, Cost, Encoding, Offer, Refused, Request, SquishError, TensorSpec

from . import facts, planner
from .archive import WHOLE
from .forms import weights_of


class Ane(Backend):
    """Runs a file's Core ML appendix through Core ML. Single tensors are not its business: packages are made of them.

    With an option, `ane:device=M1`, it answers what that device would do with each tensor, and runs nothing.
    """

    id = "ane"

    def probe(self) -> Availability:
        if sys.platform != "darwin":
            return Availability(ok=False, reason="Core ML runs on macOS alone; ane:device=M1 plans for a device")
        try:
            import coremltools
        except ImportError as error:
            return Availability(ok=False, reason=f"coremltools cannot be imported: {error}")
        return Availability(ok=True, device="Neural Engine", facts={"coremltools": coremltools.__version__})

    def configured(self, options: Mapping[str, Any]) -> Backend:
        if set(options) != {"device"}:
            raise SquishError(
                "ane takes one option, device", found=", ".join(options), expected="ane:device=M1", code="backend"
            )
        return Planned(planner.generation_of(str(options["device"])))

    def offer(self, request: Request) -> Offer | Refused:
        encoding = request.encoding
        if encoding.codec.id != WHOLE:
            why = "Core ML runs whole packages; `squish convert FILE OUT.mlpackage --to mlpackage` makes one"
            return Refused(backend=self.id, encoding=encoding, code="whole", why=why)
        cost = Cost(stored=encoding.stored, resident=encoding.stored, moved=encoding.stored)
        layout = "the file's own package, run by Core ML"
        return Offer(backend=self.id, encoding=encoding, mode="delegate", ops=("linear",), layout=layout, cost=cost)


class Planned(Backend):
    """What a generation would do with each tensor's weights as those of a linear layer."""

    id = Ane.id

    def __init__(self, generation: str) -> None:
        self.generation = generation

    def probe(self) -> Availability:
        return Availability(ok=True, device=f"{self.generation}, planned and not run")

    def offer(self, request: Request) -> Offer | Refused:
        encoding, spec = request.encoding, request.spec
        missing = None if encoding.codec.id == WHOLE else request.registry.missing(encoding)
        if missing:
            return Refused(
                backend=self.id, encoding=encoding, code="not-installed", why=missing.why, install=missing.install
            )
        if spec is None or encoding.codec.id == WHOLE:
            return Refused(backend=self.id, encoding=encoding, code="file", why="a plan needs a file's tensors")
        try:
            return self._planned(request, encoding, spec)
        except SquishError as error:
            return Refused(backend=self.id, encoding=encoding, code=error.code or "illegal", why=str(error).rstrip("."))

    def _planned(self, request: Request, encoding: Encoding, spec: TensorSpec) -> Offer:
        weights = weights_of(encoding, spec, request.registry.codec(encoding.codec))
        verdict = planner.plan(weights or planner.Weights(form="dense", elements=spec.elements), self.generation)
        dense = encoding.codec.id == "dense"
        first = "rounded to float16 first" if dense else f"Core ML has no form of {encoding.codec.id}: decoded first"
        told = verdict.why if weights else first
        cut = f", in {verdict.pieces} pieces" if verdict.pieces > 1 else ""
        title = facts.ROWS[weights.form].title if weights else "dense float16"
        return Offer(
            backend=self.id, encoding=encoding, mode="stream" if verdict.mode == "stream" else "fold", ops=("linear",),
            layout=f"{title} on {self.generation}{cut} ({verdict.evidence}): {told}",
            cost=Cost(stored=encoding.stored, resident=verdict.nbytes, moved=verdict.nbytes),
        )  # fmt: skip

    def load(self, *_: Any) -> Any:
        raise SquishError("a plan runs nothing", found=f"ane:device for {self.generation}", code="plan")
