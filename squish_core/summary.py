"""The summary of a file, from its header alone (`File.summary`, `squish info`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import asdict, evolve, frozen
from attrs.filters import exclude

from squish_core.display import fit_all, table, to_json
from squish_core.errors import MAX_MESSAGE, MAX_PLACE, Problem, SquishError, TensorError, shorten
from squish_core.formats.metadata import untyped
from squish_core.guard import guarded
from squish_core.model import TensorSpec, Typed
from squish_core.shown import Shown
from squish_core.tensor import Tensor
from squish_core.text import counted, escape, format_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from squish_core.tensor import OpenFile

MOST_FILES = 16
"""Number of files to print."""
LONG = 64
"""Longest metadata value to print in full: characters in text, items in JSON."""


@frozen(kw_only=True)
class StoredKind:
    """The tensors with one kind of storage; `size` in bytes, tied tensors counted once, `bits` per weight.

    `lacks`: what to install, or why they cannot be decoded here; None if they can. `zeros`: share of pruned values;
    None if nothing is pruned.
    """

    stored_as: str
    tensors: int
    parameters: int
    size: int
    lacks: str | None
    bits: float
    zeros: float | None = None


@frozen(kw_only=True)
class SummaryFile:
    """One of the files; `link` is the target if it is a symbolic link, `size` in bytes."""

    file: str
    link: str | None
    size: int
    digest: str | None


@frozen(kw_only=True)
class Summary(Shown):
    """Summary of a file, from its header alone. `print(summary)` shows what `squish info` prints.

    `size` is in bytes, uncompressed; for compressed files, `packed` has the codec and the size on disk. `metadata`
    has untyped values, `meta_types` their stored types. `sections`: sections of the file. `whole`: codecs of the
    encodings of the whole model.
    """

    file: str
    link: str | None
    format: str
    version: str
    kind: str
    files: tuple[SummaryFile, ...]
    size: int
    packed: Mapping[str, Any] | None
    tensors: int
    parameters: int
    bits: float
    codecs: tuple[StoredKind, ...]
    metadata: Mapping[str, Any]
    meta_types: Mapping[str, str]
    assets: Mapping[str, int]
    caches: tuple[str, ...]
    pending_caches: tuple[str, ...]
    sections: tuple[Mapping[str, Any], ...]
    whole: tuple[str, ...]
    children: Mapping[str, Mapping[str, Any]]
    problems: tuple[Problem, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; metadata values with more than 64 items are replaced by their length.

        Returns
        -------
        dict
            What `squish info --json` prints.

        Examples
        --------
        >>> squish.open("model.gguf").summary().to_dict()["parameters"]
        2336
        """
        fields = asdict(self, recurse=False, filter=exclude("metadata", "meta_types"))
        data = {name: to_json(value) for name, value in fields.items()}
        return {**data, "meta": {key: _brief(value) for key, value in self.metadata.items()}}

    def lines(self) -> Iterator[str]:
        """Yield the summary as text."""
        yield from table(("file", escape(with_link(self.file, self.link))), "<<", self._facts())
        if len(self.files) > 1:
            head = self.files[:MOST_FILES]
            listing = [f"  {format_bytes(ref.size):>8}  {with_link(ref.file, ref.link)}" for ref in head]
            if more := len(self.files) - len(head):
                listing.append(f"            and {more:,} more (--json lists them)")
            yield from _section("files", listing)
        rows = []
        for kind in self.codecs:
            size, bits = format_bytes(kind.size), f"{kind.bits:.2f}"
            rows.append((kind.stored_as, f"{kind.tensors:,}", f"{kind.parameters:,}", size, bits, _remark(kind)))
        yield from _section("", table(("stored as", "tensors", "parameters", "size", "bits", ""), "<>>>><", rows))
        meta = [
            (key, abbreviate(_fewest_digits(self.meta_types.get(key), value))) for key, value in self.metadata.items()
        ]
        yield from _section("metadata", table(("", ""), "<<", meta, "  ")[1:])
        places = [(part["offset"], part["size"], part["kind"], part["holds"]) for part in self.sections]
        yield from _section("", table(("offset", "bytes", "section", "holds"), ">><<", places))
        yield from _section("assets", [f"  {format_bytes(size):>8}  {name}" for name, size in self.assets.items()])
        yield from _section("encodings of the whole model", [f"  {codec}" for codec in self.whole])
        children = [
            f"  {name}: {child['kind']}, {counted(child['tensors'], 'tensor')}" for name, child in self.children.items()
        ]
        yield from _section("children", children)
        problems = []
        for problem in self.problems:
            fields = problem.severity, shorten(problem.where, MAX_PLACE), shorten(problem.message, MAX_MESSAGE)
            problems.append(f"  {': '.join(filter(None, fields))}")
        yield from _section("problems", problems)

    def _facts(self) -> Iterable[tuple[str, str]]:
        version = f" {self.version}" if self.version else ""
        yield "format", f"{self.format}{version}" + (f" ({self.kind})" if self.kind != "model" else "")
        packing = self.packed
        note = f" unpacked, {format_bytes(packing['size'])} compressed with {packing['codec']}," if packing else ""
        yield "size", f"{format_bytes(self.size)}{note} in {counted(len(self.files), 'file')}"
        yield "tensors", f"{self.tensors:,}"
        yield "parameters", f"{self.parameters:,} at {self.bits:.2f} bits each"
        if self.caches:
            yield "caches", f"{', '.join(self.caches)} (the first is used)"
        if self.pending_caches:
            yield "caches", f"{', '.join(self.pending_caches)} to be built by the first load"

    def __str__(self) -> str:
        return "\n".join(fit_all(map(escape, self.lines())))


