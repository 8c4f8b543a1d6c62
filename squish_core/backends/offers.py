"""What a backend is asked and what it answers: plain data."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from attrs import field, frozen, validators

from squish_core.codecs.base import Codec
from squish_core.model import CodecSpec, Encoding, Refusal, TensorSpec

OPS = ("linear", "embed", "experts", "dense")
OPS_OF_RANK = {2: ("linear", "embed", "dense"), 3: ("experts", "dense")}
"""Operations by rank, the usual one first; tensors of other ranks have `dense` alone."""
MODES = ("delegate", "stream", "fold")
MEMORY = {"gpu": "the GPU's memory", "host": "the CPU's memory"}
"""Whose memory holds loaded weights, the one that goes first first, and in words."""


@frozen(kw_only=True)
class Availability:
    """Whether a backend can run here; `reason` says why not, `facts` what it found.

    `emulated`: something slower stands in for the backend's device, so that only who names the backend gets it.
    """

    ok: bool
    reason: str = ""
    device: str = ""
    facts: Mapping[str, Any] = field(factory=dict)
    emulated: bool = False


@frozen(kw_only=True)
class Cost:
    """Computed bytes: `stored` in the file, `resident` while loaded, `moved` per use.

    `memory` is whose memory they are resident in and moved through: "gpu" for a GPU that was probed, else "host".
    """

    stored: int
    resident: int
    moved: int
    memory: str = field(default="host", validator=validators.in_(MEMORY))


@frozen(kw_only=True)
class Request:
    """One encoding of one tensor, for one operation; without a file, of an example tensor of 256 x 256.

    `codec` is the encoding's implementation. `spec` and `codec` are None for the encoding of a whole model, which
    nothing decodes.
    """

    spec: TensorSpec | None
    encoding: Encoding
    codec: Codec | None
    op: str = "linear"

    @property
    def use(self) -> Use:
        """Deprecated: `op` holds the operation."""
        warnings.warn("Request.use.op is now Request.op", DeprecationWarning, stacklevel=2)
        return Use(op=self.op)

    @property
    def registry(self) -> RequestRegistry:
        """Deprecated: `codec` holds the implementation, and the core refuses what is not installed."""
        warnings.warn("Request.registry.codec(...) is now Request.codec", DeprecationWarning, stacklevel=2)
        return RequestRegistry(self)


@frozen(kw_only=True)
class Use:
    """Deprecated: the operation of a `Request`, which is now its `op`."""

    op: str = "linear"


@frozen
class RequestRegistry:
    """What offers asked of `Request.registry` before requests held the codec."""

    request: Request

    def missing(self, encoding: Encoding) -> Refusal | None:
        """None: the core asks no backend about an encoding that is not installed."""
        return None

    def codec(self, wanted: str | CodecSpec) -> Codec | None:
        """Implementation of the request's codec."""
        return self.request.codec


@frozen(kw_only=True, init=False)
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

    def __init__(
        self, *, backend: str, encoding: Encoding, mode: str, ops: tuple[str, ...], storage: str | None = None,
        cost: Cost | None = None, exact: bool = True, layout: str | None = None,
    ) -> None:  # fmt: skip
        if layout is not None:
            warnings.warn("Offer(layout=) is now Offer(storage=)", DeprecationWarning, stacklevel=2)
            storage = layout
        if storage is None:
            raise TypeError("Offer() needs storage=, how the weights are kept in memory in words")
        self.__attrs_init__(
            backend=backend, encoding=encoding, mode=mode, ops=ops, storage=storage, cost=cost, exact=exact
        )

    @property
    def layout(self) -> str:
        """Deprecated: `storage`."""
        warnings.warn("Offer.layout is now Offer.storage", DeprecationWarning, stacklevel=2)
        return self.storage

    def about(self, encoding: Encoding) -> Offer:
        """The same offer for an encoding like its own."""
        return self._with(encoding, self.cost)

    def without_cost(self) -> Offer:
        """The same offer, which says nothing of bytes: those of an example tensor hold for no other.

        Returns
        -------
        Offer
            With `cost` None.

        Examples
        --------
        >>> squish.open("model.gguf")["token_embd.weight"].plan("numpy").chosen.without_cost().cost is None
        True
        """
        return self._with(self.encoding, None)

    def _with(self, encoding: Encoding, cost: Cost | None) -> Offer:
        offer = object.__new__(Offer)
        offer.__attrs_init__(
            backend=self.backend, encoding=encoding, mode=self.mode, ops=self.ops, storage=self.storage, cost=cost,
            exact=self.exact,
        )  # fmt: skip
        return offer
