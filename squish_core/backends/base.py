"""Interfaces of backends: what they are asked, what they answer, and what they do."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from squish_core.backends.offers import Availability, Offer, Request
from squish_core.codecs.base import Region
from squish_core.codecs.bound import BoundEncoding
from squish_core.codes import ErrorCode
from squish_core.errors import SquishError, UsageError
from squish_core.model import Refusal

if TYPE_CHECKING:
    import numpy as np

    from squish_core.backends.chain import Chain
    from squish_core.backends.whole import WholeHandle
    from squish_core.statistics import Statistics


class Backend:
    """A place to execute. `offer` never loads anything; `probe` never raises."""

    id: str = ""
    whole = False
    """Whether it takes encodings of whole models."""

    def probe(self) -> Availability:
        """Whether this backend can run on this machine."""
        raise NotImplementedError

    def configured(self, options: Mapping[str, Any]) -> Backend:
        """This backend with options of the user (`ane:device=M1`, `cpu:threads=1`): a backend of its own."""
        raise UsageError(f"backend {self.id!r} takes no options", found=", ".join(options), code=ErrorCode.BACKEND)

    def offer(self, request: Request) -> Offer | Refusal:
        """Take an encoding or refuse it with a reason.

        Tensors alike share one answer: names, digests and places in the file must not change it.
        """
        raise NotImplementedError

    def load(self, chain: Chain, bound: BoundEncoding) -> Any:
        """A handle that holds the weights, for the operations below.

        `bound` is the chosen encoding with its codec and stored parts. A SquishError with code
        `ErrorCode.UNCOVERED` says that these data do not suit this backend; the next one in the chain is tried then.
        """
        raise self.lacks("load")

    def load_whole(self, chain: Chain, file: Any) -> WholeHandle:
        """The model of an open file, ready to run: the chain's encoding is one of `file.index.whole`."""
        raise self.lacks("load_whole")

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
        """What the values are like, as `statistics` counts them; None: the core asks `dense` and counts."""
        return None

    def lacks(self, op: str) -> SquishError:
        """The error for an operation that this backend does not have."""
        return SquishError(f"backend {self.id!r} has no operation {op!r}", code="operation")


def load_weight(backend: Backend, chain: Chain, bound: BoundEncoding, registry: Any) -> Any:
    """The handle that a backend's `load` gives, also where it has the old signature `load(chain, parts, registry)`."""
    load: Any = backend.load
    return load(chain, bound.parts, registry) if _takes_registry(type(backend).load) else load(chain, bound)


@lru_cache
def _takes_registry(load: Callable[..., Any]) -> bool:
    old = len(inspect.signature(load).parameters) > 3
    if old:
        what = f"{load.__qualname__}(chain, parts, registry) is now load(chain, bound)"
        warnings.warn(what, DeprecationWarning, stacklevel=4)
    return old
