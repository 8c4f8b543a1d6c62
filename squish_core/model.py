"""The data model: a format plugin is a function from bytes to an `Index`, and an Index is plain data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from attrs import evolve, field, frozen

from squish_core import dtypes
from squish_core.errors import Problem, TensorError

VIEWABLE = frozenset(name for name in dtypes.NAMES if dtypes.bits(name) >= 8) - {"bool"}
"""Dtypes that can be viewed without decoding: they are not packed and have no invalid bytes."""


_SCALARS = frozenset((str, int, float, bool, bytes, type(None)))


def data_key(value: Any) -> Hashable:
    """Plain data as a key with types, so that 1, 1.0 and True differ; TypeError for anything else."""
    kind = type(value)
    if kind in _SCALARS:
        return kind, value
    if isinstance(value, Mapping):
        return kind, tuple([(key, data_key(item)) for key, item in value.items()])
    if kind in (list, tuple):
        return kind, tuple([data_key(item) for item in value])
    raise TypeError(f"{kind.__name__} is not plain data")


@frozen
class Segment:
    """A byte range of a file; `file` is an index into `Index.files`."""

    file: int
    offset: int
    length: int


class Segments(Sequence[Segment]):
    """Segments built on access; `nbytes` is their total length."""

    @property
    def nbytes(self) -> int:
        """Total length."""
        return sum([segment.length for segment in self])


@frozen
class Filter:
    """A byte codec, such as zstd, applied to the bytes of a part, with its parameters."""

    codec: str
    params: Mapping[str, Any] = field(factory=dict)


@frozen(kw_only=True)
class Part:
    """One stored array: dtype and shape before filters, and the location of its bytes.

    Several segments are concatenated in order. `filters` were applied in order on writing. `digest` is
    `<algorithm>:<hex>` of the stored bytes, or of the decoded ones if `digest_of` is "decoded". `data` contains the
    bytes of a small part inline. `byteorder` is "<" or ">".
    """

    dtype: str
    shape: tuple[int, ...]
    segments: Sequence[Segment] = ()
    filters: tuple[Filter, ...] = ()
    digest: str | None = None
    digest_of: str = "stored"
    data: bytes | memoryview | None = None
    byteorder: str = "<"

    @property
    def in_place(self) -> bool:
        """Whether the part can be viewed without a copy."""
        return not self.filters and self.byteorder == "<" and (self.data is not None or len(self.segments) == 1)

    @property
    def nbytes(self) -> int:
        """Size in bytes before filters."""
        return dtypes.nbytes(self.dtype, self.shape)

    @property
    def stored(self) -> int:
        """Size in bytes in the file."""
        if self.data is not None:
            return len(self.data)
        if isinstance(self.segments, Segments):
            return self.segments.nbytes
        return sum([segment.length for segment in self.segments])


@frozen
class CodecSpec:
    """A codec id with its parameters; `inner` is the wrapped codec of a wrapping one."""

    id: str
    params: Mapping[str, Any] = field(factory=dict)
    inner: CodecSpec | None = None

    def __str__(self) -> str:
        text = self.id + (f":{','.join(f'{k}={v}' for k, v in self.params.items())}" if self.params else "")
        return f"{text}({self.inner})" if self.inner else text

    @property
    def key(self) -> Hashable:
        """Equal for equal specifications; TypeError for parameters that are not plain data."""
        if not self.params and self.inner is None:
            return self.id
        return self.id, data_key(self.params), None if self.inner is None else self.inner.key


DENSE = CodecSpec("dense")
"""Values stored in row-major order."""


@frozen(kw_only=True)
class Encoding:
    """One way to obtain a tensor: a codec over named parts. `label` distinguishes a tensor's encodings."""

    codec: CodecSpec
    parts: Mapping[str, Part] = field(factory=dict)
    label: str = "stored"

    @property
    def filtered(self) -> bool:
        """Whether any part has filters."""
        return any(part.filters for part in self.parts.values())

    @property
    def stored(self) -> int:
        """Total size of the parts in the file, in bytes."""
        return sum([part.stored for part in self.parts.values()])


