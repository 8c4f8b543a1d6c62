"""Experts as one tensor for each, or stacked in one, under Hugging Face's names; their codes stay the same.

Apart from `layer_pick`, because it maps the model by its family's rules.
"""

from __future__ import annotations

import copy

from attrs import evolve

from squish_core.codes import ErrorCode
from squish_core.errors import FormatError, UsageError
from squish_core.file import File

from .expressions import Expression, Join, Stack
from .families import GGUF, HF, Carried, Family
from .mapping.mapped import MappedFile, family_hint, family_of, naming_of
from .mapping.names import has_engine_names

STACK, UNSTACK = FORMS = ("stack", "unstack")


def with_experts(file: File, form: str) -> File:
    """Present a model with its experts stacked in one tensor, or with a tensor for each; no byte is copied.

    Parameters
    ----------
    file
        An open model of a known family, under Hugging Face's names.
    form
        "stack" (`experts.gate_up_proj`, as in modules of transformers 5) or "unstack" (`experts.0.up_proj.weight`).

    Returns
    -------
    File
        The same metadata and files; only experts have other names.

    Raises
    ------
    UsageError
        There is no such form.
    FormatError
        The model has no experts in the other form, or its engine does not read them in this one.

    Examples
    --------
    >>> with squish.open("model.gguf") as file:
    ...     with_experts(file, "stack")
    Traceback (most recent call last):
        ...
    squish_core.errors.FormatError: model.gguf: has its experts as llama.cpp reads them, in one form alone...
    """
    if form not in FORMS:
        raise UsageError("no such form of experts", expected=" or ".join(FORMS), found=repr(form), code=ErrorCode.USAGE)
    file = file.without_caches()
    naming = naming_of(file)
    if naming.layout == GGUF:
        raise FormatError(
            "has its experts as llama.cpp reads them, in one form alone",
            file=file.name,
            code=ErrorCode.ENGINE,
            hint="Convert it first: `squish convert FILE FOLDER --to hf`.",
        )
    if naming.family is None:
        raise FormatError(
            f"has experts of an unknown family: {naming.reason}",
            file=file.name,
            code=ErrorCode.UNMAPPED,
            hint=f"{hint}." if (hint := family_hint(file.registry)) else None,
        )
    family = family_of(file, naming)
    if has_engine_names(family, file):
        raise FormatError(
            "has its experts as mlx-lm or mistral.rs reads them, in one form alone",
            file=file.name,
            code=ErrorCode.ENGINE,
            hint="Convert it first: `squish convert FILE FOLDER --to hf`.",
        )
    family = _writing_stacks(family) if form == STACK else family
    assets = {name: bytes(buffer.raw) for name, buffer in file.assets.items()}
    carried = Carried(meta=file.index.meta, assets=assets)
    result = MappedFile(file, family, naming, HF, {}, carried=carried)
    pairs = ((target.rule.of, target.sources) for target in result.mapped.targets.values())
    if all(_is_stack(of) == _is_stack(result.coverage.sources[sources[0]].rule.of) for of, sources in pairs):
        raise FormatError(
            f"has no experts to {form}",
            file=file.name,
            code=ErrorCode.UNMAPPED,
            expected="one tensor for each expert, and an engine that reads a stack"
            if form == STACK
            else "stacked experts, and an engine that reads one tensor for each",
        )
    return result


def _writing_stacks(family: Family) -> Family:
    """Return a family that writes the stacks of experts that it otherwise only reads."""
    rules = [evolve(rule, reading=rule.reading and not _is_stack(rule.of)) for rule in family.names.get(HF, ())]
    changed = copy.copy(family)
    changed.names = {**family.names, HF: rules}
    return changed


def _is_stack(expression: Expression) -> bool:
    """Return whether an expression stacks matrices of experts as they are, or joined."""
    if not isinstance(expression, Stack):
        return False
    parts = [part for part, _ in expression.of.of] if isinstance(expression.of, Join) else [expression.of]
    return all(isinstance(part, str) for part in parts)
