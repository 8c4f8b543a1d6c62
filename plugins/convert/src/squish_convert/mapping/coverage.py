"""Match the tensors of a model with those of its family: all required ones, each once, with the right shapes.

A tensor that the settings tie to another one must equal it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property

from attrs import evolve, frozen

from squish_core.codecs.regions import panels
from squish_core.codes import ErrorCode
from squish_core.dtypes import FLOATS
from squish_core.errors import TensorError
from squish_core.file import File
from squish_core.model import DENSE, TensorSpec
from squish_core.text import close_matches

from ..expressions import Cut, Expression, Interleave, Join, Pad, Reshape, Stack, Transpose, source_names
from ..families import ANY, Family, Rule
from .codecs.groups import Groups
from .codecs.transpose import swapped
from .names import Templates, fill, members, replaced, source_rules

Sizes = Mapping[str, int]
ModelSizes = Mapping[str, int | Sequence[int]]
"""Sizes of a model, of which some have a number for each layer (`Family.sizes`)."""
HINT = "Keep the names with {option:rename=keep}; the target's engine will then not load the file."
CONTRADICTION = "The settings belong to another model, or one of the two files is damaged."


@frozen
class SourceTensor:
    """A source tensor that contains tensors of the family: its name, the rule that covers it, and its numbers."""

    name: str
    rule: Rule
    numbers: Mapping[str, int]


@frozen(kw_only=True)
class Coverage:
    """The source tensors, by the names of the family tensors in them (`origins`) and by their own (`sources`).

    Nothing maps source tensors in `other_modalities` and `unused`; engines compute the unused ones, or tie them to
    others.
    """

    origins: Mapping[str, SourceTensor]
    sources: Mapping[str, SourceTensor]
    other_modalities: tuple[str, ...]
    unused: tuple[str, ...]


def cover(
    family: Family,
    tensors: Mapping[str, TensorSpec],
    gguf: bool,
    sizes: ModelSizes,
    tied: Collection[str] = (),
    absent: Collection[str] = (),
    left_out: Collection[str] = (),
    optional: Collection[str] = (),
    moved: Mapping[str, str] | None = None,
) -> Coverage:
    """Match every tensor of a source; TensorError for unknown, doubled and missing ones, wrong shapes and dtypes."""
    rules = source_rules(family, gguf)
    matching = Matching(family, tensors, rules, sizes, tied, absent, left_out, optional, moved)
    if error := next(matching.errors(), None):
        raise error
    coverage = matching.coverage()
    if error := next(_wrong_dtypes(family, tensors, coverage), None):
        raise error
    return coverage


class Matching:
    """Matches the tensors of a source with a family: iterate over `errors` once, then call `coverage`.

    Parameters
    ----------
    family, tensors
        The family, and the source's tensors by name.
    rules
        Template of a name -> the rule that covers it.
    sizes
        The sizes of the model (`Family.sizes`).
    tied
        Tensors that are tied to others.
    absent
        Tensors that only layers of another kind have (`Family.absent`).
    left_out
        Patterns of tensors that engines do not load (`Family.left_out`).
    optional
        Tensors that may be missing (`Family.optional`).
    moved
        Prefixes of names that depend on the settings (`Family.moved`); none in GGUF.
    """

    def __init__(
        self,
        family: Family,
        tensors: Mapping[str, TensorSpec],
        rules: Templates[Rule],
        sizes: ModelSizes,
        tied: Collection[str],
        absent: Collection[str] = (),
        left_out: Collection[str] = (),
        optional: Collection[str] = (),
        moved: Mapping[str, str] | None = None,
    ) -> None:
        self.family, self.tensors, self.rules, self.sizes, self.tied = family, tensors, rules, sizes, tied
        self.absent, self.left_out, self.optional, self.moved = absent, left_out, optional, moved or {}
        self.shapes = {tensor.name: tensor.shape for tensor in family.tensors}
        self.origins: dict[str, SourceTensor] = {}
        self.sources: dict[str, SourceTensor] = {}
        self.other_modalities: list[str] = []
        self.unused: list[str] = []

    def coverage(self) -> Coverage:
        """Return the matches; complete after the last of `errors`."""
        return Coverage(
            origins=self.origins,
            sources=self.sources,
            other_modalities=tuple(self.other_modalities),
            unused=tuple(self.unused),
        )

    def errors(self, extra: list[str] | None = None) -> Iterator[TensorError]:
        """Yield contradictions to the family: unknown, duplicate and missing tensors, and wrong shapes.

        With a list `extra`, unknown tensors are not errors: their names are added to it before missing ones are found.
        """
        for name in self.tensors:
            error = self._match(name, extra)
            if error is not None:
                yield error
        rules = [*self.rules.values(), *(each for others in self.rules.others.values() for each in others)]
        places = {leaf: rule.name for _, rule in reversed(rules) for leaf in source_names(rule.of)}
        unneeded = {*self.tied, *self.absent, *self.optional}
        back = {own: place for place, own in self.moved.items()}
        for error in _missing(self.family, self.origins, sizes_at(self.sizes, {}), unneeded, places):
            error.tensor = replaced(error.tensor or "", back)
            yield error

    def _fitting(self, origin: SourceTensor, spec: TensorSpec) -> list[int]:
        """The numbers of the forms of a tensor that its shape fits."""
        sizes = sizes_at(self.sizes, origin.numbers)
        shapes = [shape_of(each, self.shapes, sizes, is_dense(spec)) for each in forms(origin.rule.of)]
        return [number for number, shape in enumerate(shapes) if _wrong_shape(origin, spec.shape, shape) is None]

    @cached_property
    def _form(self) -> int | None:
        """The form of the tensors that a file may have in several, as the shapes of some of them say."""
        for name, spec in self.tensors.items():
            match = self.rules.find(replaced(self.family.own_name(name), self.moved))
            if match is not None and len(forms(match[0].of)) > 1:
                fitting = self._fitting(SourceTensor(name, *match), spec)
                if len(fitting) == 1:
                    return fitting[0]
        return None

    def _settled(self, origin: SourceTensor, spec: TensorSpec) -> tuple[SourceTensor, TensorError | None]:
        """Choose the form of a tensor that files have in several by its shape; an error if no shape says which."""
        expressions = forms(origin.rule.of)
        if len(expressions) == 1:
            return origin, None
        fitting = self._fitting(origin, spec)
        form = fitting[0] if len(fitting) == 1 else self._form if fitting else 0
        if form is not None:
            return evolve(origin, rule=evolve(origin.rule, of=expressions[form])), None
        return origin, TensorError(
            "may be transposed or not: its shape fits both",
            tensor=origin.name,
            code=ErrorCode.CONTRADICTION,
            found=list(spec.shape),
            hint=HINT,
        )

    def _is_present(self, rule: Rule, numbers: Mapping[str, int]) -> bool:
        """Whether the layer has the tensors of a rule."""
        experts = sizes_at(self.sizes, {})["experts"]
        return all(name not in self.absent for name, _ in members(rule.of, numbers, experts))

    def _match(self, name: str, extra: list[str] | None) -> TensorError | None:
        """Record the tensors that a source tensor contains, or return the error."""
        family, tensors = self.family, self.tensors
        if matches(name, self.left_out):
            self.other_modalities.append(name)
            return None
        match = self.rules.find(replaced(family.own_name(name), self.moved), self._is_present)
        if match is None:
            if not matches(name, (*family.constants, *family.leftovers, *family.other_modalities)):
                if extra is not None:
                    extra.append(name)
                    return None
                return _unknown(family, name, [rule.name for _, rule in self.rules.values()])
            (self.other_modalities if matches(name, family.other_modalities) else self.unused).append(name)
            return None
        origin, spec = SourceTensor(name, *match), tensors[name]
        if error := _wrong_number(origin, self.sizes):
            return error
        sizes = sizes_at(self.sizes, origin.numbers)
        origin, several = self._settled(origin, spec)
        if several is not None:
            return several
        error = _wrong_shape(origin, spec.shape, shape_of(origin.rule.of, self.shapes, sizes, is_dense(spec)))
        pairs = members(origin.rule.of, origin.numbers, sizes["experts"])
        contents = {
            member: SourceTensor(name, origin.rule, numbers) for member, numbers in pairs if member not in self.tied
        }
        if error is None and (duplicate := next((member for member in contents if member in self.origins), None)):
            return TensorError(
                "contains a tensor that another one also contains",
                tensor=name,
                code="doubled",
                expected="each tensor of the family once",
                found=f"{duplicate} also in {self.origins[duplicate].name}",
            )
        if error is None and (other := next((member for member in contents if member in self.absent), None)):
            return TensorError(
                "is in a layer of another kind",
                tensor=name,
                code=ErrorCode.CONTRADICTION,
                expected=f"no {other}",
                hint=CONTRADICTION,
            )
        self.origins.update(contents)
        if contents:
            self.sources[name] = origin
        else:
            self.unused.append(name)
        return error


def sizes_at(sizes: ModelSizes, numbers: Mapping[str, int]) -> Sizes:
    """Return the sizes in the layer of a tensor with these numbers; without a layer, only those of the whole model."""
    whole = {name: size for name, size in sizes.items() if isinstance(size, int)}
    if "n" not in numbers or len(whole) == len(sizes):
        return whole
    return whole | {name: size[numbers["n"]] for name, size in sizes.items() if not isinstance(size, int)}


def groups_of_sizes(interleave: Interleave, sizes: Sizes) -> Groups:
    """Return the groups of rows, from the sizes of the model."""
    return Groups(tuple(sizes[rows] for _, rows in interleave.of), interleave.axis, interleave.axes)


def forms(expression: Expression) -> tuple[Expression, ...]:
    """Return the expressions of a tensor that files have in several forms, told apart by its shape."""
    if isinstance(expression, Stack):
        return tuple(Stack(each) for each in forms(expression.of))
    if isinstance(expression, Transpose) and expression.by_shape:
        return expression.of, Transpose(expression.of)
    if isinstance(expression, Reshape) and expression.by_shape:
        return expression, expression.of
    return (expression,)


def turns_when_dense(expression: Expression) -> bool:
    """Return whether a layout transposes a tensor only where it is dense."""
    return isinstance(expression, Transpose) and expression.dense_only


def is_dense(spec: TensorSpec) -> bool:
    """Return whether a tensor's values are stored without a codec, in any order."""
    codec = spec.encodings[0].codec if spec.encodings else None
    while codec is not None and codec.inner is not None:
        codec = codec.inner
    return codec is not None and codec.id == DENSE.id


