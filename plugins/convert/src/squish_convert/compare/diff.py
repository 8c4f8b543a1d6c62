"""Compare two files of any formats: names, shapes, dtypes, codes and values, and their assets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from math import inf, isnan
from typing import Any

from attrs import field, frozen

from squish_core import opening
from squish_core.checking.check import ProgressCallback
from squish_core.checking.maps import Span, file_at, map_spans
from squish_core.codecs.regions import panels
from squish_core.display import fit_all, table, to_json
from squish_core.errors import SquishError, UsageError, redact
from squish_core.file import File
from squish_core.formats.json import has_keys, load_json, without_keys
from squish_core.formats.metadata import untyped
from squish_core.plugins.registry import Registry
from squish_core.shown import Plotted
from squish_core.tensor import Tensor
from squish_core.text import words

from ..families import CONFIG_FILE
from ..mapping.mapped import MappedFile
from ..mapping.pairing import map_to_first, respelled
from .metrics import Distance
from .stacks import StackRow, complete_stacks, rows_of

Pair = tuple[Tensor | None, Tensor | None]
KEEP = "keep"
WORST = 10
"""Number of differing tensors to print by default."""
STATES = {"bytes": "identical", "values": "equal in value", "differs": "differ in value", "shape": "differ in shape"}
"""State of a tensor -> words in the verdict."""
CHUNK = 16 << 20
"""Bytes to compare at a time: several compressed frames decode in parallel."""
PIECE = 1 << 18
"""Bytes per NumPy comparison, whose result fits the cache."""


@frozen(kw_only=True)
class TensorDifference:
    """One tensor in both files.

    `state`: "bytes" (equal stored bytes), "values" (equal decoded values), "differs", "shape", "only in a" or
    "only in b". Errors of b relative to a are computed in f64: `nmse` is |a-b|^2 / |a|^2.
    """

    name: str
    state: str
    a: str = ""
    b: str = ""
    nmse: float | None = None
    max_error: float | None = None
    cosine: float | None = None


@frozen(kw_only=True, repr=False)
class Difference(Plotted):
    """The differences between two files; `same` if every tensor, all metadata and all assets are equal.

    `mapped` describes how `b` was mapped to the names of `a`; empty if it was not.
    """

    a: str = field(converter=redact)
    b: str = field(converter=redact)
    tensors: tuple[TensorDifference, ...]
    meta: tuple[str, ...]
    assets: tuple[str, ...]
    mapped: str = ""

    @property
    def same(self) -> bool:
        """Whether all values, metadata and assets are equal, in any encoding."""
        return not self.meta and not self.assets and all(item.state in ("bytes", "values") for item in self.tensors)

    def __repr__(self) -> str:
        states = ", ".join(f"{count} {state}" for state, count in Counter(item.state for item in self.tensors).items())
        counts = f"meta={len(self.meta)} assets={len(self.assets)}"
        return f"<Difference {self.a!r} {self.b!r} same={self.same} tensors=({states}) {counts}>"

    def __str__(self) -> str:
        return "\n".join(fit_all(difference_lines(self)))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON.

        Returns
        -------
        dict
            `same` and the fields by name.

        Examples
        --------
        >>> squish.diff("model.gguf", "model.gguf").to_dict()["same"]
        True
        """
        return {"same": self.same, **to_json(self)}


def difference_lines(difference: Difference, most: int | None = WORST) -> Iterator[str]:
    """Yield the verdict, then up to `most` differing tensors, the largest errors first."""
    counts = Counter(item.state for item in difference.tensors)
    tensors = ", ".join(f"{count:,} {STATES.get(state, state)}" for state, count in counts.most_common()) or "none"
    sections = (("metadata", difference.meta), ("assets", difference.assets))
    rest = "; ".join(f"{title} {'differ' if changes else 'equal'}" for title, changes in sections)
    mapped = f"; {difference.mapped}" if difference.mapped else ""
    yield f"{'same' if difference.same else 'differs'}: tensors: {tensors}; {rest}{mapped}"
    by_error = sorted(
        (item for item in difference.tensors if item.state not in ("bytes", "values")),
        key=lambda item: -inf if item.nmse is None or isnan(item.nmse) else -item.nmse,
    )
    if head := by_error[:most]:
        yield from _table(head)
    if len(head) < len(by_error):
        yield words(f"{len(by_error) - len(head):,} more differ ({{option:all=True}} lists them)")
    for title, changes in sections:
        if changes:
            yield from (title, *(f"  {change}" for change in changes))


