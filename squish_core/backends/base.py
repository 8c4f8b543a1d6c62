"""Interfaces of backends: what they are asked, what they answer, and what they do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from squish_core.codecs.base import Parts, Region
from squish_core.errors import SquishError
from squish_core.model import Encoding, TensorSpec

if TYPE_CHECKING:
    import numpy as np

    from squish_core.analysis.statistics import Statistics
    from squish_core.backends.chain import Chain
    from squish_core.plugins.registry import Registry

OPS = ("linear", "embed", "experts", "dense")
OPS_OF_RANK = {2: ("linear", "embed", "dense"), 3: ("experts", "dense")}
"""What weights can be asked for, the usual first; of other ranks there is `dense` alone."""
UNCOVERED = "uncovered"
"""Code of refusals, and of errors of `load`, that say the backend has no way to hold these data."""


@frozen(kw_only=True)
class Availability:
    """Whether a backend can run here; `reason` says why not, `facts` what it found."""

    ok: bool
    reason: str = ""
    device: str = ""
    facts: Mapping[str, Any] = field(factory=dict)


@frozen(kw_only=True)
class Use:
    """What a tensor is wanted for: an operation of `OPS`."""

    op: str = "linear"


@frozen(kw_only=True)
class Cost:
    """Computed bytes: `stored` in the file, `resident` while loaded, `moved` per use."""

    stored: int
    resident: int
    moved: int


@frozen(kw_only=True)
class Request:
    """One encoding of one tensor, offered to one backend. `spec` is None when asked without a file."""

    spec: TensorSpec | None
    encoding: Encoding
    use: Use
    registry: Registry


@frozen(kw_only=True)
class Offer:
    """A backend's way to run an encoding. `mode`: "stream" keeps it compressed, "fold" decodes it, "delegate"
    hands the whole model to another runtime. `layout` says in words how the weights are held."""

    backend: str
    encoding: Encoding
    mode: str
    ops: tuple[str, ...]
    layout: str
    cost: Cost | None = None
    exact: bool = True


@frozen(kw_only=True)
class Refused:
    """Why a backend does not take an encoding; `backend` is None where the format itself rules it out."""

    backend: str | None
    encoding: Encoding | None
    code: str
    why: str
    install: str | None = None


class Backend:
    """A place to execute. `offer` never loads anything; `probe` never raises."""

    id: str = ""

    def probe(self) -> Availability:
        """Whether this backend can run on this machine."""
        raise NotImplementedError

    def configured(self, options: Mapping[str, Any]) -> Backend:
        """This backend with options of the user (`ane:device=M1`, `cpu:threads=1`): a backend of its own."""
        raise SquishError(f"backend {self.id!r} takes no options", found=", ".join(options), code="backend")

    def offer(self, request: Request) -> Offer | Refused:
        """Take an encoding or refuse it with a reason."""
        raise NotImplementedError

    def load(self, chain: Chain, parts: Parts, registry: Registry) -> Any:
        """A handle that holds the weights, for the operations below. SquishError of the code `UNCOVERED` where the
        data turn out not to suit this backend: the next one is taken then."""
        raise self.lacks("load")

    def dense(
        self, handle: Any, *, region: Region | None = None, dtype: str | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        """The decoded array: all of it or a region, as a dtype (the codec's own by default), into `out` if given."""
        raise self.lacks("dense")

    def linear(self, handle: Any, x: np.ndarray) -> np.ndarray:
        """`x @ W.T` for x of shape [..., in] and W of shape [out, in]; float32."""
        raise self.lacks("linear")

    def embed(self, handle: Any, ids: np.ndarray) -> np.ndarray:
        """Rows of W by integer ids; shape ids.shape + (in,)."""
        raise self.lacks("embed")

    def experts(self, handle: Any, x: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """`x[i] @ W[ids[i]].T` for W of shape [experts, out, in], x [n, in], ids [n]; shape [n, out]."""
        raise self.lacks("experts")

    def statistics(self, handle: Any) -> Statistics | None:
        """What the values are like, as `analysis.statistics` counts them; None: the core asks `dense` and counts."""
        return None

    def lacks(self, op: str) -> SquishError:
        """The error for an operation that this backend does not have."""
        return SquishError(f"backend {self.id!r} has no operation {op!r}", code="operation")
