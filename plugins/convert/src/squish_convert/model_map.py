"""Decide whether a conversion maps the model to the target's layout, and apply rules and patterns to mapped names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from attrs import evolve

from squish_core.codes import BUGS, ErrorCode
from squish_core.errors import FormatError, SquishError, TensorError, TruncatedError, UsageError
from squish_core.file import File
from squish_core.formats.assets import check_assets
from squish_core.formats.base import Options, WritableContainer
from squish_core.model import Part, TensorSpec
from squish_core.plugins.hookspecs import FamilyInfo
from squish_core.plugins.registry import Registry
from squish_core.text import words

from .arrays import MEMORY
from .components import components, layers_behind, parts_of
from .families import ENGINES, GGUF, HF, MTP, TEXT, UQFF, VISION
from .mapping.inventory import check_settings, settings_place
from .mapping.mapped import (
    MappedFile,
    ModelMap,
    Naming,
    PassThroughFile,
    family_hint,
    family_of,
    foreign_tensors,
    map_file,
    missing_tensors,
    model_of,
    naming_of,
    pass_through_family,
    stores_codes,
    turning_rules,
)
from .mapping.names import has_engine_names
from .rules import EncodeRule
from .step import Step

KEEP = "keep"
FILES = {VISION: "mmproj.gguf", MTP: "mtp.gguf"}
"""Component -> the usual name of its file."""
_OWN_LAYOUT = re.compile(r"tok_embeddings\.weight|layers\.\d+\.attention\.w[qkvo]\.weight")
"""Names of `consolidated.safetensors` and `consolidated.00.pth`."""
_STACKED = re.compile(r"\.switch_mlp\.")


def choose_map(
    file: File, container: WritableContainer, options: Options, rename: str | None, part: str = TEXT
) -> tuple[ModelMap | None, tuple[str, ...]]:
    """Return the map to the layout that the target's engine expects, or notes on why names stay the same.

    `rename`: "keep" changes nothing, "hf" and "gguf" select a layout, and `:FAMILY` after it names the family of a file
    that does not declare one. `part`: the component to write.
    """
    request, _, family = (rename or "").partition(":")
    if request not in ("", KEEP, HF, GGUF) or (family and request not in (HF, GGUF)):
        raise UsageError(
            "unknown naming",
            expected=f"{KEEP}, {HF} or {GGUF}; then a colon and a family if the file declares none",
            found=repr(rename),
            code="names",
        )
    layout = container.naming(options) if request in ("", KEEP) else request
    if part != TEXT:
        return _component(file, part, layout, request), ()
    if layout is None:
        return None, ()
    naming = _with_family(naming_of(file), family, file)
    if request == KEEP:
        note = _unmapped_note(layout, words("{option:rename=keep}"))
        return None, (note,) if naming.crosses(layout) else ()
    _check_files(file, naming, layout)
    _check_names(file, naming, layout)
    _check_layers(file, naming, layout)
    # A GGUF may have the names of the checkpoint that it keeps.
    may_be_renamed = layout == HF or (layout == GGUF and naming.family is not None)
    is_own_format = not request and file.index.format == container.id and not may_be_renamed
    if is_own_format or _has_layout(file, naming, layout, options):
        return None, _check_unmapped(file, naming, layout, options, request)
    if naming.adapter:
        _check_adapter(naming, layout, file)
    if naming.family is None:
        if request:
            raise _not_renamed(file, naming)
        if naming.model_type is None and naming.class_name is None:
            return None, (_unmapped_note(layout, naming.reason),)
        return _passed_through(file, naming, layout), ()
    if not request and not naming.adapter and (absent := missing_tensors(file, naming)):
        _check_part(file, naming, layout, absent[0])
        return None, (_unmapped_note(layout, f"the model is incomplete: {absent[0]} is missing"),)
    return ModelMap(naming, layout), ()


def _component(file: File, part: str, layout: str | None, request: str) -> ModelMap:
    """Return the map of one component of a model; UsageError if it is not mapped, or has no file of its own."""
    naming = naming_of(file, part)
    if naming.error is not None:
        raise naming.error.within(file=file.name)
    text, present = naming_of(file), components(file)
    parts = parts_of(file, text, layers_behind(file, text))
    written = [each for each in parts if each != TEXT and each in present]
    is_known = naming.family is not None and (part in written or not present)  # the text layers may be unknown
    if not is_known:
        is_there = f"is not mapped in models of the type {naming.model_type!r}" if part in present else "is not there"
        hint = (
            f"These can be written: {', '.join(words(f'{{option:part={each}}}') for each in written)}."
            if written
            else "Without {option:part}, its text layers are written, and the report lists what they leave out."
        )
        raise UsageError(
            f"its {part} component {is_there}",
            file=file.name,
            code=ErrorCode.UNMAPPED,
            expected=" or ".join(written) or None,
            found=", ".join(present) or "a model of an unknown family",
            hint=hint,
        )
    if layout != GGUF or request == KEEP:
        raise UsageError(
            f"the {part} component of a model has a file of its own only in GGUF",
            file=file.name,
            code=ErrorCode.USAGE,
            expected="a target *.gguf",
            hint=f"For example {{option:part={part}}} with the target {FILES[part]}.",
        )
    return ModelMap(naming, layout)


def _passed_through(file: File, naming: Naming, layout: str) -> ModelMap:
    """Return the map of an unknown model to an engine's folder; UsageError if no family passes it through."""
    crosses = GGUF in (layout, naming.layout)
    family = None if crosses or naming.adapter else pass_through_family(file, naming, layout)
    if family is None:
        raise UsageError(
            f"{ENGINES[layout]} would not load what is written: {naming.reason}",
            file=file.name,
            code="family" if crosses and layout != UQFF else ErrorCode.ENGINE,
            hint=f"{hint}; or keep"
            if (hint := family_hint(file.registry).rstrip("."))
            else "Keep the names, for no engine: {option:rename=keep}.",
        )
    return ModelMap(evolve(naming, family=family), layout)


