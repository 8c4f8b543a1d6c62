"""The interface of backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

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


class Counts(NamedTuple):
    """Counts of values: `powers` [2, 256] by sign and exponent field of f32, with zeros; `zeros` [2] by sign.

    `low` and `high` are the extremes of finite values, infinite if there are none.
    """

    powers: np.ndarray
    zeros: np.ndarray
    nan: int
    low: float
    high: float


class Backend:
    """Executes weights. `offer` never loads anything; `probe` never raises.

    Examples
    --------
    >>> from squish_core import api
    >>> class Decoded(api.Backend):
    ...     def probe(self):
    ...         return api.Availability(ok=True)
    ...     def offer(self, request):
    ...         about = {"backend": self.id, "encoding": request.encoding, "storage": "an f32 array"}
    ...         return api.Offer(mode="fold", ops=("dense", "linear"), **about)
    ...     def load(self, chain, bound):
    ...         return bound.read()
    ...     def linear(self, handle, x):
    ...         return x @ handle.T
    >>> Decoded().linear(np.ones((3, 2)), np.ones((1, 2))).shape
    (1, 3)
    """

    id: str = ""
    whole = False
    """Whether it accepts encodings of whole models; the operations of an offer for one do not count."""
    reads_values = False
    """Whether its options make a plan read values, which `examine` does."""

    def probe(self) -> Availability:
        """Return whether this backend can run on this machine.

        Returns
        -------
        Availability
            With the reason if it cannot.
        """
        raise NotImplementedError

    def configured(self, options: Mapping[str, Any]) -> Backend:
        """Return a new backend like this one, with the user's options.

        Parameters
        ----------
        options
            Option -> value, from `"ane:device=M1"` or `"cpu:threads=1"`.

        Returns
        -------
        Backend
            A new object; this one does not change.

        Raises
        ------
        UsageError
            An option is unknown or its value is invalid.
        """
        raise UsageError(f"backend {self.id!r} takes no options", found=", ".join(options), code=ErrorCode.BACKEND)

    def offer(self, request: Request) -> Offer | Refusal:
        """Accept an encoding or refuse it with a reason.

        Tensors of one kind share an answer: it must not depend on names, digests or file offsets.

        Parameters
        ----------
        request
            The tensor (None without a file), one of its encodings with its codec, and the operation.

        Returns
        -------
        Offer or Refusal
            An offer states the operations, and the cost in bytes if there is a file.
        """
        raise NotImplementedError

    def examine(self, offer: Offer, bound: BoundEncoding) -> Offer:
        """Add facts that depend on a tensor's values to its chosen offer. Called only if `reads_values` is set.

        Parameters
        ----------
        offer
            This backend's offer.
        bound
            The offer's encoding, ready to read; read it in panels (`bound.panels()`).

        Returns
        -------
        Offer
            The same offer with more `facts`.

        Raises
        ------
        SquishError
            The values are damaged.
        """
        raise self.lacks("examine")

    def load(self, chain: Chain, bound: BoundEncoding) -> Any:
        """Load the weights and return a handle for the operations below.

        Parameters
        ----------
        chain
            The choice, with the user's options.
        bound
            The chosen encoding with its codec and stored parts.

        Returns
        -------
        object
            Whatever the operations need; the core only passes it back.

        Raises
        ------
        SquishError
            With code `ErrorCode.UNCOVERED` if the backend does not support the data; the next offer is tried.
        """
        raise self.lacks("load")

    def load_whole(self, chain: Chain, file: Any) -> WholeHandle:
        """Return the model of an open file, ready to run.

        Parameters
        ----------
        chain
            The choice; its encoding is one of `file.index.whole`.
        file
            The open `File`.

        Returns
        -------
        WholeHandle
            `inputs`, `outputs`, `predict` and `close`.

        Raises
        ------
        SquishError
            The backend does not run whole models, or its runtime refuses this one.
        """
        raise self.lacks("load_whole")

    def dense(
        self, handle: Any, *, region: Region | None = None, dtype: str | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the decoded array, or a region of it.

        Parameters
        ----------
        handle
            What `load` returned.
        region
            A slice per axis with explicit start and stop; all by default.
        dtype
            Short id of a dtype; the codec's own by default.
        out
            Array to fill.

        Returns
        -------
        numpy.ndarray
            `out` if it was given.

        Raises
        ------
        SquishError
            The backend has no such operation.
        """
        raise self.lacks("dense")

    def linear(self, handle: Any, x: np.ndarray) -> np.ndarray:
        """`x @ W.T` in float32, for W of shape [out, in].

        Parameters
        ----------
        handle
            What `load` returned.
        x
            Of shape [..., in].

        Returns
        -------
        numpy.ndarray
            Of shape [..., out].

        Raises
        ------
        SquishError
            The backend has no such operation, or `x` does not fit (`check_input`).
        """
        raise self.lacks("linear")

    def linear_pointers(self, handle: Any, dtype: str = "f32") -> Callable[[int, int, int], None] | None:
        """`linear` on raw addresses, if this backend computes it in place.

        Parameters
        ----------
        handle
            What `load` returned; it must outlive the function.
        dtype
            Of x and the result: f32, f16 or bf16. Results are the float32 ones, rounded.

        Returns
        -------
        function or None
            Takes the address of contiguous rows of x, their number (at least 1), and the address of the result, with as
            many rows; MemoryError without memory. None if only `linear` is available.
        """
        return None

    def embed(self, handle: Any, ids: np.ndarray) -> np.ndarray:
        """Rows of W by integer ids, in float32.

        Parameters
        ----------
        handle
            What `load` returned.
        ids
            Integers of any shape (`check_ids`).

        Returns
        -------
        numpy.ndarray
            Of shape ids.shape + (in,).

        Raises
        ------
        SquishError
            The backend has no such operation, or an id is out of range.
        """
        raise self.lacks("embed")

    def experts(self, handle: Any, x: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """`x[i] @ W[ids[i]].T` in float32, for W of shape [experts, out, in].

        Parameters
        ----------
        handle
            What `load` returned.
        x
            Of shape [n, in].
        ids
            The expert of each row, of shape [n] (`check_expert_args`).

        Returns
        -------
        numpy.ndarray
            Of shape [n, out].

        Raises
        ------
        SquishError
            The backend has no such operation, or an argument does not fit.
        """
        raise self.lacks("experts")

    def counts(self, handle: Any) -> Counts | None:
        """Counts of the values by magnitude, if this backend counts faster than squish-convert.

        Parameters
        ----------
        handle
            What `load` returned.

        Returns
        -------
        Counts or None
            None makes `Weight.statistics` count them from `dense`.
        """
        return None

    def lacks(self, op: str) -> SquishError:
        """Error for an operation that this backend does not implement.

        Parameters
        ----------
        op
            Name of the operation.

        Returns
        -------
        SquishError
            With code `operation`; not raised here.
        """
        return SquishError(f"backend {self.id!r} has no operation {op!r}", code="operation")


def chosen_backend(chain: Chain, registry: Any) -> Backend:
    """Return the backend that a chain chose, with its options."""
    backend: Backend = registry.backend(chain.chosen.backend)
    return backend.configured(chain.options) if chain.options else backend
