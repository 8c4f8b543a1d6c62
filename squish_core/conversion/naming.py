"""Whether a conversion maps the model into the target's layout, and what the report says of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import cast

from attrs import evolve

from squish_core.conversion.rules import Rule
from squish_core.conversion.step import Step
from squish_core.errors import FormatError, UsageError
from squish_core.families.base import GGUF, HF
from squish_core.file import File
from squish_core.formats.base import Container, Options
from squish_core.mapping.mapped import MappedFile, ModelMap, Naming, lacking, naming_of
from squish_core.model import Part, TensorSpec
from squish_core.plugins.hookspecs import FamilyInfo
from squish_core.plugins.registry import Registry

KEEP = "keep"
ENGINES = {"hf": "transformers", "gguf": "llama.cpp", "mlx": "mlx-lm", "uqff": "mistral.rs"}


def choose_map(
    file: File, container: Container, options: Options, rename: str | None
) -> tuple[ModelMap | None, tuple[str, ...]]:
    """The map into the layout that the target's engine looks for, or notes why names stay as they are.

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
        return None, ()
    naming = _stated(naming_of(file), family, file)
    if (layout == GGUF) == (naming.layout == GGUF) and layout in (GGUF, HF):
        return None, ()
    if wanted == KEEP:
        return None, (_unmapped(layout, "rename='keep'"),) if (layout == GGUF) != (naming.layout == GGUF) else ()
    if naming.family is None:
        if wanted:
            raise FormatError(f"cannot be renamed: {naming.reason}", file=file.name, code="names")
        return None, (_unmapped(layout, naming.reason),)
    if not wanted and (absent := lacking(file, naming)):
        return None, (_unmapped(layout, f"it is a part of a model, without {absent[0]}"),)
    return ModelMap(naming, layout), ()


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
    return tuple(rule if rule.pattern is None else evolve(rule, names=_ruled(rule, file)) for rule in rules)


def _ruled(rule: Rule, file: MappedFile) -> frozenset[str]:
    """The mapped tensors that a rule is about."""
    if rule.names is None:
        assert rule.pattern is not None
        return frozenset(_named(rule.pattern, file))
    return frozenset(name for name in file if not rule.names.isdisjoint(file.sources(name)))


def all_names(file: File) -> list[str]:
    """Names that a pattern may be about: those of the tensors, and those of the original of a mapped file."""
    return [*file, *(file.original if isinstance(file, MappedFile) else ())]


def selected(file: File, patterns: tuple[str, ...]) -> list[TensorSpec]:
    """The tensors that a pattern matches, by their own name or one of their sources'; all without patterns."""
    chosen = {name for pattern in patterns for name in _named(pattern, file)}
    return [file.index.tensors[name] for name in file if name in chosen or not patterns]


def _named(pattern: str, file: File) -> Iterator[str]:
    for name in file:
        sources = file.sources(name) if isinstance(file, MappedFile) else ()
        if any(fnmatchcase(each, pattern) for each in (name, *sources)):
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
