"""The npy directory container: manifest, tensor files and cache tiers as one Index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from attrs import evolve
from squish_safetensors.api import MODEL_ASSETS

from squish_core.api import (
    DENSE,
    CodecError,
    CodecSpec,
    CodeLayout,
    Container,
    Encoding,
    ErrorCode,
    FileRef,
    FormatError,
    Index,
    Limits,
    MissingPluginError,
    Options,
    OutgoingTensor,
    Part,
    Problem,
    Refusal,
    Segment,
    Sink,
    Source,
    SquishError,
    TensorError,
    TensorSpec,
    WritePlan,
    parse_spec,
)

from .features import DIALECTS, TIERS
from .options import narrowed, option, quantized
from .read import awq, dialects, manifest
from .read.folder import Folder, Stored
from .tiers import read, seal
from .tiers.seal import INT4_READY, PLACE, READY
from .write import accept, writer

STATS = "stats.json"
UNREADABLE = (TensorError, CodecError, MissingPluginError)
"""Errors that make one tensor unreadable; all others concern the directory."""
Shape = tuple[int, ...]


class NpyDir(Container):
    """Squish's npy directories; only tensors in the manifest are listed, and arrays stay in their files."""

    def read_index(self, source: Source, limits: Limits) -> Index:
        if not source.is_dir:
            raise FormatError(
                "not a npy directory but a file",
                file=source.name,
                code=ErrorCode.FOLDER,
                hint="Open the folder.",
            )
        folder = Folder(source=source, limits=limits)
        if not folder.has(manifest.MANIFEST) and folder.has(awq.INDEX):
            return awq.read(folder)
        return Directory(folder).index()

    def read_index_with(self, source: Source, limits: Limits, options: Options) -> Index:
        option(options, "tiers")
        if source.path is None:
            raise FormatError(
                "tiers=build needs a local folder", file=source.name, code=ErrorCode.OPTION,
                hint="Open it without tiers=build, or download it.",
            )  # fmt: skip
        index = self.read_index(source, limits)
        from .tiers import background

        background.start(source.path)
        return index

    def encodings_for(self, *, dialect: Any = (), tier: Any = (), **features: Any) -> tuple[Encoding, ...]:
        tables = ((tier, TIERS), (dialect, DIALECTS))
        chosen = [({value} if isinstance(value, str) else set(value), table) for value, table in tables]
        return tuple(
            Encoding(codec=parse_spec(text), label=label)
            for labels, table in chosen for label, text in table.items() if label in labels
        )  # fmt: skip

    def accepts(self, spec: TensorSpec, encoding: Encoding, options: Options) -> Encoding | Refusal:
        return accept.accepts(spec, encoding)

    def accepts_codes(self, spec: TensorSpec, layout: CodeLayout, options: Options) -> Encoding | Refusal | None:
        return accept.accepts_codes(spec, layout, option(options, "scales") or "f32")

    def choose(self, specs: Sequence[TensorSpec], codec: CodecSpec, options: Options) -> Mapping[str, CodecSpec]:
        return quantized(specs, codec)

    def dense_dtypes(self, specs: Sequence[TensorSpec], options: Options) -> Mapping[str, str]:
        return narrowed(specs, options)

    def writes_folder(self, options: Options) -> bool:
        return True

    def plan_file(
        self, specs: Sequence[TensorSpec], meta: Mapping[str, Any], assets: Mapping[str, Part], options: Options
    ) -> WritePlan:
        return writer.plan_file(specs, meta, {name: part.nbytes for name, part in assets.items()})

    def write(
        self,
        sink: Sink,
        tensors: Sequence[OutgoingTensor],
        meta: Mapping[str, Any],
        assets: Mapping[str, bytes],
        options: Options,
    ) -> None:
        writer.write(sink, tensors, meta, assets)