def shape_of(
    expression: Expression, shapes: Mapping[str, tuple[str, ...]], sizes: Sizes, dense: bool = True
) -> tuple[int, ...]:
    """Shape of an expression, from the sizes of the model; -1 for any size. `dense`: the tensor stores no codes."""
    if isinstance(expression, str):
        return _shape(shapes[expression], sizes)
    if isinstance(expression, Stack):
        return (sizes["experts"], *shape_of(expression.of, shapes, sizes, dense))
    if isinstance(expression, Reshape):
        return _shape(expression.shape, sizes)
    if isinstance(expression, Pad):
        rows, *others = shape_of(expression.of, shapes, sizes, dense)
        return (max(rows, sizes[expression.rows]), *others)
    if isinstance(expression, Cut):
        rows, *others = shape_of(expression.of, shapes, sizes, dense)
        return (max(rows - sizes[expression.rows], 0), *others)
    if isinstance(expression, Transpose):
        shape = shape_of(expression.of, shapes, sizes, dense)
        return swapped(shape) if dense or not expression.dense_only else shape
    if isinstance(expression, Interleave):
        piece, _ = expression.of[0]
        return groups_of_sizes(expression, sizes).whole(shape_of(piece, shapes, sizes, dense), 0)
    if isinstance(expression, Join):
        first, _ = expression.of[0]
        return (sum(sizes[rows] for _, rows in expression.of), *shape_of(first, shapes, sizes)[1:])
    return shape_of(expression.of, shapes, sizes)


