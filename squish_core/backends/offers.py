"""Requests to backends and their offers, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen, validators

from squish_core.codecs.base import Codec
from squish_core.model import Encoding, TensorSpec

OPS = ("linear", "embed", "experts", "dense")
"""Operations that a backend may offer."""
OPS_OF_RANK = {2: ("linear", "embed", "dense"), 3: ("experts", "dense")}
"""Operations by rank, the default one first; tensors of other ranks only have `dense`."""
MODES = ("delegate", "stream", "fold")
MEMORY = {"gpu": "the GPU's memory", "host": "the CPU's memory"}
"""Memory of loaded weights, in order of preference -> description."""


@frozen(kw_only=True)
class Availability:
    """Whether a backend can run here, else the `reason`; `facts` describe the device and libraries.

    `only_named`: why the backend is used only if the caller names it, such as that its device is emulated.
    """

    ok: bool
    reason: str = ""
    device: str = ""
    facts: Mapping[str, Any] = field(factory=dict)
    only_named: str = ""


@frozen(kw_only=True)
class Cost:
    """Computed costs in bytes: `stored` in the file, `resident` while loaded, `moved` per use.

    `memory` is where the weights reside: "gpu" for a GPU that was probed, else "host". `mapped`: bytes of the file
    that the loaded weight uses in place, beside the resident ones.
    """

    stored: int
    resident: int
    moved: int
    memory: str = field(default="host", validator=validators.in_(MEMORY))
    mapped: int = 0


@frozen(kw_only=True)
class Request:
    """An encoding of a tensor and an operation; without a file, of an example tensor of 256 x 256.

    `codec` is the codec of the encoding. `spec` and `codec` are None for an encoding of a whole model, which cannot
    be decoded.
    """

    spec: TensorSpec | None
    encoding: Encoding
    codec: Codec | None = None
    op: str = "linear"


@frozen(kw_only=True)
class Offer:
    """A backend's way to run an encoding.

    `mode` is "stream" (fused: the weights stay packed), "fold" (dequantized) or "delegate" (another runtime runs the
    whole model). `storage` describes the weights in memory. `facts`: what else the backend knows of this tensor, plain
    data; its `summary` is shown with the costs.
    """

    backend: str
    encoding: Encoding
    mode: str
    ops: tuple[str, ...]
    storage: str
    cost: Cost | None = None
    exact: bool = True
    facts: Mapping[str, Any] = field(factory=dict, hash=False)

    def about(self, encoding: Encoding) -> Offer:
        """Return the same offer for an equivalent encoding."""
        return self._with(encoding, self.cost, self.facts)

    def without_cost(self) -> Offer:
        """Return the same offer without its cost and facts, which are specific to the example tensor.

        Returns
        -------
        Offer
            With `cost` None.

        Examples
        --------
        >>> squish.open("model.gguf")["token_embd.weight"].plan("numpy").chosen.without_cost().cost is None
        True
        """
        return self._with(self.encoding, None, {})

    def _with(self, encoding: Encoding, cost: Cost | None, facts: Mapping[str, Any]) -> Offer:
        return Offer(
            backend=self.backend,
            encoding=encoding,
            mode=self.mode,
            ops=self.ops,
            storage=self.storage,
            cost=cost,
            exact=self.exact,
            facts=facts,
        )