class Directory:
    """Reads one directory."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.problems: list[Problem] = []
        self.missing: dict[str, int] = {}
        self.names = manifest.read(folder)
        self.tiers = list(read.read(folder, self.problems))

    @cached_property
    def suffixes(self) -> dict[str, frozenset[str]]:
        """Safe key -> suffixes of its files."""
        return _suffixes(self.folder)

    def index(self) -> Index:
        """Return the Index of all tensors in the manifest; unreadable ones have a problem."""
        files: Sequence[FileRef] = self.folder.refs
        tensors: Mapping[str, TensorSpec]
        best = self.sealed()
        if best is not None:
            tensors, files = best
        else:
            tensors = {name: self.tensor(name, key) for name, key in self.names.items()}
            self._state(tensors)
        folder, children = self.folder, {}
        if folder.has(awq.INDEX):
            children["awq"] = awq.read(Folder(source=folder.source, limits=folder.limits))
        return Index(
            format="npydir", version="", tensors=tensors, meta=self.meta(), assets=_assets(folder),
            files=files if best else tuple(files), children=children, problems=tuple(self.problems),
            caches=tuple(tier_files.tier.label for tier_files in self.tiers),
        )  # fmt: skip

    def sealed(self) -> tuple[seal.Sealed, seal.Files] | None:
        """Return the tensors of the best tier if it is one sealed file with all tensors; no other file is read."""
        best = self.tiers[0] if self.tiers else None
        if best is None or not self.names.keys() <= best.records.keys():
            return None
        if not seal.is_valid(self.folder, best.tier.label, best.tier.needs):
            return None
        folders = (tier.tier.needs[:-1] for tier in self.tiers if tier.tier.needs.endswith("/"))
        files = seal.Files(self.folder, (PLACE, *folders))
        records = {name: best.records[name] for name in self.names}
        extents = [(file, offset, length, name) for name, (file, _, _, offset, length) in records.items()]

        def complete(name: str) -> TensorSpec:
            """Return a tensor with all its encodings."""
            files.complete()
            return self.agreeing(name)

        return seal.Sealed(records, complete, extents), files

    def agreeing(self, name: str) -> TensorSpec:
        """Return a tensor of a sealed tier, checked against the other files."""
        spec = self.tensor(name, self.names[name])
        if not spec.encodings or spec.encodings[0].label != self.tiers[0].tier.label:
            raise seal.changed(spec)
        return spec

    def tensor(self, name: str, key: str) -> TensorSpec:
        """Return a tensor with all its encodings, best first."""
        files: dict[str, Stored] = {}
        stored, shape, problem = list[Encoding](), None, ""
        try:
            files = self.files(key)
            stored, shape, problem = self.stored(name, files)
        except UNREADABLE as error:
            problem = str(error).rstrip(".")
        if problem:
            self._refuse_irregular(key, files)
        cached, shape = self.cached(name, key, shape)
        encodings = [*cached, *stored]
        if encodings and problem:
            self.report("files", "warning", name, problem)
        extras = {} if encodings else {suffix: file.raw() for suffix, file in files.items()}
        return _spec(name, shape or (), encodings, extras, problem)

    def files(self, key: str) -> dict[str, Stored]:
        """Return the arrays of a tensor by suffix, without unsupported ones."""
        arrays = {}
        for suffix in sorted(self.suffixes.get(key, frozenset()) & dialects.SUFFIXES):
            stored = self.folder.find(f"{PLACE}/{key}__{suffix}")
            if stored is not None:
                arrays[suffix] = stored
        return arrays

    def stored(self, name: str, files: Mapping[str, Stored]) -> tuple[list[Encoding], Shape | None, str]:
        """Return the encodings of the files, the shape, and the problems of the others."""
        shape: Shape | None = None
        if "shape" in files:
            shape = self.folder.shape(files["shape"], name)
        encodings, problems = list[Encoding](), list[str]()
        for dialect in dialects.DIALECTS:
            first = files.get(next(iter(dialect.files.values())))
            if first is None or not dialect.applies(files.keys(), len(first.npy.shape)):
                continue
            arrays = {role: files[suffix] for role, suffix in dialect.files.items() if suffix in files}
            try:
                size = dialects.shape_of(dialect, arrays) if shape is None else shape
                encodings.append(dialects.encoding(dialect, name, size, arrays, self.folder))
                shape = size
            except UNREADABLE as error:
                problems.append(str(error).rstrip("."))
        if not encodings and not problems:
            present = self.suffixes.get(self.names[name], frozenset())
            problems += [why for suffix, why in dialects.UNSUPPORTED.items() if suffix in present] or ["no files"]
        return encodings, shape, "; ".join(problems)

    def cached(self, name: str, key: str, shape: Shape | None) -> tuple[list[Encoding], Shape | None]:
        """Return the encodings in the tiers, and the shape. An encoding with another shape is reported and left out."""
        encodings = list[Encoding]()
        for files in self.tiers:
            label = files.tier.label
            try:
                entry = files.find(name, key)
            except SquishError as error:
                self.report("tier", "warning", name, f"cannot be read from the tier {label}: {error}")
                continue
            if entry is None:
                if files.tier.of_all:
                    self.missing[label] = self.missing.get(label, 0) + 1
            elif shape is not None and entry[1] != shape:
                self.report(
                    "tier", "warning", name, f"the tier {label} has the shape {list(entry[1])}, expected {list(shape)}"
                )
            else:
                encodings.append(entry[0])
                shape = entry[1]
        return encodings, shape

    def meta(self) -> dict[str, Any]:
        """Return the values in `stats.json`; nothing depends on it, so it may be damaged."""
        if not self.folder.has(STATS):
            return {}
        try:
            stats = self.folder.json(STATS, "statistics")
        except SquishError as error:
            self.report("stats", "warning", STATS, f"cannot be read: {error.message}")
            return {}
        return {key: value for key, value in stats.items() if isinstance(value, (str, int, float))}

    def report(self, code: str, severity: str, where: str, message: str) -> None:
        """Add a problem."""
        self.problems.append(Problem(code=code, severity=severity, where=where, message=message))

    def _state(self, tensors: Mapping[str, TensorSpec]) -> None:
        """Report whether the directory is complete, by its bookkeeping and its tensors."""
        lost = [name for name, spec in tensors.items() if not spec.encodings]
        if lost:
            listing = ", ".join(lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
            why = (
                ""
                if self.folder.has(READY)
                else ", since the directory was never finished (.manifest_ready is missing)"
            )
            message = f"{len(lost)} of {len(tensors)} tensors cannot be read{why}: {listing}"
            self.report("partial", "warning", "manifest.json", message)
        self._state_of_int4(tensors)
        for label, count in self.missing.items():
            self.report("tier", "warning", label, f"the tier {label} lacks {count} of {len(tensors)} tensors")

    def _state_of_int4(self, tensors: Mapping[str, TensorSpec]) -> None:
        """Report 4-bit arrays beside INT8 ones without their sentinel: the conversion was interrupted."""
        if self.folder.has(INT4_READY):
            return
        labels = [{encoding.label for encoding in spec.encodings} for spec in tensors.values()]
        both = sum({"int4", "int8"} <= each for each in labels)
        if both:
            left = sum("int8" in each and "int4" not in each for each in labels)
            message = f"the conversion to int4 was not finished ({INT4_READY} is missing)"
            self.report(
                "tier", "warning", "int4", f"{message}: {both} tensors have 4-bit arrays, {left} only INT8 arrays"
            )

    def _refuse_irregular(self, key: str, files: Mapping[str, Stored]) -> None:
        """Raise FormatError for anything other than a file in place of an array (a pipe, a folder)."""
        for suffix in sorted(dialects.SUFFIXES - files.keys()):
            try:
                self.folder.open(f"{PLACE}/{key}__{suffix}.npy")
            except SquishError as error:
                if error.code != ErrorCode.MISSING:
                    raise


def _suffixes(folder: Folder) -> dict[str, frozenset[str]]:
    """Return safe key -> suffixes of its files."""
    suffixes_of: dict[str, set[str]] = {}
    for name in folder.names(PLACE):
        stem = name.removesuffix(".zst").removesuffix(".br").removesuffix(".npy")
        key, mark, suffix = stem.rpartition("__")
        if mark:
            suffixes_of.setdefault(key, set()).add(suffix)
    return {key: frozenset(suffixes) for key, suffixes in suffixes_of.items()}


def _spec(name: str, shape: Shape, encodings: list[Encoding], extras: Mapping[str, Part], problem: str) -> TensorSpec:
    """Return the tensor with the dtype of its first encoding; dense encodings of another dtype declare it."""
    if not encodings:
        return TensorSpec(name=name, shape=shape, dtype="unknown", extras=extras, problem=problem)
    dtype = _dtype(encodings[0])
    ranked = tuple(
        evolve(encoding, codec=CodecSpec("dense", {"dtype": _dtype(encoding)}))
        if encoding.codec == DENSE and _dtype(encoding) != dtype else encoding
        for encoding in encodings
    )  # fmt: skip
    return TensorSpec(name=name, shape=shape, dtype=dtype, encodings=ranked)


def _dtype(encoding: Encoding) -> str:
    return encoding.parts["data"].dtype if encoding.codec == DENSE else "f32"


def _assets(folder: Folder) -> dict[str, Part]:
    assets = {}
    for name in MODEL_ASSETS:
        if folder.has(name):
            source = folder.open(name)
            segment = Segment(folder.number(name, source.size), 0, source.size)
            assets[name] = Part(dtype="u8", shape=(source.size,), segments=(segment,))
    return assets
