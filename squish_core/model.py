"""The data model: a format plugin is a function from bytes to an `Index`, and an Index is plain data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from attrs import evolve, field, frozen

from squish_core import dtypes
from squish_core.errors import Problem

VIEWABLE = frozenset(name for name in dtypes.NAMES if dtypes.bits(name) >= 8) - {"bool"}
"""Dtypes whose stored bytes are values as they are: none is packed, and none has bytes that mean nothing."""


@frozen
class Segment:
    """A byte range of one of the Index's files (`file` counts into `Index.files`)."""

    file: int
    offset: int
    length: int


@frozen
class Filter:
    """A byte codec (`zstd`) that was applied to a part's bytes, with its parameters."""

    codec: str
    params: Mapping[str, Any] = field(factory=dict)


@frozen(kw_only=True)
class Part:
    """One stored array: dtype and shape before any filter, and where its bytes lie.

    Several segments are one virtual array, in order. `filters` were applied in order when writing. `digest` is
    `<algorithm>:<hex>` over the stored bytes, or over the decoded ones when `digest_of` is "decoded".
    `data` holds the bytes of a small part inline. `byteorder` is "<" or ">".
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
        """Whether all of it can be viewed without a copy."""
        return not self.filters and self.byteorder == "<" and (self.data is not None or len(self.segments) == 1)

    @property
    def nbytes(self) -> int:
        """Bytes of the array before filters."""
        return dtypes.nbytes(self.dtype, self.shape)

    @property
    def stored(self) -> int:
        """Bytes it takes in the file."""
        if self.data is not None:
            return len(self.data)
        return sum([segment.length for segment in self.segments])


@frozen
class CodecSpec:
    """A codec id with its parameters; `inner` is the codec that a wrapping one wraps."""

    id: str
    params: Mapping[str, Any] = field(factory=dict)
    inner: CodecSpec | None = None

    def __str__(self) -> str:
        text = self.id + (f":{','.join(f'{k}={v}' for k, v in self.params.items())}" if self.params else "")
        return f"{text}({self.inner})" if self.inner else text


DENSE = CodecSpec("dense")


@frozen(kw_only=True)
class Encoding:
    """One way to obtain a tensor: a codec over named parts. `label` says which way it is."""

    codec: CodecSpec
    parts: Mapping[str, Part] = field(factory=dict)
    label: str = "stored"

    @property
    def filtered(self) -> bool:
        """Whether a byte codec was applied to a part."""
        return any(part.filters for part in self.parts.values())

    @property
    def stored(self) -> int:
        """Bytes of all parts in the file."""
        return sum([part.stored for part in self.parts.values()])


@frozen(kw_only=True)
class TensorSpec:
    """A logical tensor. `encodings` are ranked, best first; `extras` are parts that no codec reads.

    `tied_to` names the tensor whose bytes it shares; `problem` says why its values cannot be given. `row_names`: of a
    stacked tensor, what stands before and after the number in the names of its rows, where other formats store each row
    of the first axis as a tensor of its own.
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

    @property
    def elements(self) -> int:
        """Number of logical elements."""
        return dtypes.count(self.shape)

    def without(self, labels: Collection[str]) -> TensorSpec:
        """The tensor without the encodings of these labels, if it has others; its dtype is that of the first left."""
        left = tuple(encoding for encoding in self.encodings if encoding.label not in labels)
        if not left or len(left) == len(self.encodings):
            return self
        codecs = [encoding.codec for encoding in left]
        own = [codec.params.get("dtype", self.dtype) if codec.id == "dense" else "f32" for codec in codecs]
        ranked = (
            encoding if encoding.codec.id != "dense"
            else evolve(encoding, codec=DENSE if kind == own[0] else CodecSpec("dense", {"dtype": kind}))
            for encoding, kind in zip(left, own)
        )  # fmt: skip
        return evolve(self, dtype=own[0], encodings=tuple(ranked))

    def stored_values(self, encoding: Encoding) -> Part | None:
        """The part of an encoding that is the values as they are; None if they must be decoded."""
        part = encoding.parts.get("data") if encoding.codec.id == "dense" else None
        if part is None or (part.dtype, part.shape, part.byteorder) != (self.dtype, self.shape, "<"):
            return None
        return part if part.dtype in VIEWABLE else None

    def dense_record(self) -> DenseRecord | None:
        """The record of a tensor whose first encoding is its values in one range of a file."""
        part = self.stored_values(self.encodings[0]) if self.encodings else None
        if part is None or not part.in_place or not part.segments or part.nbytes != part.segments[0].length:
            return None
        return DenseRecord(part.dtype, part.shape, part.segments[0].file, part.segments[0].offset, part.digest)