def _shape(names: Iterable[str], sizes: Sizes) -> tuple[int, ...]:
    return tuple(-1 if name == ANY else sizes[name] for name in names)


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name fits any of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def is_included(name: str, origin: SourceTensor, only: Collection[str]) -> bool:
    """Return whether a family's tensor is in one of some layers, or outside of all; `only` empty: all are."""
    return not only or "n" not in origin.numbers or matches(name, only)


def _unknown(family: Family, name: str, templates: Iterable[str]) -> TensorError:
    near = ", ".join(close_matches(name, templates))
    return TensorError(
        f"is not a tensor of the family {family.id}",
        tensor=name,
        code=ErrorCode.UNMAPPED,
        expected=f"a name such as {near}" if near else None,
        hint=HINT,
    )


def _wrong_number(origin: SourceTensor, model_sizes: ModelSizes) -> TensorError | None:
    sizes = sizes_at(model_sizes, {})
    for hole, size in (("n", "layers"), ("e", "experts")):
        if hole in origin.numbers and origin.numbers[hole] >= sizes[size]:
            return TensorError(
                "has a number outside the range in the settings",
                tensor=origin.name,
                code=ErrorCode.CONTRADICTION,
                expected=f"{size} 0 to {sizes[size] - 1}" if sizes[size] > 0 else f"no {size}",
                found=origin.numbers[hole],
                hint=CONTRADICTION,
            )
    return None


