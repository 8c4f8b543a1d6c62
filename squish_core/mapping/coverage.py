"""Which tensors of a family a model's tensors stand for: each once, all that are required, in their shapes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase

from attrs import frozen

from squish_core.errors import TensorError
from squish_core.families.base import Expression, Family, Join, Rule, Stack
from squish_core.mapping.names import fill, members, read_rules
from squish_core.model import TensorSpec
from squish_core.text import close_matches

Sizes = Mapping[str, int]
HINT = "Keep the names as they are with rename='keep'; the target's engine will then not load it."
CONTRADICTION = "The settings belong to another model, or one of both is damaged."


@frozen
class Origin:
    """The tensor of a source that holds tensors of the family: its name, the rule that covers it, the numbers."""

    source: str
    rule: Rule
    numbers: Mapping[str, int]


@frozen(kw_only=True)
class Coverage:
    """Where each tensor of the family lies (`origins`), and what each source tensor stands for (`sources`).

    `left_out` are tensors of other modalities, `unused` those that engines make anew or take another tensor for.
    """

    origins: Mapping[str, Origin]
    sources: Mapping[str, Origin]
    left_out: tuple[str, ...]
    unused: tuple[str, ...]


def cover(
    family: Family, tensors: Mapping[str, TensorSpec], gguf: bool, sizes: Sizes, tied: Collection[str] = ()
) -> Coverage:
    """Match every tensor of a source; TensorError for one that is unknown, doubled, missing or of another shape."""
    table, shapes = read_rules(family, gguf), {tensor.name: tensor.shape for tensor in family.tensors}
    origins: dict[str, Origin] = {}
    sources: dict[str, Origin] = {}
    left_out: list[str] = []
    unused: list[str] = []
    for name in tensors:
        short = bare(family, name)
        match = table.find(short)
        if match is None:
            if not _matches(name, (*family.constants, *family.leftovers, *family.beside)):
                raise _unknown(family, name, [rule.name for _, rule in table.values()])
            (left_out if _matches(name, family.beside) else unused).append(name)
            continue
        origin = Origin(name, *match)
        _check_numbers(origin, sizes)
        _check_shape(origin, tensors[name].shape, shape_of(origin.rule.of, shapes, sizes))
        pairs = members(origin.rule.of, origin.numbers, sizes["experts"])
        held = {member: Origin(name, origin.rule, numbers) for member, numbers in pairs if member not in tied}
        if doubled := next((member for member in held if member in origins), None):
            raise TensorError(
                "stands for a tensor that another one holds, too", tensor=name, code="doubled",
                expected="each tensor of the family once", found=f"{doubled} also in {origins[doubled].source}",
            )  # fmt: skip
        origins.update(held)
        if held:
            sources[name] = origin
        else:
            unused.append(name)
    _check_complete(family, origins, sizes, tied)
    return Coverage(origins=origins, sources=sources, left_out=tuple(left_out), unused=tuple(unused))


def bare(family: Family, name: str) -> str:
    """A name without the prefix that it has in a model of several modalities."""
    for prefix, replacement in family.prefixes.items():
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def shape_of(expression: Expression, shapes: Mapping[str, tuple[str, ...]], sizes: Sizes) -> tuple[int, ...]:
    """The shape of what an expression gives, by the sizes of the model."""
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
        f"is no tensor of the family {family.id}", tensor=name, code="unmapped",
        expected=f"such as {near}" if near else None, hint=HINT,
    )  # fmt: skip


def _check_numbers(origin: Origin, sizes: Sizes) -> None:
    for hole, size in (("n", "layers"), ("e", "experts")):
        if origin.numbers.get(hole, -1) >= sizes[size]:
            raise TensorError(
                "has a number that the settings do not allow", tensor=origin.source, code="contradiction",
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
                        f"is missing, and every model of the family {family.id} has it", tensor=name,
                        code="unmapped", found=f"{len(origins)} others", hint=HINT,
                    )  # fmt: skip