@frozen(kw_only=True)
class TensorSpec:
    """A logical tensor. `encodings` are ranked, best first; `extras` are parts that no codec reads.

    `tied_to` names the tensor whose bytes it shares; `problem` says why its values cannot be read. `row_names` of a
    stacked tensor: the name before and after the row number, for formats that store each row of the first axis as a
    tensor. `undeclared`: what is not known about its values, so that only its stored bytes are read and copied.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    encodings: tuple[Encoding, ...] = ()
    extras: Mapping[str, Part] = field(factory=dict)
    tied_to: str | None = None
    attrs: Mapping[str, Any] = field(factory=dict)
    problem: str | None = None
    row_names: tuple[str, str] | None = None
    undeclared: Problem | None = None

    @property
    def elements(self) -> int:
        """Number of logical elements."""
        return dtypes.count(self.shape)

    def without(self, labels: Collection[str]) -> TensorSpec:
        """The tensor without the encodings with these labels, if it has others; its dtype follows their first."""
        others = tuple(encoding for encoding in self.encodings if encoding.label not in labels)
        if not others or len(others) == len(self.encodings):
            return self
        codecs = [encoding.codec for encoding in others]
        own = [codec.params.get("dtype", self.dtype) if codec.id == "dense" else "f32" for codec in codecs]
        dense = {dtype: DENSE if dtype == own[0] else CodecSpec("dense", {"dtype": dtype}) for dtype in own}
        pairs = zip(others, own)
        ranked = [evolve(other, codec=dense[dtype]) if other.codec.id == "dense" else other for other, dtype in pairs]
        return evolve(self, dtype=own[0], encodings=tuple(ranked))

    def stored_values(self, encoding: Encoding) -> Part | None:
        """Return the part that contains an encoding's values uncoded; None if they must be decoded."""
        part = encoding.parts.get("data") if encoding.codec.id == "dense" else None
        if part is None or (part.dtype, part.shape, part.byteorder) != (self.dtype, self.shape, "<"):
            return None
        return part if part.dtype in VIEWABLE else None

    def dense_record(self) -> DenseRecord | None:
        """Return the record of a dense tensor in a single byte range; None for others."""
        if self.undeclared is not None:
            return None
        part = self.stored_values(self.encodings[0]) if self.encodings else None
        if part is None or not part.in_place or not part.segments or part.nbytes != part.segments[0].length:
            return None
        return DenseRecord(part.dtype, part.shape, part.segments[0].file, part.segments[0].offset, part.digest)


def check_declared(spec: TensorSpec) -> None:
    """TensorError with the code of the finding if a tensor's values are undeclared."""
    if (finding := spec.undeclared) is not None:
        raise TensorError(finding.message, tensor=spec.name, code=finding.code)


class DenseRecord(NamedTuple):
    """A dense tensor in a single byte range, little-endian, row-major.

    `file` is an index into `Index.files`; `digest` is that of the range. Dtypes below 8 bits are packed.
    """

    dtype: str
    shape: tuple[int, ...]
    file: int
    offset: int
    digest: str | None = None

    def spec(self, name: str) -> TensorSpec:
        """Return the tensor's spec, with the dense codec."""
        size = dtypes.nbytes(self.dtype, self.shape)
        dtype, shape = (self.dtype, self.shape) if dtypes.bits(self.dtype) >= 8 else ("u8", (size,))
        segments = (Segment(self.file, self.offset, size),)
        part = Part(dtype=dtype, shape=shape, segments=segments, digest=self.digest)
        encoding = Encoding(codec=DENSE, parts={"data": part})
        return TensorSpec(name=name, shape=self.shape, dtype=self.dtype, encodings=(encoding,))


DenseFields = tuple[str, tuple[int, ...], int, int, str | None]
"""The fields of a `DenseRecord`, or a record. A tuple takes a fifth of the time, which matters for 20,000 tensors."""


@frozen
class FileRef:
    """A file of an Index: name in the folder (or `folder/name`), size when the Index was read, and digest."""

    name: str
    size: int
    digest: str | None = None


@frozen
class Section:
    """A section of a file, for `squish info`. `holds` describes its content beyond `kind`."""

    offset: int
    size: int
    kind: str
    holds: str = ""


@frozen
class Typed:
    """A metadata value whose stored type matters: a dtype name, "str" or "bytes"; arrays are "array:<type>"."""

    type: str
    value: Any


