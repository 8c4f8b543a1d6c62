"""The Neural Engine backend: runs whole Core ML packages on a Mac, and plans for any device on any system."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from squish_core.api import (
    Availability,
    Backend,
    Chain,
    CodecSpec,
    Cost,
    ErrorCode,
    File,
    Offer,
    Refusal,
    Request,
    UsageError,
    WholeHandle,
)

from ..coreml.archive import WHOLE
from .availability import core_ml_availability


class Ane(Backend):
    """Runs a file's Core ML appendix; single tensors must be converted to a package.

    `ane:device=M1` only plans each tensor for that device. Further options describe the operation that reads the
    weights: `stride`, `dilation`, `overlapping`, `mutable`, `padding` with the `size` of the input, `depthwise`,
    `activation`. `zeros=count` reads the values and counts their zeros.
    """

    id = "ane"
    whole = True

    def probe(self) -> Availability:
        return core_ml_availability()

    def configured(self, options: Mapping[str, Any]) -> Backend:
        from . import planner
        from .device_plan import DevicePlan

        if "device" not in options:
            raise UsageError(
                "ane options need a device",
                code=ErrorCode.BACKEND,
                found=str(CodecSpec(self.id, options)),
                expected=str(CodecSpec(self.id, {"device": "M1", **options})),
            )
        device, zeros = str(options["device"]), options.get("zeros", "count")
        if zeros != "count":
            raise UsageError(
                "invalid ane option",
                found=f"zeros={zeros}",
                expected="zeros=count, or no such option",
                code=ErrorCode.BACKEND,
            )
        consumer = planner.consumer_of({name: options[name] for name in options if name not in ("device", "zeros")})
        return DevicePlan(
            planner.generation_of(device), consumer, planner.cores_of(device), counts_zeros="zeros" in options
        )

    def offer(self, request: Request) -> Offer | Refusal:
        encoding = request.encoding
        if encoding.codec.id != WHOLE:
            why = "Core ML runs whole packages; write one with `squish convert FILE OUT.mlpackage --to mlpackage`"
            return Refusal(backend=self.id, encoding=encoding, code=ErrorCode.WHOLE, why=why)
        cost = Cost(stored=encoding.stored, resident=encoding.stored, moved=encoding.stored)
        storage = "the file's Core ML package"
        return Offer(backend=self.id, encoding=encoding, mode="delegate", ops=("linear",), storage=storage, cost=cost)

    def load_whole(self, chain: Chain, file: File) -> WholeHandle:
        from .runtime import Model

        return Model(file)
