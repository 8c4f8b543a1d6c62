"""Models whose components are in several files: text layers, and a tower or layers that predict more tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from attrs import evolve

from squish_core import opening
from squish_core.checking.maps import path_of
from squish_core.codes import ErrorCode
from squish_core.errors import FormatError, UsageError
from squish_core.file import File
from squish_core.guard import guarded
from squish_core.io.pin import Traffic
from squish_core.io.source import Source
from squish_core.limits import Limits
from squish_core.model import FileRef, Index, Part, TensorSpec
from squish_core.plugins.registry import Registry
from squish_core.text import words

from .components import component_hint
from .families import COMPONENTS, GGUF, MTP, TEXT, VISION
from .mapping.apply import JOINED, Joined, text_family
from .mapping.mapped import ARCHITECTURE, PROJECTOR, family_of, model_of, naming_of

Parts = Mapping[str, Any]
"""Component -> its file: a path, an address, or an open file."""
JOINABLE = (VISION, MTP)
"""Components that may lie in files of their own."""


class JoinedSource(Source):
    """The files of several open files, by component; each is in a folder with the name of its component."""

    is_dir = True

    def __init__(self, opened: Mapping[str, File], name: str) -> None:
        super().__init__(name, sum(file.size for file in opened.values()))
        self.opened = opened
        sources = [file.source for file in opened.values()]
        self.cheap_views = all(source.cheap_views for source in sources)
        self.is_remote = any(source.is_remote for source in sources)
        self.findings = tuple(finding for source in sources for finding in source.problems())
        self._places: dict[str, Callable[[], Source]] = {
            f"{part}/{ref.name}": partial(file.source_for, number)
            for part, file in opened.items()
            for number, ref in enumerate(file.index.files)
        }

    def member(self, name: str, folder: str = "", *, links: bool = True) -> Source:
        self.check_open()
        return self._places[f"{folder}/{name}"]()

    def unmapped(self) -> Source:
        return self

    def traffic(self) -> Traffic | None:
        seen = [each for file in self.opened.values() if (each := file.source.traffic()) is not None]
        return Traffic(*(sum(numbers) for numbers in zip(*map(_numbers, seen)))) if seen else None


def _numbers(traffic: Traffic) -> tuple[int, int, int]:
    return traffic.requests, traffic.fetched, traffic.unused


def check_parts(parts: Any) -> None:
    """Raise UsageError unless these are components that files of their own may have, each with a file."""
    for name, place in parts.items():
        if name not in COMPONENTS:
            raise UsageError(
                "there is no such component of a model",
                expected=", ".join(COMPONENTS),
                found=repr(name),
                code=ErrorCode.USAGE,
                hint=component_hint(name),
            )
        if name not in JOINABLE or not place:
            what = "has no file" if name in JOINABLE else f"cannot be joined: Squish maps no {name} component"
            raise UsageError(
                f"the component {name} {what if name != TEXT else 'is the source itself'}",
                expected=words(" or ".join(f"{{option:part={each}=FILE}}" for each in JOINABLE)),
                found=repr(place),
                code=ErrorCode.USAGE if name in (*JOINABLE, TEXT) else ErrorCode.UNMAPPED,
                hint="Leave it out; the text layers are converted without it.",
            )


def open_parts(file: File, parts: Parts, stack: ExitStack, limits: Limits | None, registry: Registry | None) -> File:
    """Open the files of components, and return them and the text layers as one file; `stack` closes them."""
    check_parts(parts)
    opened = {}
    for name, place in parts.items():
        is_open = isinstance(place, File)
        opened[name] = place if is_open else stack.enter_context(opening.open(place, limits=limits, registry=registry))
    return join(file, opened)


def addresses(file: File) -> dict[str, Any]:
    """Return where other processes find a file (`source`), and those that it was joined from (`parts`)."""
    if not isinstance(file.source, JoinedSource):
        return {"source": path_of(file)}
    paths = {part: path_of(each) for part, each in file.source.opened.items()}
    return {"source": paths.pop(TEXT), "parts": paths}


def join(file: File, parts: Mapping[str, File]) -> File:
    """Return a GGUF of text layers and the files of other components as one file.

    Its Index has the tensors of all, and in `attrs` the index of each component with a family of its own.

    Raises
    ------
    SquishError
        A file is not that component of this model.
    """
    naming = naming_of(file)
    if naming.layout != GGUF or naming.family is None or file.index.kind != "model":
        raise FormatError(
            f"components are joined with the GGUF of a model's text layers: {naming.reason or 'this is a folder'}",
            file=file.name,
            code=ErrorCode.USAGE,
            expected="a GGUF of a family that `squish families` lists",
            found=file.format if naming.layout != GGUF else naming.model_type or file.index.kind,
            hint="Convert the folder as it is, without {option:part}, or convert its text layers to a GGUF first.",
        )
    parts = dict(sorted(parts.items()))
    source = JoinedSource({TEXT: file, **parts}, file.name)
    refs = [(part, ref) for part, each in source.opened.items() for ref in each.index.files]
    files = [FileRef(f"{part}/{ref.name}", ref.size, ref.digest) for part, ref in refs]
    index, first = evolve(file.index, files=files), len(file.index.files)
    components: dict[str, Index] = {}
    for part, each in parts.items():
        _check_kind(part, each)
        moved = {name: renumbered(spec, first) for name, spec in each.without_caches().index.tensors.items()}
        if part == MTP:
            meta, own = _with_behind(file, each)
            moved = {name: moved[name] for name in own}
            index = evolve(index, meta=meta)
        else:
            _check_other(part, file, each)
            components[part] = evolve(each.index, files=files, tensors=moved, assets={}, caches=())
        index = evolve(index, tensors={**index.tensors, **moved})
        first += len(each.index.files)
    names = {part: each.name for part, each in source.opened.items()}
    attrs = {**index.attrs, JOINED: Joined(names=names, indexes=components)}
    return File(source, evolve(index, attrs=attrs), file.registry, file.limits)


def _check_kind(part: str, file: File) -> None:
    """Raise FormatError for the file of another component, or of a whole model."""
    kind, expected = file.index.kind, PROJECTOR if part == VISION else "model"
    if kind == expected and file.format == "gguf":
        return
    what = "a model with text layers" if kind == "model" else f"a file of the kind {kind}"
    raise FormatError(
        f"is not the {part} component of a model",
        file=file.name,
        part="general.type",
        code=ErrorCode.USAGE,
        expected=f"a GGUF of the type {expected}",
        found=f"{what} ({file.format})",
        hint=f"`squish info` lists the components of a file; {{option:part={part}}} writes one from a folder.",
    )


def _check_other(part: str, file: File, other: File) -> None:
    """Raise FormatError for a component that no family has, or that is one of other models."""
    naming = naming_of(other)
    if naming.error is not None:
        raise naming.error.within(file=other.name)
    if naming.family is None:
        raise FormatError(
            f"is a {part} component that is not mapped: {naming.reason}", file=other.name, code=ErrorCode.UNMAPPED
        )
    text_family(file, other)


def _with_behind(file: File, other: File) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The keys of a model with the layers of another file, and the names of their tensors."""
    naming, theirs = naming_of(file), naming_of(other)
    if naming.family != theirs.family:
        raise FormatError(
            "has the layers of another model",
            file=other.name,
            part=ARCHITECTURE,
            code=ErrorCode.CONTRADICTION,
            expected=naming.model_type,
            found=theirs.model_type or theirs.reason,
        )
    family = family_of(file, naming)
    with guarded(FormatError, f"joining it with {file.name}", file=other.name):
        meta, names = family.with_behind(model_of(file, family, GGUF), model_of(other, family, GGUF))
    return meta, tuple(names)


def renumbered(spec: TensorSpec, first: int) -> TensorSpec:
    """Return a tensor whose files have numbers that are higher by `first`."""
    encodings = tuple(
        evolve(encoding, parts={role: _moved_part(part, first) for role, part in encoding.parts.items()})
        for encoding in spec.encodings
    )
    return evolve(
        spec, encodings=encodings, extras={role: _moved_part(part, first) for role, part in spec.extras.items()}
    )


def _moved_part(part: Part, first: int) -> Part:
    return evolve(part, segments=tuple(evolve(segment, file=segment.file + first) for segment in part.segments))