def _table(items: Sequence[TensorDifference]) -> list[str]:
    """Return a row for each tensor; columns that are empty for all tensors are left out."""
    columns = zip(("state", "NMSE", "max error", "cosine", "stored as", "name"), "<>>><<", *map(_row, items))
    header, align, *rows = zip(*(column for column in columns if any(cell != "-" for cell in column[2:])))
    return table(header, "".join(align), rows)


def _row(item: TensorDifference) -> tuple[str, ...]:
    errors = ("-" if value is None else f"{value:.3g}" for value in (item.nmse, item.max_error))
    cosine = "-" if item.cosine is None else f"{item.cosine:.6g}"
    return item.state, *errors, cosine, _stored_as(item.a, item.b), item.name


def _stored_as(a: str, b: str) -> str:
    """Return the storage of a tensor in both files, with shapes only if they differ or a file lacks the tensor."""
    if not a or not b:
        return a or b
    codecs, shapes = zip(*(side.partition(" ")[::2] for side in (a, b)))
    return " -> ".join(dict.fromkeys(codecs)) if shapes[0] == shapes[1] else f"{a} -> {b}"


def diff(
    a: Any,
    b: Any,
    *,
    registry: Registry | None = None,
    progress: ProgressCallback | None = None,
    only: str | Iterable[str] = (),
    rename: str | None = None,
    scheduler: str | None = None,
) -> Difference:
    """Compare two files in any formats; decodes only tensors whose stored bytes differ.

    Parameters
    ----------
    a, b
        Paths, bytes or open `File`s.
    registry
        The plugins to use; the installed ones by default.
    progress
        Called with the tensor's name, the bytes compared and the total bytes.
    only
        Exact names of the tensors to compare; all by default.
    rename
        "keep" leaves names unchanged. By default, a model of the same family is first mapped to the names, rows and
        settings of `a`.
    scheduler
        Compare the tensors in other processes: "local:2", or "dask:tcp://..." (with squish-dask).

    Returns
    -------
    Difference
        `same` if tensors, metadata and assets are equal; errors are relative to `a` (NMSE) or absolute.

    Raises
    ------
    SquishError
        One of the files cannot be opened.

    Examples
    --------
    >>> difference = squish.diff("model.safetensors", "model.gguf")
    >>> [(item.name, item.state) for item in difference.tensors if item.state != "bytes"]
    [('blk.0.ffn_up.weight', 'differs')]
    """
    if rename not in (None, KEEP):
        raise UsageError("unknown naming", expected=KEEP, found=repr(rename), code="names")
    files = [item if isinstance(item, File) else opening.open(item, registry=registry) for item in (a, b)]
    try:
        first, second = files
        second, mapping_note = map_to_first(first, second) if rename != KEEP else (second, "")
        pairs = pair_tensors(first, second, only)
        sizes = [(a_side or b_side).nbytes for a_side, b_side in pairs.values()]  # type: ignore[union-attr]
        differences, names, total = list[TensorDifference](), list(pairs), sum(sizes)

        def done(number: int, nbytes: int) -> None:
            if progress:
                progress(names[number], nbytes, total)

        if scheduler is None:
            for number, nbytes in enumerate(accumulate(sizes)):
                differences.append(compare(names[number], *pairs[names[number]]))
                done(number, nbytes)
        else:
            options = (("only", only if isinstance(only, str) else tuple(only)), ("rename", rename))
            for span in map_spans(compare_span, files, sizes, scheduler, first.registry, options, done):
                differences += span
        mapped = second if isinstance(second, MappedFile) else None
        storage = mapped.carried.storage if mapped is not None else ()
        paths = declarations(first, second)
        left_out = [key for key in storage if key in first.index.meta] + sorted(declared_keys(first, paths))
        if mapping_note and left_out:
            mapping_note += f"; not compared, since they describe the storage: {', '.join(left_out)}"
        one, other = ({name: name for name in file.assets if () not in paths.get(name, ())} for file in (first, second))
        return Difference(
            a=first.name,
            b=second.name,
            tensors=tuple(differences),
            meta=changed(_without(first.index.meta, storage), _without(second.index.meta, storage), equal_meta),
            assets=changed(one, other, lambda name, _: same_asset(first, second, name, paths, mapped)),
            mapped=mapping_note,
        )
    finally:
        for item, argument in zip(files, (a, b)):
            if item is not argument:
                item.close()