def check_complete(file: MappedFile) -> None:
    """Raise FormatError if a mapped model lacks a file that the target's engine requires."""
    if not file.carried.missing:
        return
    names = GGUF if file.layout == GGUF else HF
    raise FormatError(
        f"has no {file.carried.missing[0]}, so {ENGINES[file.layout]} would not load what is written",
        file=file.original.name,
        code="tokenizer",
        expected="tokenizer.json or tokenizer.model beside the model, or the tokenizer's keys in a GGUF",
        hint="Name a folder that has one: {option:assets=FOLDER}; or write it without one: "
        f"{{option:rename={names}}}.",
    )


def with_names(file: File, layout: str = HF) -> File:
    """Return a file under the names, rows and settings of a layout.

    Parameters
    ----------
    file
        An open file.
    layout
        "hf" (transformers) or "gguf" (llama.cpp).

    Returns
    -------
    File
        The same file if it already has these names.

    Raises
    ------
    FormatError
        The names have another layout, and the file declares no family that is installed.

    Examples
    --------
    >>> from squish_convert.api import with_names
    >>> file = squish.open("model.gguf")
    >>> with_names(file, "gguf") is file
    True
    """
    if isinstance(file, MappedFile) and file.layout == layout:
        return file
    naming = naming_of(file)
    if not naming.crosses(layout) and (layout == GGUF or _has_hf_names(file, naming)):
        return file
    if naming.family is None:
        raise _not_renamed(file, naming)
    return map_file(file, layout, {}, naming)


def _not_renamed(file: File, naming: Naming) -> FormatError:
    hint = family_hint(file.registry)
    return FormatError(
        f"cannot be renamed: {naming.reason}", file=file.name, code="names", hint=f"{hint}." if hint else None
    )


def _check_files(file: File, naming: Naming, layout: str) -> None:
    """Raise FormatError for a config or tokenizer that engines cannot read, unless the family checks it."""
    if naming.error is not None:
        raise naming.error.within(file=file.name)
    if GGUF in (layout, naming.layout):
        return
    is_whole = naming.family is not None and not naming.adapter and not missing_tensors(file, naming)
    if not is_whole:
        try:
            check_assets({name: bytes(buffer.raw) for name, buffer in file.assets.items()})
        except SquishError as error:
            raise error.within(file=file.name) from None


def _check_names(file: File, naming: Naming, layout: str) -> None:
    """Raise UsageError for names of other software, which the target's engine does not read."""
    if naming.layout == GGUF:
        return
    for name in file.index.tensors:
        if _OWN_LAYOUT.fullmatch(name):
            problem = "has the names of Mistral's and Meta's own software"
        elif naming.family is None and naming.model_type is not None and layout == HF and _STACKED.search(name):
            problem = f"has experts as mlx-lm stacks them, and {naming.reason}"
        else:
            continue
        raise UsageError(
            f"{problem}: {ENGINES[layout]} would not load what is written",
            file=file.name,
            tensor=name,
            code=ErrorCode.ENGINE,
            hint="Convert the checkpoint in Hugging Face's layout; or write the names as they are: "
            "{option:rename=keep}.",
        )