def summarize(file: OpenFile) -> Summary:
    """Return the summary of an open file."""
    index, kinds = file.index, tuple(_stored_kinds(file))
    parameters, nbytes = sum(kind.parameters for kind in kinds), sum(kind.size for kind in kinds)
    return Summary(
        file=file.name,
        link=link_of(file.source.path),
        format=file.format,
        version=index.version,
        kind=index.kind,
        files=tuple(
            SummaryFile(file=ref.name, link=link_of(path), size=ref.size, digest=ref.digest)
            for ref, path in zip(index.files, _paths(file))
        ),
        size=sum(ref.size for ref in index.files),
        packed=_packing(file),
        tensors=len(index.tensors),
        parameters=parameters,
        bits=8 * nbytes / parameters if parameters else 0.0,
        codecs=kinds,
        metadata={key: untyped(value) for key, value in index.meta.items()},
        meta_types={key: value.type for key, value in index.meta.items() if isinstance(value, Typed)},
        assets={name: part.nbytes for name, part in index.assets.items()},
        caches=tuple(index.caches),
        pending_caches=index.pending_caches,
        sections=tuple(map(asdict, index.sections)),
        whole=tuple(str(encoding.codec) for encoding in index.whole),
        children={name: {"kind": child.kind, "tensors": len(child.tensors)} for name, child in index.children.items()},
        problems=tuple(index.problems),
    )


def stored_as(spec: TensorSpec, long: bool = False) -> str:
    """Return the dtype of a dense tensor, else the codec with its bits, or with all parameters if `long`."""
    codec = spec.encodings[0].codec if spec.encodings else None
    if codec is None:
        return "unknown"
    if codec.id == "dense":
        return spec.dtype
    if long:
        return str(codec)
    return f"{codec.id}:bits={codec.params['bits']}" if "bits" in codec.params else codec.id


def zero_share(file: OpenFile, spec: TensorSpec) -> float | None:
    """Share of a tensor's values that its mask zeroes, from the mask alone; None without a mask."""
    encoding = spec.encodings[0] if spec.encodings else None
    if encoding is None or encoding.codec.inner is None or file.registry.missing(encoding):
        return None
    try:
        with guarded(TensorError, "reading its mask", file=file.name, tensor=spec.name):
            bound = file.bind(spec, encoding)
            return bound.codec.zero_share(bound.parts, spec)
    except SquishError:
        return None  # `verify` reports a damaged mask