def pair_tensors(first: File, second: File, only: str | Iterable[str]) -> dict[str, Pair]:
    """Return the tensors of both files by name; a tensor is paired with a row if the other file stacks it.

    UsageError if neither file has one of the names in `only`.
    """
    names = {only} if isinstance(only, str) else set(only)
    first_rows, second_rows = rows_of(first, second), rows_of(second, first)
    complete = complete_stacks(first, first_rows.values()) | complete_stacks(second, second_rows.values())
    pairs = {
        name: (_tensor(first, first_rows, name), _tensor(second, second_rows, name))
        for name in (*first, *(name for name in second if name not in first))
        if (name in names if names else name not in complete or (name in first and name in second))
    }
    if unknown := sorted(names.difference(pairs)):
        raise UsageError("neither file has a tensor with this name", found=", ".join(unknown), code="name")
    return pairs


def compare_span(span: Span) -> list[TensorDifference]:
    """Compare some of the pairs in a worker process."""
    options = dict(span.options)
    first, second = map(file_at, span.files)
    second = second if options["rename"] == KEEP else map_to_first(first, second)[0]
    pairs = pair_tensors(first, second, options["only"])
    return [compare(name, *pairs[name]) for name in islice(pairs, span.start, span.stop)]


def _tensor(file: File, rows: Mapping[str, StackRow], name: str) -> Tensor | None:
    if name in file:
        return file[name]
    return rows[name].tensor if name in rows else None


def compare(name: str, one: Tensor | None, other: Tensor | None) -> TensorDifference:
    """Compare one tensor of both files."""
    sides: dict[str, Any] = {"name": name, "a": describe(one), "b": describe(other)}
    if one is None or other is None:
        return TensorDifference(state="only in b" if one is None else "only in a", **sides)
    if one.shape != other.shape:
        return TensorDifference(state="shape", **sides)
    if equal_codes(one, other):
        return TensorDifference(state="bytes", **sides)
    return TensorDifference(**sides, **distance(one, other))


def describe(tensor: Tensor | None) -> str:
    """Codec or dtype, and shape; empty without a tensor."""
    if tensor is None:
        return ""
    codec = tensor.dtype if tensor.codec == "dense" else tensor.codec
    return f"{codec} {list(tensor.shape)}"


def equal_codes(one: Tensor, other: Tensor) -> bool:
    """Return whether codecs, parameters and the unfiltered bytes of all parts are equal."""
    if not one.spec.encodings or not other.spec.encodings:
        return False
    a, b = one.spec.encodings[0], other.spec.encodings[0]
    stored = [{r: (p.dtype, p.shape, p.byteorder) for r, p in e.parts.items()} for e in (a, b)]
    if a.codec != b.codec or stored[0] != stored[1] or one.dtype != other.dtype:
        return False
    for role in a.parts:
        with one.guard("comparing", part=role):
            first, second = one.file.array(a.parts[role]), other.file.array(b.parts[role])
            size = first.part.nbytes
            for start in range(0, size, CHUNK):
                length = min(CHUNK, size - start)
                if not equal_bytes(first.bytes(start, length), second.bytes(start, length)):
                    return False
    return True


