"""A tensor loaded on a backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from squish_core import dtypes
from squish_core.backends.checks import check_input, check_out, require_rank
from squish_core.codecs.bound import BoundEncoding
from squish_core.codecs.regions import sliced
from squish_core.dtypes import DType
from squish_core.errors import UsageError
from squish_core.shown import Shown, of_convert

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

    from squish_core.backends.base import Backend
    from squish_core.backends.chain import Chain


class Weight(Shown):
    """A tensor loaded on a backend; `chain` explains the choice."""

    def __init__(self, tensor: Any, chain: Chain, bound: BoundEncoding, backend: Backend, handle: Any) -> None:
        self.tensor, self.chain = tensor, chain
        self._bound, self._backend, self._handle = bound, backend, handle
        self._backing = tensor.backing(bound.encoding)

    __array_ufunc__ = None  # NumPy hands `x @ w` to `__rmatmul__`

    @property
    def name(self) -> str:
        """Name of the tensor."""
        return self.tensor.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape."""
        return self.tensor.shape

    @property
    def dtype(self) -> DType:
        """Logical dtype."""
        return self.tensor.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the loaded weight: those in memory and those that the backend uses in place in the mapped file."""
        cost = self.chain.chosen.cost
        return self.tensor.nbytes if cost is None else cost.resident + cost.mapped

    @property
    def backend(self) -> str:
        """Backend id."""
        return self.chain.chosen.backend

    def __matmul__(self, x: Any) -> np.ndarray:
        """`W @ x` in float32 with NumPy's shapes, for x of shape [in] or [in, n]."""
        import numpy as np

        x = np.asarray(x)
        if x.ndim not in (1, 2):
            raise UsageError(
                "w @ x takes a vector or a matrix",
                tensor=self.name,
                expected="x of shape [in] or [in, n]",
                found=f"shape {list(x.shape)}",
                code="shape",
                hint="For batches of rows, use w.linear(x), which is x @ W.T.",
            )
        return self.linear(x.T).T

    def __rmatmul__(self, x: Any) -> np.ndarray:
        hint = "Use w.linear(x), which is x @ W.T; or w @ x for W @ x."
        raise UsageError("x @ w is not defined", tensor=self.name, code="operand", hint=hint)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        import numpy as np

        if copy is False:
            raise ValueError(f"{self.name} must be decoded, so copy=False is impossible")  # NumPy's protocol
        return np.asarray(self.dense(), dtype=dtype)

    def dense(
        self, *, region: Any = None, dtype: str | DTypeLike | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the decoded array, or a region of it.

        Parameters
        ----------
        region
            Slices without steps, as in indexing; all by default.
        dtype
            Convert to this dtype, a name or NumPy's.
        out
            Array to fill.

        Returns
        -------
        numpy.ndarray
            Float32 unless `dtype` says otherwise; `out` if it was given.

        Examples
        --------
        >>> weight = squish.open("model.gguf")["blk.0.ffn_up.weight"].load("numpy")
        >>> weight.dense(region=np.s_[:2]).shape
        (2, 32)
        """
        with self.tensor.guard("running dense"):
            slices = None if region is None else sliced(region, self.tensor.shape)
        return self._run("dense", region=slices, dtype=dtypes.named(dtype), out=out)

    def linear(self, x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """`x @ W.T` in float32.

        Parameters
        ----------
        x
            Of shape [..., in]: an array, or a tensor of another library on the CPU.
        out
            A float32 array for the result, filled without a copy if it is contiguous and the backend can.

        Returns
        -------
        numpy.ndarray
            Of shape [..., out]; `out` if it was given.

        Raises
        ------
        UsageError
            `x` or `out` does not fit.

        Examples
        --------
        >>> weight = squish.open("model.gguf")["blk.0.ffn_up.weight"].load("numpy")
        >>> weight.linear(np.ones((5, 32), "f4")).shape
        (5, 64)
        """
        return self._run("linear", x) if out is None else self._linear_into(x, out)

    def _linear_into(self, x: np.ndarray, out: np.ndarray) -> np.ndarray:
        import numpy as np

        spec = self.tensor.spec
        with self.tensor.guard("running linear"):
            rows, columns = require_rank(spec, 2)
            x = check_input(x, columns, spec)
            check_out(out, "f32", (*x.shape[:-1], rows))
            self._check_backing()
            multiply = self._backend.linear_pointers(self._handle)
            in_place = out.flags.c_contiguous and out.flags.aligned and not np.may_share_memory(x, out)
            if multiply is None or not in_place:
                out[...] = self._backend.linear(self._handle, x)
            elif out.size:
                x = np.require(x, requirements=["C", "A"])
                multiply(x.ctypes.data, out.size // rows, out.ctypes.data)
        return out

    def linear_pointers(self, dtype: str = "f32") -> Callable[[int, int, int], None] | None:
        """`linear` on raw addresses, for callers that check shapes and memory themselves.

        Parameters
        ----------
        dtype
            Of x and the result: f32, f16 or bf16. Results are the float32 ones, rounded.

        Returns
        -------
        function or None
            Takes the address of contiguous rows of x, their number (at least 1), and the address of the result; this
            weight must outlive it. None if the backend has no such call, or if the codes are mapped from a file:
            `linear` checks its size at each call.

        Examples
        --------
        >>> squish.open("model.gguf")["blk.0.ffn_up.weight"].load("numpy").linear_pointers() is None
        True
        """
        return None if self._backing else self._backend.linear_pointers(self._handle, dtype)

    def embed(self, ids: np.ndarray) -> np.ndarray:
        """Rows of W by integer ids.

        Parameters
        ----------
        ids
            Integers of any shape, each in [0, rows).

        Returns
        -------
        numpy.ndarray
            Float32 of shape ids.shape + (columns,).

        Examples
        --------
        >>> weight = squish.open("model.gguf")["blk.0.ffn_up.weight"].load("numpy")
        >>> weight.embed(np.array([[3, 0]])).shape
        (1, 2, 32)
        """
        return self._run("embed", ids)

    def experts(self, x: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """`x[i] @ W[ids[i]].T` in float32, for W of shape [experts, out, in].

        Parameters
        ----------
        x
            Of shape [n, in].
        ids
            The expert of each row, of shape [n].

        Returns
        -------
        numpy.ndarray
            Of shape [n, out].

        Examples
        --------
        >>> report = squish.save("experts.gguf", {"w": np.ones((2, 3, 32), "f4")})
        >>> weight = squish.open("experts.gguf")["w"].load("numpy")
        >>> weight.experts(np.ones((4, 32), "f4"), np.array([0, 1, 1, 0])).shape
        (4, 3)
        """
        return self._run("experts", x, ids)

    def statistics(self) -> Any:
        """Statistics of the values in this backend; see `Tensor.statistics`.

        Returns
        -------
        Statistics
            Of the decoded values.

        Examples
        --------
        >>> weight = squish.open("model.gguf")["blk.0.ffn_up.weight"].load("numpy")
        >>> weight.statistics().values
        2048
        """
        with self.tensor.guard("counting values"):
            self._check_backing()
            regions = self._bound.panels()
            panels = (self._backend.dense(self._handle, region=region) for region in regions)
            counts = self._backend.counts(self._handle)
            return of_convert("statistics").statistics_of_weight(self, counts, panels)

    def _run(self, op: str, *operands: Any, **options: Any) -> np.ndarray:
        with self.tensor.guard(f"running {op}"):
            self._check_backing()
            result: np.ndarray = getattr(self._backend, op)(self._handle, *operands, **options)
            return result

    def _check_backing(self) -> None:
        """Check that mapped files were not truncated, since accessing one would kill the process."""
        for backing in self._backing:
            backing.check()

    def __repr__(self) -> str:
        tensor, offer = self.tensor, self.chain.chosen
        state = f"{offer.encoding.codec.id} on {offer.backend} ({offer.mode})"
        return f"<Weight {tensor.name!r} {list(tensor.shape)} {state}>"