def _check_layers(file: File, naming: Naming, layout: str) -> None:
    """Raise UsageError for a GGUF of the layers behind the last one, which a folder has beside the others."""
    if naming.layout != GGUF or layout == GGUF or naming.family is None or naming.adapter:
        return
    is_whole = not family_of(file, naming).extras or any(name.startswith("blk.0.") for name in file)
    if not is_whole and [*components(file)] == [MTP]:
        raise UsageError(
            "has the layers behind the last one alone, which predict more tokens",
            file=file.name,
            code=ErrorCode.USAGE,
            expected="a GGUF with text layers",
            hint="Convert the GGUF of the text layers, and name this file: {option:part=mtp=FILE}.",
        )


def _check_part(file: File, naming: Naming, layout: str, absent: str) -> None:
    """Raise UsageError if other tensors replace those of the family, such as separate experts a stack."""
    foreign = foreign_tensors(file, naming)
    if foreign:
        raise UsageError(
            f"{ENGINES[layout]} would not load what is written: {absent} is missing, and {foreign[0]} is not a tensor "
            f"of the family {naming.family}",
            file=file.name,
            code=ErrorCode.ENGINE,
            hint="Convert it with its own software first; or keep the names, for no engine: {option:rename=keep}.",
        )


def _has_layout(file: File, naming: Naming, layout: str, options: Options) -> bool:
    """Return whether a file has the names and rows of a layout; those of MLX and UQFF are always written anew."""
    if naming.crosses(layout) or layout not in (HF, GGUF):
        return False
    return layout == GGUF or (_has_hf_names(file, naming) and not _turns(file, naming, options))


def _has_hf_names(file: File, naming: Naming) -> bool:
    """Return whether neither a tensor nor config.json is as only MLX or UQFF has it: stacks, turned convolutions."""
    if naming.family is None:
        return True
    shapes = [spec.shape for spec in file.index.tensors.values()]
    if any(len(shape) == 3 and shape[-1] == 1 != shape[1] for shape in shapes):
        return False
    family = family_of(file, naming)
    return not has_engine_names(family, file) and not family.is_for_mlx(model_of(file, family, naming.layout).config())


def _check_unmapped(file: File, naming: Naming, layout: str, options: Options, request: str) -> tuple[str, ...]:
    """Check a model of a known family that keeps its names; returns notes for the report."""
    if naming.family is None or naming.adapter or naming.crosses(layout):
        return ()
    if layout == GGUF and file.format == MEMORY:  # `save` of arrays and keys as the caller states them
        return ()
    if absent := missing_tensors(file, naming):
        return (f"not checked against {settings_place(layout)}: the model is incomplete: {absent[0]} is missing",)
    if layout == HF and not request and _has_engine_format(file):
        check_complete(map_file(file, layout, options, naming))
        return ()
    return _copy_notes(file, naming) if layout == GGUF else check_settings(file, naming, layout)


def _copy_notes(file: File, naming: Naming) -> tuple[str, ...]:
    """A note on what a GGUF contradicts when it is copied: nothing is mapped, and llama.cpp may still load it."""
    try:
        return check_settings(file, naming, GGUF)
    except (FormatError, TensorError) as error:
        if isinstance(error, TruncatedError) or error.code in BUGS:
            raise
        error.hint = None  # about conversions that map
        place = f"{error.where()}: " if error.where() else ""
        return (f"copied unchanged, but {ENGINES[GGUF]} may not load it: {place}{error.reason()}",)


def _has_engine_format(file: File) -> bool:
    """Return whether a file's format belongs to one engine, such as MLX or UQFF."""
    registry = file.registry
    container = registry.container(file.format) if file.format in registry.containers else None
    return isinstance(container, WritableContainer) and container.naming({}) not in (None, HF, GGUF)


def _turns(file: File, naming: Naming, options: Options) -> bool:
    """Return whether the file or the target stores codes of a tensor that Hugging Face transposes if dense."""
    if naming.family is None or not turning_rules(family := family_of(file, naming)):
        return False
    return stores_codes(file, family) or (bool(options) and map_file(file, HF, options, naming).carried.coded)


def _check_adapter(naming: Naming, layout: str, file: File) -> None:
    """Raise FormatError for an adapter with an unknown base model, and for a layout without adapters."""
    if naming.family is None and naming.model_type is None:
        raise FormatError(
            f"is an adapter of an unknown base model: {naming.reason}",
            file=file.name,
            code="adapter",
            expected="config.json of the base model",
            hint="Name the folder of the base model: {option:assets=FOLDER}.",
        )
    if layout not in (HF, GGUF):
        raise FormatError(
            f"is an adapter, which cannot be written for {ENGINES[layout]}",
            file=file.name,
            code="adapter",
            expected="gguf or hf",
            found=layout,
            hint="Keep the names with {option:rename=keep}.",
        )