class DenseRecord(NamedTuple):
    """An uncompressed tensor: its values in one range of a file, little-endian, row-major.

    `file` counts into `Index.files`; `digest` is that of the range. Types under one byte are packed.
    """

    dtype: str
    shape: tuple[int, ...]
    file: int
    offset: int
    digest: str | None = None

    def spec(self, name: str) -> TensorSpec:
        """The tensor under the dense codec."""
        size = dtypes.nbytes(self.dtype, self.shape)
        dtype, shape = (self.dtype, self.shape) if dtypes.bits(self.dtype) >= 8 else ("u8", (size,))
        segments = (Segment(self.file, self.offset, size),)
        part = Part(dtype=dtype, shape=shape, segments=segments, digest=self.digest)
        encoding = Encoding(codec=DENSE, parts={"data": part})
        return TensorSpec(name=name, shape=self.shape, dtype=self.dtype, encodings=(encoding,))


DenseFields = tuple[str, tuple[int, ...], int, int, str | None]
"""The fields of a `DenseRecord`, or the record itself. A plain tuple costs a fifth of a record: for 20 000 tensors."""


@frozen
class FileRef:
    """A file of an Index: its plain name in the folder (or `folder/name`), its size when the Index was made, its
    digest."""

    name: str
    size: int
    digest: str | None = None


@frozen
class Section:
    """A byte range of a file by its place in the format: what `squish info` lists. `holds` says more than `kind`."""

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
    """What a file holds, decoded from its header alone. Pickles; holds no open file.

    `meta` keeps order and stored types (`Typed`); `assets` are whole files (config, tokenizer) as parts;
    `whole` are encodings of the entire model; `children` are indexes inside this one (a draft head). `caches` are the
    labels of encodings that were made from others of the same tensor: read first, but never the source of a conversion.
    `sections` is the map of a file whose format has several, by offset.
    `declarations`: the keys of JSON assets that state how this file stores its tensors, each as a path from the root
    (the empty path is the whole asset). They do not hold for another format, so `convert` leaves them out.
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
    problems: tuple[Problem, ...] = ()
    sections: tuple[Section, ...] = ()
    attrs: Mapping[str, Any] = field(factory=dict)


class LazyTensors(Mapping[str, TensorSpec]):
    """Specs built on access from validated records, so that 20 000 tensors open fast.

    `records` maps names to a `DenseRecord` each, or to whatever `build(name, record)` (a module-level function, so that
    it pickles) makes a `DenseRecord` or a `TensorSpec` of; the fields of a record may come as a plain tuple. Specs and
    views of dense tensors come from the core.
    `extents` are `(file, offset, length, name)` of every stored byte range, for the core's checks.
    """

    def __init__(
        self,
        records: Mapping[str, Any],
        build: Callable[[str, Any], TensorSpec | DenseFields] | None = None,
        extents: Iterable[tuple[int, int, int, str]] = (),
    ) -> None:
        self._records, self._build, self.extents = records, build, list(extents)
        self._built: dict[str, TensorSpec] = {}

    def dense_records(self) -> Iterator[tuple[str, DenseFields]]:
        """Name and record of each dense tensor."""
        build = self._build
        for name, record in self._records.items():
            built = record if build is None else build(name, record)
            if isinstance(built, tuple):
                yield name, built
                continue
            self._built[name] = built
            dense = built.dense_record()
            if dense is not None:
                yield name, dense

    def __getitem__(self, name: str) -> TensorSpec:
        spec = self._built.get(name)
        if spec is None:
            record = self._records[name]
            built = record if self._build is None else self._build(name, record)
            spec = self._built[name] = DenseRecord(*built).spec(name) if isinstance(built, tuple) else built
        return spec

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, name: object) -> bool:
        return name in self._records

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_built": {}}


@frozen(kw_only=True)
class Refusal:
    """Why something cannot be had: a reason a person can act on, and the package to install, if that helps.

    A backend's refusal names the `backend` and the `encoding`; a format's own has no backend.
    """

    why: str
    code: str = "unsupported"
    install: str | None = None
    backend: str | None = None
    encoding: Encoding | None = None


@frozen
class Exactness:
    """How close a converted tensor is to its source.

    `bytes`: the stored bytes are the same; `values`: every value is the same in `dtype`;
    `bounded`: values differ by at most `error` (absolute; None: not known before it ran).
    """

    kind: str
    dtype: str | None = None
    error: float | None = None

    def __str__(self) -> str:
        detail = self.dtype or (f"{self.error:.3g}" if self.error is not None else "")
        return f"{self.kind}({detail})" if detail else self.kind


SAME_BYTES = Exactness("bytes")


def to_json(value: Any) -> Any:
    """Plain data of a result: attrs objects become dicts, bytes their length, tuples lists."""
    from attrs import asdict, has

    if has(type(value)):
        return {k: to_json(v) for k, v in asdict(value, recurse=False).items()}
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json(item) for item in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"bytes": len(value)}
    if isinstance(value, float) and value != value:
        return None
    return value