def equal_bytes(x: memoryview, y: memoryview) -> bool:
    """Return whether two buffers are equal; comparing memoryviews would be many times slower."""
    import numpy as np

    a, b = np.asarray(x), np.asarray(y)
    pieces = (slice(start, start + PIECE) for start in range(0, a.size, PIECE))
    return a.size == b.size and all(np.array_equal(a[piece], b[piece]) for piece in pieces)


def distance(one: Tensor, other: Tensor) -> dict[str, Any]:
    """State and error measures of decoded values, panel by panel."""
    total = Distance()
    for region in panels(one.shape, (1,) * len(one.shape), 8):
        total.add(one[region], other[region])
    errors = {"nmse": total.nmse, "max_error": total.max_error, "cosine": total.cosine}
    return {"state": "values" if total.equal else "differs", **errors}


def changed(a: Any, b: Any, equal: Callable[[Any, Any], bool]) -> tuple[str, ...]:
    """Added, removed and changed keys, each with the kind of change."""
    lines = [f"{key}: only in a" for key in a if key not in b]
    lines += [f"{key}: only in b" for key in b if key not in a]
    return (*lines, *(f"{key}: differs" for key in a if key in b and not equal(a[key], b[key])))


def _without(meta: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in meta.items() if key not in keys}


def equal_meta(x: Any, y: Any) -> bool:
    """Equal stored types and values; numeric arrays by bytes."""
    return getattr(x, "type", None) == getattr(y, "type", None) and equal_values(untyped(x), untyped(y))


def equal_values(p: Any, q: Any) -> bool:
    """Equal metadata values, item by item; equal NaNs are equal."""
    import numpy as np

    if isinstance(p, (str, bytes)):
        return bool(p == q)
    if isinstance(p, np.ndarray) or isinstance(q, np.ndarray):
        return np.asarray(p).tobytes() == np.asarray(q).tobytes()
    if isinstance(p, float) and isinstance(q, float):
        return p == q or (p != p and q != q)
    if isinstance(p, Sequence) and isinstance(q, Sequence):
        return len(p) == len(q) and all(map(equal_values, p, q))
    return bool(p == q)


Paths = Mapping[str, Sequence[Sequence[str]]]
DTYPE = "torch_dtype"
"""Setting with the dtype of a folder's tensors; null in a config rebuilt from GGUF's keys, which do not state it."""


def declarations(first: File, second: File) -> dict[str, list[Sequence[str]]]:
    """Paths in assets that describe encodings of either file; none if both have the same format."""
    paths: dict[str, list[Sequence[str]]] = {}
    if first.format == second.format:
        return paths
    for file in (first, second.original):
        for name, each in file.index.declarations.items():
            merged = paths.setdefault(name, [])
            merged += [path for path in each if path not in merged]
    return paths


def same_asset(first: File, second: File, name: str, paths: Paths, mapped: MappedFile | None) -> bool:
    """Return whether an asset is the same in both files, apart from declarations of encodings.

    `mapped` is the second file if it is mapped; its settings may then be spelled in another way.
    """
    raw = [bytes(file.assets[name].raw) for file in (first, second)]
    if raw[0] == raw[1]:
        return True
    declared = paths.get(name, ())
    mapped = mapped if name == CONFIG_FILE else None
    if not declared and mapped is None:
        return False
    try:
        one, other = (without_keys(load_json(data, name, first.limits), declared) for data in raw)
        if one != other and mapped is not None and (settings := respelled(first, mapped)) is not None:
            one = without_keys(load_json(settings, name, first.limits), declared)
    except SquishError:
        return False
    if mapped is not None and None in (one.get(DTYPE, ""), other.get(DTYPE, "")):
        one, other = (without_keys(config, [(DTYPE,)]) for config in (one, other))
    return one == other


def declared_keys(file: File, paths: Paths) -> Iterator[str]:
    """Yield the declarations in a file, as text."""
    for name in paths.keys() & file.assets.keys():
        if () in paths[name]:
            yield name
            continue
        try:
            document = load_json(bytes(file.assets[name].raw), name, file.limits)
        except SquishError:
            continue
        yield from (f"{name} {'.'.join(path)}" for path in paths[name] if has_keys(document, path))
