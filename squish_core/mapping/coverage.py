"""Match the tensors of a model with those of its family: each once, all required ones, with the right shapes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase

from attrs import frozen

from squish_core.errors import TensorError
from squish_core.families.base import Expression, Family, Join, Rule, Stack
from squish_core.mapping.names import fill, members, source_rules
from squish_core.model import TensorSpec
from squish_core.text import close_matches

Sizes = Mapping[str, int]
HINT = "Keep the names with rename='keep'; the target's engine will then not load the file."
CONTRADICTION = "The settings belong to another model, or one of the two files is damaged."


@frozen
class Origin:
    """A source tensor that contains tensors of the family: its name, the rule that covers it, and its numbers."""

    source: str
    rule: Rule
    numbers: Mapping[str, int]


@frozen(kw_only=True)
class Coverage:
    """Origin of each family tensor (`origins`) and of each source tensor (`sources`), by name.

    `other_modalities` and `unused` are source tensors without a place: `unused` ones are computed by engines or tied
    to other tensors.
    """

    origins: Mapping[str, Origin]
    sources: Mapping[str, Origin]
    other_modalities: tuple[str, ...]
    unused: tuple[str, ...]


def cover(
    family: Family, tensors: Mapping[str, TensorSpec], gguf: bool, sizes: Sizes, tied: Collection[str] = ()
) -> Coverage:
    """Match every tensor of a source; TensorError if one is unknown, duplicated, missing or has the wrong shape."""
    table, shapes = source_rules(family, gguf), {tensor.name: tensor.shape for tensor in family.tensors}
    origins: dict[str, Origin] = {}
    sources: dict[str, Origin] = {}
    other_modalities: list[str] = []
    unused: list[str] = []
    for name in tensors:
        short = without_prefix(family, name)
        match = table.find(short)
        if match is None:
            if not _matches(name, (*family.constants, *family.leftovers, *family.beside)):
                raise _unknown(family, name, [rule.name for _, rule in table.values()])
            (other_modalities if _matches(name, family.beside) else unused).append(name)
            continue
        origin = Origin(name, *match)
        _check_numbers(origin, sizes)
        _check_shape(origin, tensors[name].shape, shape_of(origin.rule.of, shapes, sizes))
        pairs = members(origin.rule.of, origin.numbers, sizes["experts"])
        contents = {member: Origin(name, origin.rule, numbers) for member, numbers in pairs if member not in tied}
        if duplicate := next((member for member in contents if member in origins), None):
            raise TensorError(
                "contains a tensor that another one contains, too", tensor=name, code="doubled",
                expected="each tensor of the family once", found=f"{duplicate} also in {origins[duplicate].source}",
            )  # fmt: skip
        origins.update(contents)
        if contents:
            sources[name] = origin
        else:
            unused.append(name)
    _check_complete(family, origins, sizes, tied)
    return Coverage(
        origins=origins, sources=sources, other_modalities=tuple(other_modalities), unused=tuple(unused)
    )  # fmt: skip


def without_prefix(family: Family, name: str) -> str:
    """A name without the prefix of a multimodal model."""
    for prefix, replacement in family.prefixes.items():
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def shape_of(expression: Expression, shapes: Mapping[str, tuple[str, ...]], sizes: Sizes) -> tuple[int, ...]:
    """Shape of an expression, from the sizes of the model."""
    if isinstance(expression, str):
        return tuple(sizes[size] for size in shapes[expression])
    if isinstance(expression, Stack):
        return (sizes["experts"], *shape_of(expression.of, shapes, sizes))
    if isinstance(expression, Join):
        first, _ = expression.of[0]
        return (sum(sizes[rows] for _, rows in expression.of), *shape_of(first, shapes, sizes)[1:])
    return shape_of(expression.of, shapes, sizes)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _unknown(family: Family, name: str, templates: Iterable[str]) -> TensorError:
    near = ", ".join(close_matches(name, templates))
    return TensorError(
        f"is not a tensor of the family {family.id}", tensor=name, code="unmapped",
        expected=f"a name such as {near}" if near else None, hint=HINT,
    )  # fmt: skip


def _check_numbers(origin: Origin, sizes: Sizes) -> None:
    for hole, size in (("n", "layers"), ("e", "experts")):
        if origin.numbers.get(hole, -1) >= sizes[size]:
            raise TensorError(
                "has a number outside the range in the settings", tensor=origin.source, code="contradiction",
                expected=f"{size} 0 to {sizes[size] - 1}", found=origin.numbers[hole], hint=CONTRADICTION,
            )  # fmt: skip


def _check_shape(origin: Origin, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise TensorError(
            "has a shape that contradicts the settings", tensor=origin.source, code="contradiction",
            expected=list(expected), found=list(shape), hint=CONTRADICTION,
        )  # fmt: skip


def _check_complete(family: Family, origins: Collection[str], sizes: Sizes, tied: Collection[str]) -> None:
    for tensor in family.tensors:
        if not tensor.required:
            continue
        for layer in range(sizes["layers"] if "{n}" in tensor.name else 1):
            for expert in range(sizes["experts"] if "{e}" in tensor.name else 1):
                name = fill(tensor.name, {"n": layer, "e": expert})
                if name not in origins and name not in tied:
                    raise TensorError(
                        f"is missing; every model of the family {family.id} has it", tensor=name,
                        code="unmapped", found=f"{len(origins)} other tensors", hint=HINT,
                    )  # fmt: skip
