"""One npy directory as an Index: its manifest, tensor files and tiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from attrs import evolve
from squish_safetensors.api import MODEL_ASSETS, model_assets

from squish_core.api import (
    DENSE,
    CodecError,
    CodecSpec,
    Encoding,
    ErrorCode,
    FileRef,
    Index,
    MissingPluginError,
    Part,
    Problem,
    Segment,
    SquishError,
    TensorError,
    TensorSpec,
    counted,
)

from .read import awq, manifest
from .read.folder import META, Folder, Stored
from .read.manifest import PLACE
from .tiers import read, seal
from .tiers.seal import INT4_READY, READY

STATS = "stats.json"
UNREADABLE = (TensorError, CodecError, MissingPluginError)
"""Errors that make one tensor unreadable; all others concern the directory."""
Shape = tuple[int, ...]


class Directory:
    """Reads one directory. Readers of its own arrays are imported on first use: a sealed tier does not need them."""

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
            format="npydir",
            version="",
            tensors=tensors,
            meta=self.meta(),
            assets=_assets(folder),
            files=files if best else tuple(files),
            children=children,
            problems=tuple(self.problems),
            caches=tuple(tier_files.tier.label for tier_files in self.tiers),
        )

    def sealed(self) -> tuple[seal.Sealed, seal.Files] | None:
        """Return the tensors of the best tier if it is one sealed file with all tensors; reads no other file."""
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
        from .read import dialects

        arrays = {}
        for suffix in sorted(self.suffixes.get(key, frozenset()) & dialects.SUFFIXES):
            stored = self.folder.find(f"{PLACE}/{key}__{suffix}")
            if stored is not None:
                arrays[suffix] = stored
        return arrays

    def stored(self, name: str, files: Mapping[str, Stored]) -> tuple[list[Encoding], Shape | None, str]:
        """Return the encodings of the files, the shape, and the problems of the others."""
        from .read import dialects

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
        """Return the values in `stats.json` and in `squish.meta`; no tensor depends on them, so they may be damaged."""
        meta: dict[str, Any] = {}
        if self.folder.has(STATS):
            try:
                stats = self.folder.json(STATS, "statistics")
                meta = {key: value for key, value in stats.items() if isinstance(value, (str, int, float))}
            except SquishError as error:
                self.report("stats", "warning", STATS, f"cannot be read: {error.message}")
        if self.folder.has(META):
            try:
                meta |= self.folder.metadata()
            except SquishError as error:
                self.report("meta", "warning", META, f"cannot be read: {error.message}")
        return meta

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
            message = f"{len(lost):,} of {counted(len(tensors), 'tensor')} cannot be read{why}: {listing}"
            self.report("partial", "warning", "manifest.json", message)
        self._state_of_int4(tensors)
        for label, count in self.missing.items():
            message = f"the tier {label} lacks {count:,} of {counted(len(tensors), 'tensor')}"
            self.report("tier", "warning", label, message)

    def _state_of_int4(self, tensors: Mapping[str, TensorSpec]) -> None:
        """Report 4-bit arrays next to INT8 ones without their sentinel (an interrupted conversion), and the reverse."""
        labels = [{str(encoding.label) for encoding in spec.encodings} for spec in tensors.values()]
        packed = [any(label.startswith("int4") for label in each) for each in labels]
        both = sum("int8" in each and four for each, four in zip(labels, packed))
        left = sum("int8" in each and not four for each, four in zip(labels, packed))
        if self.folder.has(INT4_READY):
            if left and not any(packed):
                self.report("tier", "warning", "int4", f"{INT4_READY} is there, but no tensor has 4-bit arrays")
        elif both:
            arrays = f"4-bit arrays of {counted(both, 'tensor')}, only INT8 arrays of {left:,}"
            message = f"the conversion to int4 was not finished ({INT4_READY} is missing): {arrays}"
            self.report("tier", "warning", "int4", message)

    def _refuse_irregular(self, key: str, files: Mapping[str, Stored]) -> None:
        """Raise FormatError for anything other than a file in place of an array (a pipe, a folder)."""
        from .read import dialects

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
        if encoding.codec == DENSE and _dtype(encoding) != dtype
        else encoding
        for encoding in encodings
    )
    return TensorSpec(name=name, shape=shape, dtype=dtype, encodings=ranked)


def _dtype(encoding: Encoding) -> str:
    return encoding.parts["data"].dtype if encoding.codec == DENSE else "f32"


def _assets(folder: Folder) -> dict[str, Part]:
    assets = {}
    listed = folder.source.lists_members or folder.listed is not None
    for name in model_assets(folder.source, folder.names() if listed else [*filter(folder.has, MODEL_ASSETS)]):
        size = folder.size(name)
        assets[name] = Part(dtype="u8", shape=(size,), segments=(Segment(folder.number(name, size), 0, size),))
    return assets
