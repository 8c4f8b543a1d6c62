"""One tensor of an open file, and a tensor loaded on a backend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from squish_core import dtypes
from squish_core.backends.base import UNCOVERED
from squish_core.codecs.regions import Region, full, normalise, panels, read_region, sizes, sliced
from squish_core.codecs.stored import StoredArray, check_decoded
from squish_core.display.notebook import page, tensor_lines
from squish_core.errors import CodecError, ConflictError, MissingPluginError, SquishError, TensorError
from squish_core.guard import computing
from squish_core.io.buffer import Buffer
from squish_core.model import Encoding, TensorSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

    from squish_core.analysis.statistics import Statistics
    from squish_core.backends.chain import Chain, Policy
    from squish_core.file import File
    from squish_core.io.source import Backing


class Tensor:
    """One tensor of an open file; nothing is read before `numpy`, `parts`, indexing or `load`."""

    def __init__(self, file: File, spec: TensorSpec) -> None:
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
    def dtype(self) -> str:
        """Logical dtype name; f32 for quantised tensors unless the format says otherwise."""
        return self.spec.dtype

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
        """The values: the stored dtype of dense tensors (a read-only view of the file where it can be), f32 of
        quantised ones.

        `dtype` (a name, or NumPy's) converts, `copy=True` always copies, `out` is filled and returned.
        """
        import numpy as np

        with self._guard("decoding"):
            encoding = self.readable()
            dtype = dtypes.named(dtype)
            if out is not None:
                self._check_out(out, dtype or self._value_dtype(encoding))
            if dtype is not None and dtype != self._value_dtype(encoding):
                values = self._read(encoding, full(self.shape)).astype(dtypes.to_numpy(dtype))
            elif out is not None:
                values = out
                self._fill(encoding, out)
            else:
                values = self._whole(encoding, bool(copy))
            if out is not None and values is not out:
                np.copyto(out, values)
            return values if out is None else out

    def __getitem__(self, key: Any) -> np.ndarray:
        """Values of a region, a read-only view of the file where they lie there as they are.

        Reads only that region's bytes, up to the codec's grain.
        """
        with self._guard("decoding a region"):
            region, rest = normalise(key, self.shape)
            encoding = self.readable()
            if self._stored_as_is(encoding):
                return self.file.array(encoding.parts["data"])[region][rest]
            return self._read(encoding, region)[rest]

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar tensor has no len()")
        return self.shape[0]

    def __bool__(self) -> bool:
        return True  # it is there, however long it is

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[row] for row in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        import numpy as np

        if copy is False:
            with self._guard("decoding"):
                stored_as_is = self._stored_as_is(self.readable())
            if not stored_as_is:
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
        files = (self.file.file(number).backing() for number in sorted(numbers))
        return tuple(backing for backing in files if backing is not None)

    def arrays(self, encoding: Encoding) -> dict[str, StoredArray]:
        """The stored parts of an encoding as virtual arrays, for codecs and backends."""
        return {role: self.file.array(part) for role, part in encoding.parts.items()}

    def chain(self, backend: str | None = None, *, policy: str | Policy = "spec", op: str | None = None) -> Chain:
        """How this tensor would be executed here, and why; reads no tensor bytes.

        `op`: what for; without one `linear` of matrices, `experts` of stacks of them, `dense` of all else.
        """
        from squish_core.backends.resolve import resolve

        with self._guard("resolving"):
            return resolve(
                self.file.registry, self.name, self.file.format, self.spec.encodings,
                spec=self.spec, backend=backend, policy=policy, op=op,
            )  # fmt: skip

    def load(self, backend: str | None = None, *, policy: str | Policy = "spec", op: str | None = None) -> Weight:
        """The tensor ready to use on a backend, still compressed where the backend can. Where its data turn out not to
        suit one that was not asked for by name, the next in the chain's order is taken."""
        chain = self.chain(backend, policy=policy, op=op)
        with self._guard("loading"):
            while True:
                try:
                    return self._loaded(chain)
                except SquishError as error:
                    if error.code != UNCOVERED or backend is not None or not chain.others:
                        raise
                    chain = chain.without_chosen(error.message)

    def _loaded(self, chain: Chain) -> Weight:
        known = self.file.registry
        implementation = known.backend(chain.chosen.backend)
        if chain.options:
            implementation = implementation.configured(chain.options)
        handle = implementation.load(chain, self.arrays(chain.chosen.encoding), known)
        return Weight(self, chain, implementation, handle)

    def statistics(self) -> Statistics:
        """The least and the greatest value, zeros, NaNs, and how many values have which magnitude: one pass in panels,
        on the backend that comes first for exact values."""
        return self.load(policy="exact", op="dense").statistics()

    def readable(self) -> Encoding:
        """The first encoding whose codec and filters are installed; a typed error when there is none."""
        if self.spec.problem and not self.spec.encodings:
            raise TensorError(
                self.spec.problem,
                tensor=self.name,
                code="unreadable",
                hint="Its stored parts stay readable: parts().",
            )
        refusals = []
        for encoding in self.spec.encodings:
            refusal = self.file.registry.missing(encoding)
            if refusal is None:
                return encoding
            refusals.append(refusal)
        why = "; ".join(dict.fromkeys(refusal.why for refusal in refusals)) or "it has no encoding"
        install = next((refusal.install for refusal in refusals if refusal.install), None)
        if any(refusal.code == "conflict" for refusal in refusals) and not install:
            raise ConflictError(why, tensor=self.name, code="conflict")
        raise MissingPluginError(why, code="not-installed", hint=f"Run `{install}`." if install else None)

    def _value_dtype(self, encoding: Encoding) -> str:
        codec = self.file.registry.codec(encoding.codec)
        return codec.value_dtype(self.spec, encoding.codec.params)

    def _whole(self, encoding: Encoding, copy: bool) -> np.ndarray:
        """A view of the file where the values lie there as they are, else a fresh array."""
        import numpy as np

        if not copy and self._stored_as_is(encoding):
            return self.file.array(encoding.parts["data"]).buffer().numpy().reshape(self.shape)
        self._check_decoded(encoding, self.shape)
        out = np.empty(self.shape, dtypes.to_numpy(self._value_dtype(encoding)))
        self._fill(encoding, out)
        return out

    def _fill(self, encoding: Encoding, out: np.ndarray) -> None:
        if self._stored_as_is(encoding) and out.flags.c_contiguous:
            array = self.file.array(encoding.parts["data"])
            if out.nbytes:
                array.read_into(out.reshape(-1).view("u1").data)
            return
        self._read(encoding, full(self.shape), out)

    def _stored_as_is(self, encoding: Encoding) -> bool:
        part = encoding.parts.get("data")
        return (
            encoding.codec.id == "dense" and part is not None and part.byteorder == "<"
            and part.shape == self.shape and part.dtype == self.dtype != "bool"
        )  # fmt: skip

    def _read(self, encoding: Encoding, region: Region, out: np.ndarray | None = None) -> np.ndarray:
        codec = self.file.registry.codec(encoding.codec)
        self._check_decoded(encoding, sizes(region))
        return read_region(codec, self.arrays(encoding), self.spec, encoding.codec.params, region, out)

    def _check_decoded(self, encoding: Encoding, shape: tuple[int, ...]) -> None:
        """What is decoded from few stored bytes (sparse, run lengths) stays within the limits."""
        check_decoded(dtypes.nbytes(self._value_dtype(encoding), shape), encoding.stored, self.file.limits)

    def _check_out(self, out: Any, dtype: str) -> None:
        import numpy as np

        wanted = dtypes.to_numpy(dtype)
        if not isinstance(out, np.ndarray):
            raise TensorError(
                "`out` does not fit", expected=f"writable {wanted} {self.shape}", found=type(out).__name__, code="out"
            )
        if out.shape != self.shape or out.dtype != wanted or not out.flags.writeable:
            raise TensorError(
                "`out` does not fit", expected=f"writable {wanted} {self.shape}",
                found=f"{out.dtype} {out.shape}", code="out",
            )  # fmt: skip

    def _guard(self, what: str, **context: Any) -> Any:
        return computing(CodecError, what, file=self.file.name, tensor=self.name, **context)

    def __repr__(self) -> str:
        return f"<Tensor {self.name!r} {self.dtype}{list(self.shape)} {self.codec}>"

    def _repr_html_(self) -> str:
        return page(tensor_lines([self]))


class Weight:
    """A tensor loaded on a backend. `chain` says how it is held."""

    def __init__(self, tensor: Tensor, chain: Chain, backend: Any, handle: Any) -> None:
        self.tensor, self.chain, self._backend, self._handle = tensor, chain, backend, handle
        self._backing = tensor.backing(chain.chosen.encoding)

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
        from squish_core.analysis.statistics import Tally

        with self.tensor._guard("counting values"):
            self._check_backing()
            found: Statistics | None = self._backend.statistics(self._handle)
            if found is None:
                spec, held = self.tensor.spec, self.chain.chosen.encoding.codec
                grain, tally = self.tensor.file.registry.codec(held).grain(spec, held.params), Tally()
                for region in panels(spec.shape, grain, 4):
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