def _wrong_shape(origin: SourceTensor, shape: tuple[int, ...], expected: tuple[int, ...]) -> TensorError | None:
    if len(shape) == len(expected) and all(allowed in (-1, size) for size, allowed in zip(shape, expected)):
        return None
    is_turned = len(shape) == len(expected) and _without_ones(shape) == _without_ones(expected)
    if isinstance(origin.rule.of, str) and is_turned:  # mlx-lm stores convolutions with the axis of 1 last
        return None
    return TensorError(
        "has a shape that contradicts the settings",
        tensor=origin.name,
        code=ErrorCode.CONTRADICTION,
        expected=list(expected),
        found=list(shape),
        hint=CONTRADICTION,
    )


def _without_ones(shape: tuple[int, ...]) -> list[int]:
    return [size for size in shape if size != 1]


def _wrong_dtypes(family: Family, tensors: Mapping[str, TensorSpec], coverage: Coverage) -> Iterator[TensorError]:
    """One error for each tensor that stores integers or complex numbers where the family has floats, or floats where
    it has integers. Codes are integers with a codec, which gives floats."""
    integers = {tensor.name for tensor in family.tensors if tensor.integers}
    for name, origin in coverage.sources.items():
        spec, has_integers = tensors[name], not integers.isdisjoint(source_names(origin.rule.of))
        fits = spec.dtype.startswith(("i", "u")) if has_integers else spec.dtype in FLOATS
        if is_dense(spec) and not fits:
            yield TensorError(
                f"stores {spec.dtype} values, and no codes of a known quantization",
                tensor=name,
                code="dtype",
                expected="integers" if has_integers else "floats",
                found=spec.dtype,
                hint="The file is damaged, or it is quantized in a way that its config.json does not declare.",
            )


def _missing(
    family: Family, origins: Collection[str], sizes: Sizes, absent: Collection[str], places: Mapping[str, str]
) -> Iterator[TensorError]:
    """One error for each missing tensor, under the name that the source would use."""
    named = set()
    for tensor in family.tensors:
        if not tensor.required:
            continue
        for layer in range(sizes["layers"] if "{n}" in tensor.name else 1):
            for expert in range(sizes["experts"] if "{e}" in tensor.name else 1):
                numbers = {"n": layer, "e": expert}
                name = fill(tensor.name, numbers)
                place = fill(places.get(tensor.name, tensor.name), numbers)
                if name not in origins and name not in absent and place not in named:
                    named.add(place)
                    yield TensorError(
                        f"is missing; every model of the family {family.id} has it",
                        tensor=place,
                        code=ErrorCode.UNMAPPED,
                        found=f"{len(origins)} other tensors",
                        hint=HINT,
                    )


def check_ties(file: File, family: Family, coverage: Coverage, tied: Collection[str], *, sample: bool = False) -> None:
    """Raise TensorError if a tied tensor differs from the one that replaces it.

    `sample`: compare only the first rows, and only of dense tensors. Remote files are always sampled.
    """
    partners = {tensor.name: tensor.tied_to for tensor in family.tensors if tensor.name in tied}
    for name in coverage.unused:
        partner = partners.get(family.own_name(name))
        origin = coverage.origins.get(partner) if partner is not None else None
        if origin is None:
            continue
        own, other = file.index.tensors[name], file.index.tensors[origin.name]
        if sample and not (is_dense(own) and is_dense(other)):
            continue
        if not _equal(file, own, other, sample or file.source.is_remote):
            raise TensorError(
                f"differs from {origin.name}, to which the settings tie it",
                tensor=name,
                code=ErrorCode.CONTRADICTION,
                hint="Set tie_word_embeddings to false in config.json to keep both.",
            )


def _equal(file: File, own: TensorSpec, other: TensorSpec, sample: bool) -> bool:
    import numpy as np

    if own.encodings[0].parts == other.encodings[0].parts:
        return True
    one, two = (file.bind(spec, spec.encodings[0]) for spec in (own, other))
    for region in panels(own.shape, (1,) * len(own.shape), 4):
        if not np.array_equal(one.read(region), two.read(region)):
            return False
        if sample:
            break
    return True