def _unmapped_note(layout: str, reason: str) -> str:
    return f"names are unchanged, so {ENGINES[layout]} will not load this: {reason}"


def _with_family(naming: Naming, family: str, file: File) -> Naming:
    """Return the naming with the family that the user names; FormatError if the file declares another one."""
    if not family:
        return naming
    info = family_info(file.registry, family)
    legal = (info.architecture,) if naming.layout == GGUF else info.model_types
    if naming.model_type is not None and naming.model_type not in legal:
        raise FormatError(
            "the file declares another family",
            file=file.name,
            code="names",
            expected=family,
            found=repr(naming.model_type),
        )
    return evolve(naming, family=family, error=None)


def family_info(registry: Registry, family: str) -> FamilyInfo:
    """Return the declaration of a family; MissingPluginError names the package to install."""
    registry.implementation("family", family)
    return registry.families[family].info


def with_sources(rules: tuple[EncodeRule, ...], file: File) -> tuple[EncodeRule, ...]:
    """Return the rules; their patterns also match names of the source."""
    if file.original is file:
        return rules
    return tuple(rule if rule.pattern is None else evolve(rule, names=_matching_names(rule, file)) for rule in rules)


def _matching_names(rule: EncodeRule, file: File) -> frozenset[str]:
    """Return the mapped tensors that a rule applies to."""
    if rule.names is None:
        assert rule.pattern is not None
        return frozenset(_names_like(rule.pattern, file))
    return frozenset(name for name in file if not rule.names.isdisjoint(file.sources(name)))


def all_names(file: File) -> list[str]:
    """Return names that a pattern may match, including those of the original of a mapped file."""
    return list(dict.fromkeys((*file, *file.original)))


def select(file: File, patterns: tuple[str, ...]) -> list[TensorSpec]:
    """Return the tensors that a pattern matches by their own name or a source's; all of them without patterns."""
    names = {name for pattern in patterns for name in _names_like(pattern, file)}
    return [file.index.tensors[name] for name in file if name in names or not patterns]


def _names_like(pattern: str, file: File) -> Iterator[str]:
    for name in file:
        if any(fnmatchcase(candidate, pattern) for candidate in (name, *file.sources(name))):
            yield name


def stored_parts(file: File, step: Step) -> list[tuple[str, str, Part]]:
    """Name, role and part of all stored data of a step, with digests."""
    if file.original is file:
        return [(step.name, role, part) for role, part in step.origin.parts.items()]
    return [
        (name, role, part)
        for name in file.sources(step.name)
        for encoding in file.original.index.tensors[name].encodings
        if encoding.label == step.origin.label
        for role, part in encoding.parts.items()
    ]


def mapped_step(file: MappedFile, step: Step) -> Step:
    """Add the change by the map to a step, as a note and in its exactness."""
    file.check_form(step.name, step.spec)
    change = file.change(step.name)
    words = ", ".join(change.words)
    exactness = step.exactness
    if change.exactness is not None and exactness.kind != "bounded":
        exactness = change.exactness
    note = f"{step.note}; {words}" if step.note and words else step.note or words
    return evolve(step, note=note, exactness=exactness)


def check_dense(file: File, steps: Sequence[Step]) -> None:
    """Raise UsageError for codes of tensors that the target's engine reads only dense."""
    if not isinstance(file, MappedFile | PassThroughFile):
        return
    patterns = [re.compile(each) for each in file.carried.dense_only]
    for step in steps:
        is_coded = step.spec.encodings[0].codec.id != "dense"
        if is_coded and any(pattern.search(step.name) for pattern in patterns):
            of_experts = ".experts." in step.name
            rule = "*experts*=keep" if of_experts else f"*{'.'.join(step.name.split('.')[-2:])}=f32"
            raise UsageError(
                f"{ENGINES[file.layout]} {'stacks the experts' if of_experts else 'reads this tensor'} of "
                f"{file.naming.model_type} only as floats",
                file=file.name,
                tensor=step.name,
                code=ErrorCode.ENGINE,
                expected="f32, f16 or bf16",
                found=step.target,
                hint=f"Leave it as floats: {{option:encode={rule}}}; or keep the names: {{option:rename=keep}}.",
            )


def selection_notes(file: File, layout: str | None, selected: int) -> tuple[str, ...]:
    """Return a note for the report if an engine needs all tensors and only `selected` ones are written.

    Hugging Face's names get none: transformers loads a part and warns, and the graph of an ONNX file keeps the rest.
    """
    if layout in (None, HF) or selected == len(file):
        return ()
    return (f"{ENGINES[layout]} will lack {len(file) - selected} of {len(file)} tensors",)
