"""One tensor of an open file."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from squish_core import dtypes
from squish_core.backends.checks import check_out
from squish_core.codecs.bound import BoundEncoding
from squish_core.codecs.regions import normalise, sliced
from squish_core.codes import UNCOVERED
from squish_core.display.notebook import page, tensor_lines
from squish_core.dtypes import DType
from squish_core.errors import CodecError, ConflictError, MissingPluginError, SquishError, TensorError, UsageError
from squish_core.guard import computing
from squish_core.io.buffer import Buffer
from squish_core.model import Encoding, TensorSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

    from squish_core.backends.base import Backend
    from squish_core.backends.chain import Chain, OfferOrder
    from squish_core.io.source import Backing
    from squish_core.reader import Reader
    from squish_core.statistics import Statistics


class Tensor:
    """One tensor of an open file; nothing is read before `numpy`, `parts`, indexing or `load`."""

    def __init__(self, file: Reader, spec: TensorSpec) -> None:
        self.file, self.spec = file, spec

    @property
    def name(self) -> str:
        """Name, verbatim."""
        return self.spec.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape."""
        return self.spec.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.spec.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.spec.elements

    @property
    def dtype(self) -> DType:
        """Logical dtype; f32 for quantized tensors unless the format says otherwise."""
        return DType(self.spec.dtype)

    @property
    def codec(self) -> str:
        """Codec id of the first encoding, or "unknown"."""
        return self.spec.encodings[0].codec.id if self.spec.encodings else "unknown"

    @property
    def nbytes(self) -> int:
        """Bytes stored in the file by the first encoding."""
        if self.spec.encodings:
            return self.spec.encodings[0].stored
        return sum(part.stored for part in self.spec.extras.values())

    @property
    def bits_per_weight(self) -> float:
        """Stored bits per logical element, scales included."""
        return 8 * self.nbytes / self.spec.elements if self.spec.elements else 0.0

    def numpy(
        self, *, dtype: str | DTypeLike | None = None, out: np.ndarray | None = None, copy: bool | None = None
    ) -> np.ndarray:
        """The values, read-only unless `copy=True`: dense tensors as stored (a view of the file if possible), else f32.

        `dtype` (a name, or NumPy's) converts; `out` is filled and returned.
        """
        import numpy as np

        with self._guard("decoding"):
            bound = self.bound
            dtype = dtypes.named(dtype) or bound.dtype
            if out is not None:
                check_out(out, dtype, self.shape)
            view = bound.view
            if dtype != bound.dtype:
                values = bound.read().astype(dtypes.to_numpy(dtype))
            elif out is None and view is not None and not copy:
                return view.buffer().numpy().reshape(self.shape)
            else:
                bound.check_limits()
                values = np.empty(self.shape, dtypes.to_numpy(dtype)) if out is None else out
                if view is not None and values.flags.c_contiguous:
                    if values.nbytes:
                        view.read_into(values.reshape(-1).view("u1").data)
                else:
                    bound.read(out=values)
            if out is None:
                values.flags.writeable = bool(copy)
            elif values is not out:
                np.copyto(out, values)
            return values if out is None else out

    def __getitem__(self, key: Any) -> np.ndarray:
        """Values of a region, read-only; reads only that region's bytes, up to the codec's grain."""
        with self._guard("decoding a region"):
            region, rest = normalise(key, self.shape)
            view = self.bound.view
            values = self.bound.read(region) if view is None else view[region]
            values.flags.writeable = False
            return values[rest]

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar tensor has no len()")
        return self.shape[0]

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[np.ndarray]:
        return map(self.__getitem__, range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        import numpy as np

        if copy is False:
            with self._guard("decoding"):
                view = self.bound.view
            if view is None:
                raise ValueError(f"{self.name} must be decoded, so copy=False cannot be kept")  # NumPy's protocol
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def parts(self, encoding: Encoding | None = None) -> dict[str, Buffer]:
        """The stored parts of an encoding (the first by default) and the extras, as zero-copy buffers."""
        chosen = encoding or (self.spec.encodings[0] if self.spec.encodings else None)
        found = {**(chosen.parts if chosen else {}), **self.spec.extras}
        buffers = {}
        for role, part in found.items():
            with self._guard("reading a part", part=role):
                buffers[role] = self.file.array(part).buffer()
        return buffers

    def backing(self, encoding: Encoding) -> tuple[Backing, ...]:
        """The files that views of an encoding's parts depend on."""
        parts = [part for part in encoding.parts.values() if part.data is None and not part.filters]
        numbers = {segment.file for part in parts for segment in part.segments if segment.length}
        files = (self.file.source_for(number).backing() for number in sorted(numbers))
        return tuple(backing for backing in files if backing is not None)

    @cached_property
    def bound(self) -> BoundEncoding:
        """The first encoding whose codec and filters are installed, ready to read; a typed error when there is none."""
        if self.spec.problem and not self.spec.encodings:
            raise TensorError(self.spec.problem, tensor=self.name, code="unreadable", hint="parts() gives its bytes.")
        refusals = []
        for encoding in self.spec.encodings:
            if (refusal := self.file.registry.missing(encoding)) is None:
                return self.file.bind(self.spec, encoding)
            refusals.append(refusal)
        why = "; ".join(dict.fromkeys(refusal.why for refusal in refusals)) or "it has no encoding"
        install = next((refusal.install for refusal in refusals if refusal.install), None)
        if any(refusal.code == "conflict" for refusal in refusals) and not install:
            raise ConflictError(why, tensor=self.name, code="conflict")
        raise MissingPluginError(why, code="not-installed", hint=f"Run `{install}`." if install else None)

    def plan(self, backend: str | None = None, *, policy: str | OfferOrder = "spec", op: str | None = None) -> Chain:
        """How this tensor would run here, and why; reads no tensor bytes.

        Parameters
        ----------
        backend
            Backend id, with options for some (`"ane:device=M1"`); any by default.
        policy
            Order of the offers: "spec", "smallest", "exact", or a function from an offer to a sort key.
        op
            "linear", "embed", "experts" or "dense"; by default "linear" for matrices, "experts" for stacks of
            matrices, "dense" for the rest.

        Raises
        ------
        SquishError
            Nothing installed can run it; the message holds each reason.
        """
        from squish_core.backends.resolve import resolve

        with self._guard("resolving"):
            return resolve(
                self.file.registry, self.name, self.file.format, self.spec.encodings,
                spec=self.spec, backend=backend, policy=policy, op=op,
            )  # fmt: skip

    chain = plan

    def load(self, backend: str | None = None, *, policy: str | OfferOrder = "spec", op: str | None = None) -> Weight:
        """The tensor ready to use on a backend, still compressed where the backend can.

        Falls back to the next backend if the chosen one rejects the data, unless `backend` was given.
        """
        chain = self.plan(backend, policy=policy, op=op)
        with self._guard("loading"):
            while True:
                try:
                    return self._loaded(chain)
                except SquishError as error:
                    if error.code != UNCOVERED or backend is not None or not chain.others:
                        raise
                    chain = chain.without_chosen(error.message)

    def _loaded(self, chain: Chain) -> Weight:
        implementation = self.file.registry.backend(chain.chosen.backend)
        if chain.options:
            implementation = implementation.configured(chain.options)
        bound = self.file.bind(self.spec, chain.chosen.encoding)
        return Weight(self, chain, bound, implementation, implementation.load(chain, bound))

    def statistics(self) -> Statistics:
        """Extremes, zeros, NaNs and a histogram of magnitudes, in one pass on the first exact backend."""
        return self.load(policy="exact", op="dense").statistics()

    def _guard(self, what: str, **context: Any) -> Any:
        return computing(CodecError, what, file=self.file.name, tensor=self.name, **context)

    def __repr__(self) -> str:
        return f"<Tensor {self.name!r} {self.dtype}{list(self.shape)} {self.codec}>"

    def _repr_html_(self) -> str:
        return page(tensor_lines([self]))


class Weight:
    """A tensor loaded on a backend. `chain` says how it is held."""

    def __init__(self, tensor: Tensor, chain: Chain, bound: BoundEncoding, backend: Backend, handle: Any) -> None:
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
        """Bytes in memory while loaded, as the backend computes them."""
        cost = self.chain.chosen.cost
        return self.tensor.nbytes if cost is None else cost.resident

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
                "w @ x takes a vector or a matrix", tensor=self.name, expected="x of shape [in] or [in, n]",
                found=f"shape {list(x.shape)}", code="shape",
                hint="For batches of rows, use w.linear(x), which is x @ W.T.",
            )  # fmt: skip
        return self.linear(x.T).T

    def __rmatmul__(self, x: Any) -> np.ndarray:
        raise UsageError(
            "x @ w is not defined", tensor=self.name, code="operand",
            hint="Use w.linear(x), which is x @ W.T; or w @ x for W @ x.",
        )  # fmt: skip

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        import numpy as np

        if copy is False:
            raise ValueError(f"{self.name} must be decoded, so copy=False cannot be kept")  # NumPy's protocol
        return np.asarray(self.dense(), dtype=dtype)

    def dense(
        self, *, region: Any = None, dtype: str | DTypeLike | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        """The decoded array, or a region of it (slices without steps), as `dtype` and into `out` if given."""
        with self.tensor._guard("running dense"):
            wanted = None if region is None else sliced(region, self.tensor.shape)
        return self._run("dense", region=wanted, dtype=dtypes.named(dtype), out=out)

    def linear(self, x: np.ndarray) -> np.ndarray:
        """`x @ W.T` in float32, for x of shape [..., in]: an array, or a tensor of another library on the CPU."""
        return self._run("linear", x)

    def embed(self, ids: np.ndarray) -> np.ndarray:
        """Rows of W by integer ids."""
        return self._run("embed", ids)

    def experts(self, x: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """`x[i] @ W[ids[i]].T` for W of shape [experts, out, in]."""
        return self._run("experts", x, ids)

    def statistics(self) -> Statistics:
        """As `Tensor.statistics`, of the values as they are held here; for a backend that has `dense`."""
        from squish_core.statistics import Tally

        with self.tensor._guard("counting values"):
            self._check_backing()
            found: Statistics | None = self._backend.statistics(self._handle)
            if found is None:
                tally = Tally()
                for region in self._bound.panels():
                    tally.add(self._backend.dense(self._handle, region=region))
                found = tally.statistics()
            return found

    def _run(self, op: str, *operands: Any, **wishes: Any) -> np.ndarray:
        with self.tensor._guard(f"running {op}"):
            self._check_backing()
            result: np.ndarray = getattr(self._backend, op)(self._handle, *operands, **wishes)
            return result

    def _check_backing(self) -> None:
        """A mapped file that was cut kills the process on access: look before each operation."""
        for backing in self._backing:
            backing.check()

    def __repr__(self) -> str:
        tensor, offer = self.tensor, self.chain.chosen
        how = f"{offer.encoding.codec.id} on {offer.backend} ({offer.mode})"
        return f"<Weight {tensor.name!r} {list(tensor.shape)} {how}>"
