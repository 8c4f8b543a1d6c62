"""The steps of a conversion: what happens to a tensor, the effect of a rule, and events while the target is written."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from squish_core.model import CodecSpec, Encoding, Exactness, TensorSpec

from .compare.metrics import Distance
from .overflow import REFUSE

KEPT = "kept: "
"""Start of the note of a step that a rule without a pattern leaves unchanged."""


@frozen(kw_only=True)
class Step:
    """The conversion of one tensor: `action` is "copy" (bytes), "widen" (integers of a part, to a wider dtype; or
    numbers, to another byte order), "repack" (codes), "encode" (through floats).

    `origin`: the source encoding that is converted. `spec`: the tensor as the target holds it. `codec`: the target's,
    with the parameters that only the encoder needs (`Codec.encoder_only_params`) and `spec` omits.
    `encoder`: the codec that computes the codes of an "encode", where `codec` only stores them; else None.
    `stack`, `row`: for a tensor that the target stacks with others, the stacked tensor and its row in it.
    `quality`: the error of a lossy encoding, measured while writing.
    `overflow`: "refuse" values that do not stay finite, or "saturate"; then `clipped` counts them.
    """

    name: str
    action: str
    source: str
    target: str
    stored: int
    size: int
    exactness: Exactness
    note: str = ""
    quality: Distance | None = field(default=None, eq=False)
    overflow: str = REFUSE
    clipped: int = field(default=0, eq=False)
    spec: TensorSpec = field(repr=False)
    codec: CodecSpec = field(repr=False)
    origin: Encoding = field(repr=False)
    encoder: CodecSpec | None = field(default=None, repr=False)
    stack: str = ""
    row: int | None = None

    @property
    def written(self) -> str:
        """The name of the target tensor that holds it."""
        return self.stack or self.spec.name

    @property
    def bits(self) -> float:
        """Bits per weight of all parts, scales included."""
        return 8 * self.size / max(self.spec.elements, 1)

    @property
    def encoding_codec(self) -> CodecSpec:
        """The codec whose encoder computes the codes."""
        return self.encoder or self.codec

    @property
    def is_computed(self) -> bool:
        """Whether the target's parts are computed, from codes or values, instead of copied."""
        return self.action in ("encode", "repack")

    @property
    def is_lossy(self) -> bool:
        """Whether written values differ from the source's, so that their error is measured."""
        return self.action == "encode" and self.exactness.kind == "bounded"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON.

        Returns
        -------
        dict
            What happens to the tensor, with sizes in bytes and its exactness.

        Examples
        --------
        >>> report = squish.convert("model.safetensors", "f16.safetensors", encode="f16", dry_run=True)
        >>> report.steps[0].to_dict()["action"]
        'encode'
        """
        keys = (
            "name", "written", "row", "action", "source", "target", "size", "bits", "note", "overflow", "clipped",
        )  # fmt: skip
        quality = self.quality.to_dict() if self.quality else None
        data = {key: getattr(self, key) for key in keys} | {"source_size": self.stored}
        return {**data, "exactness": str(self.exactness), "quality": quality}


@frozen(kw_only=True)
class RuleEffect:
    """What a rule of `encode=` leaves unchanged: numbers of tensors and bytes, and the most common reason."""

    rule: str
    kept: int
    tensors: int
    kept_size: int
    size: int
    reason: str


class ConversionObserver:
    """Receives events while a conversion writes; override the methods you need.

    Calls may come from several threads if a writer takes several tensors at once, but never two for one tensor.
    """

    def tensor_started(self, name: str) -> None:
        """Called when a part of this source tensor is about to be read."""

    def bytes_written(self, count: int) -> None:
        """Called when the target has grown by `count` bytes."""

    def task_finished(self, worker: str, read: int, written: int, seconds: float) -> None:
        """Called when a worker of a job has finished a task, with its stored bytes and those of the target."""

    def quality(self, name: str, distance: Distance, clipped: int) -> None:
        """Called with the error of a lossy encoding, and the number of clipped values."""