@frozen(kw_only=True)
class Index:
    """The content of a file as plain data, from its header alone. Can be pickled.

    `meta`: metadata in order, with stored types (`Typed`). `assets`: other files of the model (config, tokenizer) as
    parts. `whole`: encodings of the whole model. `children`: indexes inside this one, such as a draft head. `caches`:
    labels of encodings computed from others of the same tensor; they are read first, but never converted.
    `pending_caches`: those that the format builds once values are read (`Container.loading`). `sections`: sections of
    the file by offset. `declarations`: keys in JSON assets that describe the encoding of this file's tensors, as paths
    from the root (the empty path is the whole asset); `convert` drops them for other formats. `graph`: what computes
    with the tensors, in words, if the file stores it; `convert` drops it for other formats.
    `ignored`: files and subfolders (`onnx/`) of the model's folder that are not read; `convert` lists them.
    `reading`: the read options of `format="ID:key=value"` under which it was read.
    """

    format: str
    version: str
    files: Sequence[FileRef]
    tensors: Mapping[str, TensorSpec]
    kind: str = "model"
    meta: Mapping[str, Any] = field(factory=dict)
    assets: Mapping[str, Part] = field(factory=dict)
    declarations: Mapping[str, tuple[tuple[str, ...], ...]] = field(factory=dict)
    whole: tuple[Encoding, ...] = ()
    children: Mapping[str, Index] = field(factory=dict)
    caches: tuple[str, ...] = ()
    pending_caches: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    sections: tuple[Section, ...] = ()
    graph: str = ""
    ignored: tuple[str, ...] = ()
    attrs: Mapping[str, Any] = field(factory=dict)
    reading: Mapping[str, str] = field(factory=dict)


class LazyTensors(Mapping[str, TensorSpec]):
    """Specs built on access from validated records, so that a file with 20,000 tensors opens fast.

    `records` maps names to `DenseRecord`s (or tuples of their fields), or to any records that `build(name, record)`
    turns into a `DenseRecord` or `TensorSpec`; `build` must be a module-level function, for pickling. `extents`:
    `(file, offset, length, name)` of every stored byte range, for the core's checks.
    """

    def __init__(
        self,
        records: Mapping[str, Any],
        build: Callable[[str, Any], TensorSpec | DenseFields] | None = None,
        extents: Iterable[tuple[int, int, int, str]] = (),
    ) -> None:
        self._records, self._build, self.extents = records, build, list(extents)
        self._specs: dict[str, TensorSpec] = {}

    def dense_records(self) -> Iterator[tuple[str, DenseFields]]:
        """Name and record of each dense tensor."""
        build = self._build
        for name, record in self._records.items():
            result = record if build is None else build(name, record)
            if isinstance(result, tuple):
                yield name, result
                continue
            self._specs[name] = result
            dense = result.dense_record()
            if dense is not None:
                yield name, dense

    def __getitem__(self, name: str) -> TensorSpec:
        spec = self._specs.get(name)
        if spec is None:
            record = self._records[name]
            result = record if self._build is None else self._build(name, record)
            spec = self._specs[name] = DenseRecord(*result).spec(name) if isinstance(result, tuple) else result
        return spec

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, name: object) -> bool:
        return name in self._records

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_specs": {}}


@frozen(kw_only=True)
class Refusal:
    """A refusal: the reason, and the command to install what is missing, if any.

    A backend's refusal names the `backend` and the `encoding`; a format's has no backend.
    """

    why: str
    code: str = "unsupported"
    install: str | None = None
    backend: str | None = None
    encoding: Encoding | None = None


@frozen
class Exactness:
    """How close a converted tensor is to its source.

    `bytes`: the stored bytes are equal; `values`: every value is equal in `dtype`; `bounded`: values differ by at most
    `error` (absolute; None if unknown in advance).
    """

    kind: str
    dtype: str | None = None
    error: float | None = None

    def __str__(self) -> str:
        detail = self.dtype or (f"{self.error:.3g}" if self.error is not None else "")
        return f"{self.kind}({detail})" if detail else self.kind


SAME_BYTES = Exactness("bytes")
"""The stored bytes are copied."""
