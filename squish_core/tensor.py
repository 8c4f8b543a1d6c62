"""One tensor of an open file."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from squish_core import dtypes
from squish_core.codecs.bound import BoundEncoding
from squish_core.codecs.regions import normalize
from squish_core.codecs.rows import picked_rows, read_rows
from squish_core.codes import ErrorCode
from squish_core.dtypes import DType
from squish_core.errors import CodecError, ConflictError, MissingPluginError, SquishError, TensorError
from squish_core.guard import boundary, computing
from squish_core.io.buffer import CPU_DEVICE, Buffer, copied_dlpack
from squish_core.model import Encoding, check_declared
from squish_core.shown import Plotted
from squish_core.text import install_hint

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

    from squish_core.backends.chain import Chain, OfferOrder
    from squish_core.backends.weight import Weight
    from squish_core.codecs.stored import StoredArray
    from squish_core.io.source import Backing, Source
    from squish_core.model import Index, Part, TensorSpec
    from squish_core.plugins.registry import Registry

    class OpenFile(Protocol):
        """What tensors and summaries use of `File`, which imports them."""

        source: Source
        index: Index
        registry: Registry

        @property
        def name(self) -> str: ...
        @property
        def format(self) -> str: ...
        def source_for(self, number: int) -> Source: ...
        def array(self, part: Part) -> StoredArray: ...
        def bind(self, spec: TensorSpec, encoding: Encoding) -> BoundEncoding: ...


class Tensor(Plotted):
    """One tensor of an open file. Data is read only by `numpy`, `parts`, indexing and `load`."""

    def __init__(self, file: OpenFile, spec: TensorSpec) -> None:
        self.file, self.spec = file, spec

    @property
    def name(self) -> str:
        """Name."""
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
        """Stored size of the first encoding, in bytes."""
        if self.spec.encodings:
            return self.spec.encodings[0].stored
        return sum(part.stored for part in self.spec.extras.values())

    @property
    def bits_per_weight(self) -> float:
        """Stored bits per logical element, scales included."""
        return 8 * self.nbytes / self.spec.elements if self.spec.elements else 0.0

    def backing(self, encoding: Encoding) -> tuple[Backing, ...]:
        """Return the files that views of an encoding's parts depend on."""
        parts = [part for part in encoding.parts.values() if part.data is None and not part.filters]
        numbers = {segment.file for part in parts for segment in part.segments if segment.length}
        files = (self.file.source_for(number).backing() for number in sorted(numbers))
        return tuple(backing for backing in files if backing is not None)

    def guard(self, what: str, **context: Any) -> Any:
        return computing(CodecError, what, file=self.file.name, tensor=self.spec.name, **context)

    def numpy(
        self, *, dtype: str | DTypeLike | None = None, out: np.ndarray | None = None, copy: bool | None = None
    ) -> np.ndarray:
        """Return the values, read-only unless `copy=True`.

        Dense tensors keep their dtype (and are views of the file if possible), others become float32.

        Parameters
        ----------
        dtype
            Convert to this dtype, a name or NumPy's.
        out
            C-contiguous array of this shape to fill.
        copy
            If True, return a writable array that owns its memory.

        Returns
        -------
        numpy.ndarray
            In the tensor's shape; `out` if given.

        Raises
        ------
        SquishError
            The tensor cannot be decoded here, or `out` does not fit.

        Examples
        --------
        >>> tensor = squish.open("model.gguf")["blk.0.ffn_up.weight"]
        >>> tensor.numpy(dtype="f16").dtype.name, tensor[:2].shape
        ('float16', (2, 32))
        """
        import numpy as np

        with self.guard("decoding"):
            bound = self.bound
            own = bound.dtype
            dtype = own if dtype is None else dtypes.named(dtype) or own
            if out is not None:
                from squish_core.backends.checks import check_out

                check_out(out, dtype, self.shape)
            view = bound.view
            if dtype != own:
                values = bound.in_memory().read().astype(dtypes.to_numpy(dtype))
            elif out is None and view is not None and not copy:
                return view.buffer().numpy().reshape(self.shape)
            elif view is None or not (out is None or out.flags.c_contiguous):
                values = bound.in_memory().read(out=out)
            else:
                bound.check_limits()
                values = np.empty(self.shape, dtypes.to_numpy(dtype)) if out is None else out
                if values.nbytes:
                    view.read_into(values.reshape(-1).view("u1").data)
            if out is None:
                values.setflags(write=bool(copy))
            elif values is not out:
                np.copyto(out, values)
            return values if out is None else out

    def __getitem__(self, key: Any) -> np.ndarray:
        """Values of a region or a list of rows, read-only. Reads only their bytes, up to the codec's grain."""
        with self.guard("decoding a region"):
            if (picked := picked_rows(key, self.bound)) is not None:
                rows = read_rows(self.bound, *picked)
                rows.flags.writeable = False
                return rows
            region, rest = normalize(key, self.shape)
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
            with self.guard("decoding"):
                view = self.bound.view
            if view is None:
                raise ValueError(f"{self.name} must be decoded, so copy=False is impossible")  # NumPy's protocol
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU_DEVICE

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """DLPack capsule of the values, in memory that the consumer may write; the file never changes.

        Dense values are exported as by `Buffer`; others are decoded, for which `copy=False` raises BufferError.
        """
        with self.guard("decoding"):
            bound = self.bound
            buffer = None if bound.view is None else bound.view.buffer()
        if buffer is not None:
            return buffer.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)
        if copy is False:
            raise BufferError(f"{self.name} must be decoded, so copy=False is impossible")
        return copied_dlpack(self.numpy(copy=True), bound.dtype, max_version, dl_device)

    def parts(self, encoding: Encoding | None = None) -> dict[str, Buffer]:
        """Return the stored parts of an encoding and the extras, as zero-copy buffers.

        Parameters
        ----------
        encoding
            One of `spec.encodings`; the first by default.

        Returns
        -------
        dict of Buffer
            Role -> buffer.

        Examples
        --------
        >>> squish.open("model.gguf")["blk.0.ffn_up.weight"].parts()
        {'data': Buffer(dtype='u8', shape=(64, 34), nbytes=2176)}
        """
        source = encoding or (self.spec.encodings[0] if self.spec.encodings else None)
        parts_by_role = {**(source.parts if source else {}), **self.spec.extras}
        buffers = {}
        for role, part in parts_by_role.items():
            with self.guard("reading a part", part=role):
                buffers[role] = self.file.array(part).buffer()
        return buffers

    @cached_property
    def bound(self) -> BoundEncoding:
        """The first encoding whose codec and filters are installed, ready to read; a typed error if there is none."""
        check_declared(self.spec)
        refusals = []
        for encoding in self.spec.encodings:
            if (refusal := self.file.registry.missing(encoding)) is None:
                return self.file.bind(self.spec, encoding)
            refusals.append(refusal)
        if self.spec.problem:
            raise TensorError(
                self.spec.problem, tensor=self.name, code=ErrorCode.UNREADABLE, hint="parts() returns its stored bytes."
            )
        why = "; ".join(dict.fromkeys(refusal.why for refusal in refusals)) or "it has no encoding"
        hint = install_hint(refusal.install for refusal in refusals)
        if any(refusal.code == ErrorCode.CONFLICT for refusal in refusals) and not hint:
            raise ConflictError(why, tensor=self.name, code=ErrorCode.CONFLICT)
        raise MissingPluginError(why, code=ErrorCode.NOT_INSTALLED, hint=hint)

    def plan(self, backend: str | None = None, *, policy: str | OfferOrder = "spec", op: str | None = None) -> Chain:
        """How this tensor would run here, and why; reads no tensor bytes, unless options of the backend ask for it.

        Parameters
        ----------
        backend
            Backend id, possibly with options (`"ane:device=M1"`); any by default.
        policy
            Order of the offers: "spec" (the format's order), "smallest" (least memory), "exact", or a function from an
            offer to a sort key.
        op
            "linear", "embed", "experts" or "dense"; by default "linear" for matrices, "experts" for stacks of
            matrices, "dense" for the rest.

        Returns
        -------
        Chain
            The choice, other offers and refusals; `print(chain)` explains it.

        Raises
        ------
        SquishError
            Nothing installed can run it; the message lists the reasons.

        Examples
        --------
        >>> squish.open("model.gguf")["blk.0.ffn_up.weight"].plan("numpy").chosen.mode
        'fold'
        """
        from squish_core.backends.plan import with_value_facts

        file = self.file
        return with_value_facts(self._resolve(backend, policy, op), file.registry, file.name, file.bind)

    chain = plan

    def _resolve(self, backend: str | None, policy: str | OfferOrder, op: str | None) -> Chain:
        from squish_core.backends.resolve import resolve

        file, spec = self.file, self.spec
        with boundary(CodecError, "resolving", file=file.name, tensor=spec.name):
            return resolve(
                file.registry, spec.name, file.format, spec.encodings, spec=spec, backend=backend, policy=policy, op=op
            )

    def load(self, backend: str | None = None, *, policy: str | OfferOrder = "spec", op: str | None = None) -> Weight:
        """Load the tensor on a backend, which keeps it compressed if it can.

        Falls back to the next backend if the chosen one rejects the data, unless `backend` names one.

        Parameters
        ----------
        backend, policy, op
            As in `plan`.

        Returns
        -------
        Weight
            `linear`, `embed`, `experts`, `dense` and `@` run on the backend, if it implements them.

        Raises
        ------
        SquishError
            Nothing installed can run it, or the data are damaged.

        Examples
        --------
        >>> squish.open("model.gguf")["blk.0.ffn_up.weight"].load().linear(np.ones((1, 32), "f4")).shape
        (1, 64)
        """
        chain = self._resolve(backend, policy, op)
        with self.guard("loading"):
            while True:
                try:
                    return self._load(chain)
                except SquishError as error:
                    if error.code != ErrorCode.UNCOVERED or backend is not None or not chain.others:
                        raise
                    chain = chain.without_chosen(error.message)

    def _load(self, chain: Chain) -> Weight:
        from squish_core.backends.base import chosen_backend
        from squish_core.backends.weight import Weight

        implementation = chosen_backend(chain, self.file.registry)
        bound = self.file.bind(self.spec, chain.chosen.encoding)
        return Weight(self, chain, bound, implementation, implementation.load(chain, bound))

    def statistics(self) -> Any:
        """Moments, quantiles, zeros, NaNs and a histogram of magnitudes, in one pass on the first exact backend.

        Returns
        -------
        Statistics
            Statistics of the decoded values; extremes are those of finite values.

        Examples
        --------
        >>> squish.open("model.gguf")["blk.0.ffn_norm.weight"].statistics().max
        1.0
        """
        return self.load(policy="exact", op="dense").statistics()

    def __repr__(self) -> str:
        return f"<Tensor {self.name!r} {self.dtype}{list(self.shape)} {self.codec}>"
