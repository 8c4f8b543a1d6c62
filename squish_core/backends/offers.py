"""What a backend is asked and what it answers: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from squish_core.codecs.base import Codec
from squish_core.model import Encoding, TensorSpec

OPS = ("linear", "embed", "experts", "dense")
OPS_OF_RANK = {2: ("linear", "embed", "dense"), 3: ("experts", "dense")}
"""Operations by rank, the usual one first; tensors of other ranks have `dense` alone."""
MODES = ("delegate", "stream", "fold")


@frozen(kw_only=True)
class Availability:
    """Whether a backend can run here; `reason` says why not, `facts` what it found."""

    ok: bool
    reason: str = ""
    device: str = ""
    facts: Mapping[str, Any] = field(factory=dict)


@frozen(kw_only=True)
class Cost:
    """Computed bytes: `stored` in the file, `resident` while loaded, `moved` per use."""

    stored: int
    resident: int
    moved: int


@frozen(kw_only=True)
class Request:
    """One encoding of one tensor, for one operation. `spec` is None when asked without a file.

    `codec` is the encoding's implementation; None for the encoding of a whole model, which nothing decodes.
    """

    spec: TensorSpec | None
    encoding: Encoding
    codec: Codec | None
    op: str = "linear"


@frozen(kw_only=True)
class Offer:
    """A backend's way to run an encoding.

    `mode` is "stream" (fused: the weights stay packed), "fold" (dequantized) or "delegate" (another runtime takes the
    whole model). `storage` says in words how the weights are kept in memory.
    """

    backend: str
    encoding: Encoding
    mode: str
    ops: tuple[str, ...]
    storage: str
    cost: Cost | None = None
    exact: bool = True