def shown_as(spec: TensorSpec, zeros: float | None) -> str:
    """`stored_as`, but for a masked tensor the inner codec, with "pruned" if the mask zeroes anything."""
    if zeros is None:
        return stored_as(spec)
    codec = spec.encodings[0].codec
    while codec.inner is not None:
        codec = codec.inner
    unmasked = evolve(spec, encodings=(evolve(spec.encodings[0], codec=codec),))
    return f"{'pruned ' if zeros else ''}{stored_as(unmasked)}"


def link_of(path: Path | None) -> str | None:
    """Return the target of a path that is a symbolic link, else None."""
    return str(path.resolve()) if path is not None and path.is_symlink() else None


def with_link(name: str, target: str | None) -> str:
    """Return a name, with the target if it is a symbolic link."""
    return f"{name} (a link to {target})" if target else name


def _stored_kinds(file: OpenFile) -> list[StoredKind]:
    """Return the kinds of storage, largest first."""
    groups: dict[str, list[TensorSpec]] = {}
    shares: dict[str, float] = {}
    for spec in file.index.tensors.values():
        zeros = zero_share(file, spec)
        groups.setdefault(shown_as(spec, zeros), []).append(spec)
        shares[spec.name] = zeros or 0.0
    kinds = []
    for name, specs in groups.items():
        untied = [spec for spec in specs if spec.tied_to is None]
        parameters = sum(spec.elements for spec in untied)
        nbytes = sum(Tensor(file, spec).nbytes for spec in untied)
        pruned = sum(shares[spec.name] * spec.elements for spec in untied)
        lacks = next(filter(None, (_lacks(file, spec) for spec in specs)), None)
        kinds.append(
            StoredKind(
                stored_as=name,
                tensors=len(specs),
                parameters=parameters,
                size=nbytes,
                lacks=lacks,
                bits=8 * nbytes / parameters if parameters else 0.0,
                zeros=pruned / parameters if pruned else None,
            )
        )
    return sorted(kinds, key=lambda kind: -kind.size)


def _remark(kind: StoredKind) -> str:
    if kind.lacks:
        return f"cannot be decoded here: {kind.lacks}"
    return "" if kind.zeros is None else f"{kind.zeros:.1%} zeros"


def _lacks(file: OpenFile, spec: TensorSpec) -> str | None:
    """What to install, or why no encoding of a tensor can be decoded here."""
    refusals = [file.registry.missing(encoding) for encoding in spec.encodings]
    first = refusals[0] if refusals and all(refusals) else None
    return None if first is None else first.install or first.why


def _paths(file: OpenFile) -> list[Path | None]:
    """Return the path of each file of the Index; None for bytes in memory."""
    source = file.source
    folder = source.path if source.is_dir or source.path is None else source.path.parent
    return [folder / ref.name if folder is not None else None for ref in file.index.files]


def _packing(file: OpenFile) -> dict[str, Any] | None:
    """Return the codec of compressed files, and their size on disk; None if they are not compressed."""
    if file.source.packed is None:
        return None
    sources = [file.source_for(number) for number in range(len(file.index.files))]
    size = sum(source.packed[1] if source.packed else source.size for source in sources)
    return {"codec": file.source.packed[0], "size": size}


def _section(title: str, lines: Sequence[str]) -> list[str]:
    """Lines under a title after an empty line; nothing without lines."""
    return ["", *([title] if title else []), *lines] if lines else []


def _brief(value: Any) -> Any:
    """Return a metadata value for JSON; a long array is replaced by its length (`--meta` prints it)."""
    size = len(value) if hasattr(value, "__len__") and not isinstance(value, (str, bytes, dict)) else 0
    return {"length": size} if size > LONG else value


def _fewest_digits(stored: str | None, value: Any) -> Any:
    """Return a metadata value; an f32 as text with the fewest digits that round-trip."""
    if stored != "f32":
        return value
    import numpy as np

    return str(np.float32(value))


def abbreviate(value: Any) -> str:
    """Return a metadata value on one line; only the first items of a long list are read."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview)):
        text = ", ".join(str(item) for item in value[:LONG])
        return f"[{text}]" if len(text) <= LONG >= len(value) else f"[{text[: LONG - 16]}...] {len(value):,} values"
    text = str(value if isinstance(value, float) else to_json(value))
    return text if len(text) <= LONG else f"{text[: LONG - 16]}... {len(text):,} characters"
