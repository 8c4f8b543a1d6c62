"""What users hold: `open` gives a `File`, a `File` maps names to `Tensor`s, a loaded tensor is a `Weight`."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attrs import evolve

from squish_core import dtypes, plugins
from squish_core.buffers import Buffer
from squish_core.detection import detect
from squish_core.errors import CodecError, FormatError, MissingPluginError, SquishError, TensorError
from squish_core.limits import DEFAULT, Limits
from squish_core.model import Encoding, Index, Part, Problem, TensorSpec
from squish_core.plugins import Registry
from squish_core.regions import Region, full, read_region
from squish_core.source import Source, open_source
from squish_core.stored import StoredArray
from squish_core.structure import check_index
from squish_core.typed import plain

if TYPE_CHECKING:
    import numpy as np

    from squish_core.resolver import Chain, Policy


@contextmanager
def guarded(kind: type[SquishError], what: str, **context: Any) -> Iterator[None]:
    """Turn whatever escapes from a plugin into a typed error that says where."""
    try:
        yield
    except SquishError as error:
        raise error.within(**context) from error.__cause__
    except MemoryError as error:
        raise kind(f"not enough memory while {what}", code="memory", **context) from error
    except Exception as error:
        raise kind(
            f"a plugin failed while {what}: {type(error).__name__}: {error}", code="plugin-bug",
            hint="Please report this with the file's header.", **context,
        ) from error  # fmt: skip


def open(  # noqa: A001
    target: Any,
    format: str | None = None,  # noqa: A002
    *,
    strict: bool = False,
    limits: Limits | None = None,
    registry: Registry | None = None,
) -> File:
    """Open a file, a folder or bytes; reads the header only.

    `format` names a container id and is obeyed or fails. `strict` fails on warnings too. Raises a `SquishError`.
    """
    known = registry or plugins.registry()
    limits = limits or DEFAULT
    source = open_source(target)
    try:
        index = read_index(source, known, limits, format)
        if strict:
            fail_on_warnings(index, source)
        return File(source, index, known, limits)
    except BaseException:
        if source is not target:
            source.close()
        raise


def read_index(source: Source, known: Registry, limits: Limits, wanted: str | None = None) -> Index:
    """The checked Index of a source: detect, read, check, refine."""
    infos = known.containers
    base = wanted or detect(source, known)
    refinement = None
    if base in infos and infos[base].info.refines:  # type: ignore[union-attr]
        refinement, base = base, str(infos[base].info.refines)  # type: ignore[union-attr]
    container = known.container(base)
    if source.size == 0 and not source.is_dir:
        raise FormatError("is empty (0 bytes)", file=source.name, code="empty", hint="Fetch the file again.")
    with guarded(FormatError, f"reading the {base} header", file=source.name):
        index = container.read_index(source, limits)
        check_index(index, limits)
    if wanted == base:
        return index  # the format that was asked for: what is stored, with no meaning read into it
    return refine(index, source, known, limits, refinement)


def refine(index: Index, source: Source, known: Registry, limits: Limits, wanted: str | None) -> Index:
    """Let installed refinements read meaning into an Index, until none does."""
    for name, entry in sorted(known.containers.items()):
        if entry.info.refines == index.format and wanted in (None, name):  # type: ignore[union-attr]
            with guarded(FormatError, f"refining as {name}", file=source.name):
                refined = known.container(name).refine(index, source)  # type: ignore[attr-defined]
                if refined is not None:
                    check_index(refined, limits)
                    return refine(refined, source, known, limits, None)
    if wanted is not None:
        raise FormatError(f"does not declare itself as {wanted}", file=source.name, code="format")
    return index


def fail_on_warnings(index: Index, source: Source) -> None:
    """Strict mode: the first warning or error is raised."""
    for problem in index.problems:
        if problem.severity != "note":
            raise FormatError(
                f"{problem.message} (strict)", file=source.name, tensor=problem.where or None, code=problem.code,
                hint=f"{len(index.problems)} findings in all; `squish verify` lists them.",
            )  # fmt: skip


class File(Mapping[str, "Tensor"]):
    """An open file: a mapping from tensor names to tensors, in file order. Safe to share between threads."""

    def __init__(self, source: Source, index: Index, known: Registry, limits: Limits) -> None:
        self.source, self.index, self.registry, self.limits = source, index, known, limits

    @property
    def name(self) -> str:
        """Path or name of the file."""
        return self.source.name

    @property
    def format(self) -> str:
        """Container id."""
        return self.index.format

    @property
    def meta(self) -> dict[str, Any]:
        """Metadata as plain values (`index.meta` keeps the stored types)."""
        return {key: plain(value) for key, value in self.index.meta.items()}

    @property
    def assets(self) -> Mapping[str, Buffer]:
        """Whole files that belong to the model (config, tokenizer), read when indexed."""
        return Assets(self)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What opening found; empty for a clean file."""
        return self.index.problems

    @property
    def children(self) -> dict[str, File]:
        """Indexes inside this file (a draft head), as files of their own."""
        return {
            name: File(self.source, evolve(child, files=child.files or self.index.files), self.registry, self.limits)
            for name, child in self.index.children.items()
        }

    def __getitem__(self, name: str) -> Tensor:
        try:
            return Tensor(self, self.index.tensors[name])
        except KeyError:
            near = difflib.get_close_matches(name, self.index.tensors, 3, 0.5)
            raise KeyError(f"{name!r} is not in {self.name}; near: {', '.join(near) or 'nothing'}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.index.tensors)

    def __len__(self) -> int:
        return len(self.index.tensors)

    def __contains__(self, name: object) -> bool:
        return name in self.index.tensors

    def get_tensor(self, name: str) -> np.ndarray:
        """Decoded array of one tensor (safetensors' habit)."""
        return self[name].numpy()

    def file(self, number: int) -> Source:
        """Source of one of the Index's files."""
        ref = self.index.files[number]
        if not self.source.is_dir and ref.name == self.source.filename:
            return self.source
        source = self.source.member(ref.name)
        if source.size < ref.size:
            raise FormatError(
                "is smaller than when it was opened", file=source.name,
                expected=ref.size, found=source.size, code="changed",
            )  # fmt: skip
        return source

    def array(self, part: Part) -> StoredArray:
        """A part of this file as a virtual array."""
        return StoredArray(part, self.file, self.registry, self.limits)

    def close(self) -> None:
        """Stop new reads; arrays handed out before stay valid."""
        self.source.close()

    def __enter__(self) -> File:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<File {self.name!r} format={self.format} tensors={len(self)}>"


class Assets(Mapping[str, Buffer]):
    """Asset name -> Buffer, read when indexed."""

    def __init__(self, file: File) -> None:
        self._file = file

    def __getitem__(self, name: str) -> Buffer:
        part = self._file.index.assets[name]
        with guarded(FormatError, "reading an asset", file=self._file.name, part=name):
            return self._file.array(part).buffer()

    def __contains__(self, name: object) -> bool:
        return name in self._file.index.assets

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.index.assets)

    def __len__(self) -> int:
        return len(self._file.index.assets)


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

    def numpy(self, *, dtype: str | None = None, out: np.ndarray | None = None, copy: bool | None = None) -> np.ndarray:
        """The values: the stored dtype of dense tensors (a read-only view of the file where it can be), f32 of
        quantised ones; `dtype` converts, `copy=True` always copies, `out` is filled and returned."""
        import numpy as np

        with self._guard("decoding"):
            encoding = self.readable()
            if dtype is not None and dtype != self._value_dtype(encoding):
                values = self._read(encoding, full(self.shape)).astype(dtypes.to_numpy(dtype))
            elif out is not None:
                values = out
                self._check_out(out, encoding)
                self._fill(encoding, out)
            else:
                values = self._whole(encoding, bool(copy))
            if out is not None and values is not out:
                np.copyto(out, values)
            return values if out is None else out

    def __getitem__(self, key: Any) -> np.ndarray:
        """Values of a region; reads only that region's bytes, up to the codec's grain."""
        with self._guard("decoding a region"):
            region, rest = normalise(key, self.shape)
            return self._read(self.readable(), region)[rest]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        import numpy as np

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

    def arrays(self, encoding: Encoding) -> dict[str, StoredArray]:
        """The stored parts of an encoding as virtual arrays, for codecs and backends."""
        return {role: self.file.array(part) for role, part in encoding.parts.items()}

    def chain(self, backend: str | None = None, *, policy: str | Policy = "spec", op: str = "linear") -> Chain:
        """How this tensor would be executed here, and why; reads no tensor bytes."""
        from squish_core.resolver import resolve

        with self._guard("resolving"):
            return resolve(
                self.file.registry, self.name, self.file.format, self.spec.encodings,
                spec=self.spec, backend=backend, policy=policy, op=op,
            )  # fmt: skip

    def load(self, backend: str | None = None, *, policy: str | Policy = "spec", op: str = "linear") -> Weight:
        """The tensor ready to use on a backend, still compressed where the backend can."""
        chain = self.chain(backend, policy=policy, op=op)
        with self._guard("loading"):
            known = self.file.registry
            implementation = known.backend(chain.chosen.backend)
            handle = implementation.load(chain, self.arrays(chain.chosen.encoding), known)
            return Weight(self, chain, implementation, handle)

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
        raise MissingPluginError(why, code="not-installed", hint=f"Run `{install}`." if install else None)

    def _value_dtype(self, encoding: Encoding) -> str:
        codec = self.file.registry.codec(encoding.codec.id)
        return codec.value_dtype(self.spec, encoding.codec.params)

    def _whole(self, encoding: Encoding, copy: bool) -> np.ndarray:
        """A view of the file where the values lie there as they are, else a fresh array."""
        import numpy as np

        if not copy and self._stored_as_is(encoding):
            return self.file.array(encoding.parts["data"]).buffer().numpy().reshape(self.shape)
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
        codec = self.file.registry.codec(encoding.codec.id)
        return read_region(codec, self.arrays(encoding), self.spec, encoding.codec.params, region, out)

    def _check_out(self, out: np.ndarray, encoding: Encoding) -> None:
        wanted = dtypes.to_numpy(self._value_dtype(encoding))
        if out.shape != self.shape or out.dtype != wanted or not out.flags.writeable:
            raise TensorError(
                "`out` does not fit", expected=f"writable {wanted} {self.shape}",
                found=f"{out.dtype} {out.shape}", code="out",
            )  # fmt: skip

    def _guard(self, what: str, **context: Any) -> Any:
        return guarded(CodecError, what, file=self.file.name, tensor=self.name, **context)

    def __repr__(self) -> str:
        return f"<Tensor {self.name!r} {self.dtype}{list(self.shape)} {self.codec}>"


