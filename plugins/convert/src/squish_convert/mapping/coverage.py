"""Match the tensors of a model with those of its family: all required ones, each once, with the right shapes.

A tensor that the settings tie to another one must equal it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

from attrs import frozen

from squish_core.codecs.regions import panels
from squish_core.codes import ErrorCode
from squish_core.dtypes import FLOATS
from squish_core.errors import TensorError
from squish_core.file import File
from squish_core.model import DENSE, TensorSpec
from squish_core.text import close_matches

from ..families import ANY, Expression, Family, Interleave, Join, Reshape, Rule, Stack, Transpose, source_names
from .codecs.groups import Groups
from .codecs.transpose import swapped
from .names import Templates, fill, members, source_rules

Sizes = Mapping[str, int]
HINT = "Keep the names with {option:rename=keep}; the target's engine will then not load the file."
PROJECTORS = ("v.*", "mm.*", "a.*")
"""Tensors of other modalities in GGUF, which Ollama stores beside the text model's."""
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
    sizes: Sizes,
    tied: Collection[str] = (),
    absent: Collection[str] = (),
    left_out: Collection[str] = (),
) -> Coverage:
    """Match every tensor of a source; TensorError if one is unknown, duplicated, missing, or of the wrong shape or
    dtype."""
    left_out = (*left_out, *PROJECTORS) if gguf else left_out
    matching = Matching(family, tensors, source_rules(family, gguf), sizes, tied, absent, left_out)
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
    """

    def __init__(
        self,
        family: Family,
        tensors: Mapping[str, TensorSpec],
        rules: Templates[Rule],
        sizes: Sizes,
        tied: Collection[str],
        absent: Collection[str] = (),
        left_out: Collection[str] = (),
    ) -> None:
        self.family, self.tensors, self.rules, self.sizes, self.tied = family, tensors, rules, sizes, tied
        self.absent, self.left_out = absent, left_out
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
        places = {leaf: rule.name for _, rule in reversed(self.rules.values()) for leaf in source_names(rule.of)}
        yield from _missing(self.family, self.origins, self.sizes, {*self.tied, *self.absent}, places)

    def _match(self, name: str, extra: list[str] | None) -> TensorError | None:
        """Record the tensors that a source tensor contains, or return the error."""
        family, tensors = self.family, self.tensors
        if _matches(name, self.left_out):
            self.other_modalities.append(name)
            return None
        match = self.rules.find(family.own_name(name))
        if match is None:
            if not _matches(name, (*family.constants, *family.leftovers, *family.other_modalities)):
                if extra is not None:
                    extra.append(name)
                    return None
                return _unknown(family, name, [rule.name for _, rule in self.rules.values()])
            (self.other_modalities if _matches(name, family.other_modalities) else self.unused).append(name)
            return None
        origin = SourceTensor(name, *match)
        if error := _wrong_number(origin, self.sizes):
            return error
        spec = tensors[name]
        error = _wrong_shape(origin, spec.shape, shape_of(origin.rule.of, self.shapes, self.sizes, is_dense(spec)))
        pairs = members(origin.rule.of, origin.numbers, self.sizes["experts"])
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


def groups_of_sizes(interleave: Interleave, sizes: Sizes) -> Groups:
    """Return the groups of rows, from the sizes of the model."""
    return Groups(tuple(sizes[rows] for _, rows in interleave.of), interleave.axis, interleave.folded)


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


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _unknown(family: Family, name: str, templates: Iterable[str]) -> TensorError:
    near = ", ".join(close_matches(name, templates))
    return TensorError(
        f"is not a tensor of the family {family.id}",
        tensor=name,
        code=ErrorCode.UNMAPPED,
        expected=f"a name such as {near}" if near else None,
        hint=HINT,
    )


def _wrong_number(origin: SourceTensor, sizes: Sizes) -> TensorError | None:
    for hole, size in (("n", "layers"), ("e", "experts")):
        if origin.numbers.get(hole, -1) >= sizes[size]:
            return TensorError(
                "has a number outside the range in the settings",
                tensor=origin.name,
                code=ErrorCode.CONTRADICTION,
                expected=f"{size} 0 to {sizes[size] - 1}",
                found=origin.numbers[hole],
                hint=CONTRADICTION,
            )
    return None


def _wrong_shape(origin: SourceTensor, shape: tuple[int, ...], expected: tuple[int, ...]) -> TensorError | None:
    if len(shape) == len(expected) and all(allowed in (-1, size) for size, allowed in zip(shape, expected)):
        return None
    return TensorError(
        "has a shape that contradicts the settings",
        tensor=origin.name,
        code=ErrorCode.CONTRADICTION,
        expected=list(expected),
        found=list(shape),
        hint=CONTRADICTION,
    )


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
