"""Whether a conversion maps the model into the target's layout, and what the report says of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import cast

from attrs import evolve

from squish_core.conversion.plan import Step
from squish_core.conversion.rules import Rule
from squish_core.errors import FormatError, UsageError
from squish_core.families.base import GGUF, HF
from squish_core.file import File
from squish_core.formats.base import Container, Options
from squish_core.mapping.mapped import MappedFile, Naming, lacking, map_file, naming_of
from squish_core.model import Part
from squish_core.plugins.hookspecs import FamilyInfo
from squish_core.plugins.registry import Registry

KEEP = "keep"
ENGINES = {"hf": "transformers", "gguf": "llama.cpp", "mlx": "mlx-lm", "uqff": "mistral.rs"}


def in_layout(file: File, container: Container, options: Options, rename: str | None) -> tuple[File, tuple[str, ...]]:
    """The file in the layout that the target's engine looks for, and notes where it stays as it is.

    `rename`: "keep" leaves it, "hf" and "gguf" ask for a layout; a colon and a family's id state the family of a file
    that states none.
    """
    wanted, _, family = (rename or "").partition(":")
    if wanted not in ("", KEEP, HF, GGUF) or (family and wanted not in (HF, GGUF)):
        raise UsageError(
            "no such names", expected=f"{KEEP}, {HF} or {GGUF}, and a family after a colon where the file states none",
            found=repr(rename), code="names",
        )  # fmt: skip
    layout = container.naming(options) if wanted in ("", KEEP) else wanted
    if layout is None or (file.index.format == container.id and not wanted):
        return file, ()
    naming = _stated(naming_of(file), family, file)
    if (layout == GGUF) == (naming.layout == GGUF) and layout in (GGUF, HF):
        return file, ()
    if wanted == KEEP:
        return file, (_unmapped(layout, "rename='keep'"),) if (layout == GGUF) != (naming.layout == GGUF) else ()
    if naming.family is None:
        if wanted:
            raise FormatError(f"cannot be renamed: {naming.reason}", file=file.name, code="names")
        return file, (_unmapped(layout, naming.reason),)
    if not wanted and (absent := lacking(file, naming)):
        return file, (_unmapped(layout, f"it is a part of a model, without {absent[0]}"),)
    return map_file(file, layout, options, naming), ()


def _unmapped(layout: str, reason: str) -> str:
    return f"names stay as they are, and {ENGINES[layout]} will not load this: {reason}"


def _stated(naming: Naming, family: str, file: File) -> Naming:
    """The naming with the family that the user states; FormatError where the file states another one."""
    if not family:
        return naming
    info = cast(FamilyInfo, registered(file.registry, family))
    fitting = (info.architecture,) if naming.layout == GGUF else info.model_types
    if naming.stated is not None and naming.stated not in fitting:
        raise FormatError(
            "the names are those of another family", file=file.name, code="names", expected=family,
            found=repr(naming.stated),
        )  # fmt: skip
    return evolve(naming, family=family)


def registered(registry: Registry, family: str) -> object:
    """The declaration of a family; MissingPluginError with the package that brings it."""
    registry.family(family)
    return registry.families[family].info


def with_sources(rules: tuple[Rule, ...], file: File) -> tuple[Rule, ...]:
    """The rules, for patterns of the source's names as well as of the mapped ones."""
    if not isinstance(file, MappedFile):
        return rules
    return tuple(
        rule if rule.pattern is None else evolve(rule, names=frozenset(_named(rule.pattern, file))) for rule in rules
    )


def all_names(file: File) -> list[str]:
    """Names that a pattern may be about: those of the tensors, and those of the original of a mapped file."""
    return [*file, *(file.original if isinstance(file, MappedFile) else ())]


def selected(file: File, patterns: tuple[str, ...]) -> list[str]:
    """Names of the tensors that a pattern matches, by their own name or one of their sources'; all without patterns."""
    if not patterns:
        return list(file)
    if not isinstance(file, MappedFile):
        return [name for name in file if any(fnmatchcase(name, pattern) for pattern in patterns)]
    chosen = {name for pattern in patterns for name in _named(pattern, file)}
    return [name for name in file if name in chosen]


def _named(pattern: str, file: MappedFile) -> Iterator[str]:
    for name in file:
        if any(fnmatchcase(each, pattern) for each in (name, *file.sources(name))):
            yield name


def stored_parts(file: File, step: Step) -> Iterator[tuple[str, str, Part]]:
    """Name, role and part of what the source stores for a step, with the digests that it states."""
    if not isinstance(file, MappedFile):
        yield from ((step.name, role, part) for role, part in step.origin.parts.items())
        return
    for name in file.sources(step.name):
        for encoding in file.original.index.tensors[name].encodings:
            if encoding.label == step.origin.label:
                yield from ((name, role, part) for role, part in encoding.parts.items())


def mapped_step(file: MappedFile, step: Step) -> Step:
    """The step with what the map does to the tensor: in words, and how exactly."""
    change = file.change(step.name)
    words = ", ".join(change.words)
    exactness = step.exactness
    if change.exactness is not None and exactness.kind != "bounded":
        exactness = change.exactness
    note = f"{step.note}; {words}" if step.note and words else step.note or words
    return evolve(step, note=note, exactness=exactness)


def map_notes(file: File) -> tuple[str, ...]:
    """What the report says of a map: the family, what moves, what the target's engine will miss."""
    if not isinstance(file, MappedFile):
        return ()
    moved = Counter(word for name in file for word in file.change(name).words)
    words = [f"{word} in {count}" for word, count in moved.items()]
    line = f"mapped as {file.family} from {file.naming.layout} to {file.layout}: names of {len(file)} tensors"
    notes = [", ".join((line, *words)), *file.carried.notes]
    notes += [f"{ENGINES[file.layout]} will miss {what}" for what in file.carried.missing]
    return tuple(notes)