class Weight:
    """A tensor loaded on a backend. `chain` says how it is held."""

    def __init__(self, tensor: Tensor, chain: Chain, backend: Any, handle: Any) -> None:
        self.tensor, self.chain, self._backend, self._handle = tensor, chain, backend, handle

    def dense(self) -> np.ndarray:
        """The decoded array."""
        return self._run("dense")

    def linear(self, x: np.ndarray) -> np.ndarray:
        """`x @ W.T` in float32, for x of shape [..., in]."""
        return self._run("linear", x)

    def embed(self, ids: np.ndarray) -> np.ndarray:
        """Rows of W by integer ids."""
        return self._run("embed", ids)

    def experts(self, x: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """`x[i] @ W[ids[i]].T` for W of shape [experts, out, in]."""
        return self._run("experts", x, ids)

    def _run(self, op: str, *operands: Any) -> np.ndarray:
        with self.tensor._guard(f"running {op}"):
            result: np.ndarray = getattr(self._backend, op)(self._handle, *operands)
            return result


def normalise(key: Any, shape: tuple[int, ...]) -> tuple[Region, tuple[Any, ...]]:
    """A NumPy basic index as the region that must be read and the index that is left for the result."""
    keys = list(key) if isinstance(key, tuple) else [key]
    if Ellipsis in keys:
        at = keys.index(Ellipsis)
        keys[at : at + 1] = [slice(None)] * (len(shape) - len(keys) + 1)
    if len(keys) > len(shape):
        raise TensorError("too many indices", expected=f"at most {len(shape)}", found=len(keys), code="index")
    keys += [slice(None)] * (len(shape) - len(keys))
    region: list[slice] = []
    rest: list[Any] = []
    for item, size in zip(keys, shape):
        if isinstance(item, slice):
            picked = range(*item.indices(size))
            low, high = (min(picked), max(picked) + 1) if len(picked) else (0, 0)
            region.append(slice(low, high))
            rest.append(slice(None, None, picked.step))
            continue
        position = item.__index__() if hasattr(item, "__index__") else None
        if position is None or not -size <= position < size:
            raise TensorError(
                "an index is out of range or not an integer",
                expected=f"-{size}..{size - 1}",
                found=repr(item),
                code="index",
            )
        region.append(slice(position % size, position % size + 1))
        rest.append(0)
    return tuple(region), tuple(rest)
