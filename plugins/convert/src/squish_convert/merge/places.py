"""Where a model stores the weights that an adapter adapts: in which tensor, in which rows, in which order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from attrs import evolve

from squish_core.codes import ErrorCode
from squish_core.errors import SquishError, TensorError
from squish_core.file import File
from squish_core.model import DENSE, TensorSpec
from squish_core.text import close_matches

from ..expressions import Expression, Join, Permute, Stack, Tile, Transpose, source_names
from ..families import GGUF, Family
from ..mapping.coverage import Coverage, Sizes, SourceTensor, is_dense, shape_of, sizes_at
from ..mapping.inventory import Outline, outline_of
from ..mapping.mapped import family_of, naming_of
from ..mapping.names import Numbers, fill, source_rules, target_rules
from ..mapping.row_views import RowViews
from ..mapping.tensors import dense, head_order, part_of
from .adapters import Pair

BEFORE = "Merge it into the model in Hugging Face's layout, then convert the result."


class Places:
    """The tensors of a model, by what an adapter calls them.

    Parameters
    ----------
    model
        An open model in any layout.

    Attributes
    ----------
    naming
        The family of the model, and the layout of its names.
    heads
        Heads that were tied to embeddings until one of the two was adapted -> the tensor of the embeddings.
    """

    def __init__(self, model: File) -> None:
        self.model, self.tensors = model, model.index.tensors
        self.naming = naming_of(model)
        self.heads: dict[str, str] = {}
        self._rows = RowViews(model)
        self._uncovered: SquishError | None = None

    def placed(self, pair: Pair, layout: str, *, fan_in_fan_out: bool = False) -> Iterator[tuple[str, Pair]]:
        """Yield the tensor of the model that a pair of an adapter adapts, and what is added to it.

        A pair of a stack of matrices gives several. TensorError if the model lacks the tensor, or has it in another
        shape. `fan_in_fan_out`: the model stores matrices as [in, out], if its family does not say so.
        """
        if layout == GGUF:
            spec = self._named(pair.target)
            self._untie(spec.name)
            for part in self._unstacked(pair, spec):
                yield spec.name, _fitting(part, spec.shape, spec)
            return
        if (origin := self._origin(pair.target)) is None:
            spec = self._named(pair.target)
            yield spec.name, _fitting(_turned(pair, fan_in_fan_out), spec.shape, spec)
            return
        matching = self._outline_of_family.matching
        family, spec = matching.family, self.tensors[origin.name]
        name = family.own_name(pair.target)
        self._untie(spec.name)
        if name in self._tied:
            yield self._head(name), _fitting(pair, spec.shape, spec)
            return
        leaf = next(leaf for leaf in source_names(origin.rule.of) if fill(leaf, origin.numbers) == name)
        sizes = sizes_at(matching.sizes, origin.numbers)
        pair = _fitting(_turned(pair, _is_transposed(family, leaf)), shape_of(leaf, matching.shapes, sizes), spec)
        lifted = self._lifted(origin.rule.of, name, origin.numbers, pair, sizes, spec)
        yield spec.name, _fitting(lifted, spec.shape, spec)

    @cached_property
    def _outline_of_family(self) -> Outline:
        return outline_of(
            self.model, family_of(self.model, self.naming), self.naming, self.naming.layout, loads_all=False
        )

    @cached_property
    def _coverage(self) -> Coverage | None:
        """The tensors of the family in the model; None if the family is unknown, or if it does not cover the model."""
        if self.naming.family is None or self.naming.adapter:
            return None
        try:
            matching = self._outline_of_family.matching
            if (error := next(matching.errors(), None)) is not None:
                raise error
        except SquishError as error:
            self._uncovered = error  # such as a part of a model, whose tensors may still have the adapter's names
            return None
        return matching.coverage()

    @cached_property
    def _tied(self) -> Mapping[str, str]:
        """Head of the family -> the embeddings to which it is tied."""
        if self._coverage is None:
            return {}
        outline = self._outline_of_family
        tied = {tensor.name: tensor.tied_to for tensor in outline.matching.family.tensors if tensor.tied_to is not None}
        return {head: tied[head] for head in outline.tied if tied[head] in self._coverage.origins}

    def _untie(self, name: str) -> None:
        """Note the head that is tied to a tensor that is adapted: it does not change with it."""
        for head, embeddings in self._tied.items():
            if self._coverage is not None and self._coverage.origins[embeddings].name == name:
                self.heads[self._head(head)] = name

    def _head(self, name: str) -> str:
        """Return what the layout of the model calls a head."""
        match = target_rules(self._outline_of_family.matching.family, self.naming.layout).find(name)
        return name if match is None else match[0].name

    def _origin(self, target: str) -> SourceTensor | None:
        """Return the tensor that contains one of the family; None if only names count."""
        if self._coverage is None:
            if self._uncovered is not None and target not in self.tensors:
                raise self._uncovered
            return None
        name = self._outline_of_family.matching.family.own_name(target)
        origin = self._coverage.origins.get(self._tied.get(name, name))
        if origin is None and target not in self.tensors:
            raise self._missing(target, self._coverage.origins)
        return origin  # without one, the model stores several tensors of the family under the adapter's name

    def _named(self, target: str) -> TensorSpec:
        """Return a tensor of the model by its own name."""
        if target not in self.tensors:
            raise self._missing(target, self.tensors)
        return self.tensors[target]

    def _missing(self, target: str, names: Iterable[str]) -> TensorError:
        family = None if self._coverage is None else self._outline_of_family.matching.family
        if family is not None and source_rules(family, gguf=False).find(family.own_name(target)) is not None:
            return TensorError(
                f"is adapted, and {self.model.name} stores its rows in several tensors, into which it is not merged",
                tensor=target,
                code="adapter",
                hint=BEFORE,
            )
        near = close_matches(target, names)
        return TensorError(
            f"is adapted, but {self.model.name} does not have it",
            tensor=target,
            code="adapter",
            expected=f"a tensor of the model, such as {near[0]}" if near else "a tensor of the model",
            hint="Give the model that the adapter was trained for.",
        )

    def _unstacked(self, pair: Pair, spec: TensorSpec) -> Iterator[Pair]:
        """Yield the pairs of the matrices in a stack; a single pair as it is."""
        if len(pair.left.shape) == 2:
            yield pair
            return
        if len(spec.shape) != 3 or spec.shape[0] != pair.left.shape[0]:
            raise _wrong_shape(pair, spec.shape, spec)
        for member in range(spec.shape[0]):
            left, right = (self._rows.member(matrix, member) for matrix in (pair.left, pair.right))
            yield evolve(pair, left=left, right=right, member=member)

    def _lifted(
        self, expression: Expression, name: str, numbers: Numbers, pair: Pair, sizes: Sizes, spec: TensorSpec
    ) -> Pair:
        """Return what an expression makes of the product that is added to one of its tensors."""
        if isinstance(expression, str):
            return pair
        if isinstance(expression, Join):
            parts = [part for part, _ in expression.of]
            number = part_of(parts, name, numbers)
            pair = self._lifted(parts[number], name, numbers, pair, sizes, spec)
            if pair.first is None and pair.member is None:
                return evolve(pair, first=sum(sizes[rows] for _, rows in expression.of[:number]))
        elif isinstance(expression, Stack | Transpose | Permute | Tile):
            pair = self._lifted(expression.of, name, numbers, pair, sizes, spec)
            if isinstance(expression, Stack):
                return evolve(pair, member=numbers["e"])
            if isinstance(expression, Transpose) and pair.first is None:
                return pair if expression.dense_only and not is_dense(spec) else pair.transposed
            if isinstance(expression, Permute | Tile) and pair.first is None and pair.member is None:
                return self._reordered(pair, expression, sizes)
        raise TensorError(
            f"is adapted, but {spec.name} stores it with others in a form into which no adapter is merged",
            tensor=name,
            code="adapter",
            found=type(expression).__name__.lower(),
            hint=BEFORE,
        )

    def _reordered(self, pair: Pair, change: Permute | Tile, sizes: Sizes) -> Pair:
        """Reorder the rows or columns of a product: those of one of its matrices."""
        columns = isinstance(change, Tile) and change.columns
        matrix, turned = (pair.right, pair.right_turned) if columns else (pair.left, pair.left_turned)
        own_columns = columns != turned  # the axis of the product is that of the columns of the stored matrix
        axis = TensorSpec(name=matrix.name, shape=(matrix.shape[-1 if own_columns else 0],), dtype=matrix.dtype)
        order = head_order(change, sizes, axis, inverse=False)
        if order.groups <= 1 or len(order.parts) <= 1:
            return pair
        moved = self._rows.reorder(matrix, order, own_columns)
        if moved.encodings[0].codec != DENSE:
            moved = dense(moved.name, self.model.bind(moved, moved.encodings[0]).read())
        return evolve(pair, right=moved) if columns else evolve(pair, left=moved)


def _turned(pair: Pair, transposed: bool) -> Pair:
    """Return the pair of a matrix that is stored as [in, out]; that of a table has this form already."""
    return pair.transposed if transposed and not pair.left_turned else pair


def _is_transposed(family: Family, leaf: str) -> bool:
    """Return whether Hugging Face stores a matrix as [in, out], as only GPT-2 and its kin do."""
    return any(
        isinstance(rule.of, Transpose) and rule.of.of == leaf and not rule.reading
        for rule in family.names.get(GGUF, ())
    )


def _fitting(pair: Pair, shape: tuple[int, ...], spec: TensorSpec) -> Pair:
    """Return the pair; TensorError unless it has the shape of a tensor, or of a part of its rows."""
    rows, columns = pair.shape
    own = shape[-2:] if len(shape) == (2 if pair.member is None else 3) else ()
    fits = len(own) == 2 and own[1] in (columns, -1) and (pair.first is not None or own[0] in (rows, -1))
    if not fits or (pair.first is not None and pair.first + rows > own[0]):
        raise _wrong_shape(pair, shape, spec)
    return pair


def _wrong_shape(pair: Pair, shape: tuple[int, ...], spec: TensorSpec) -> TensorError:
    return TensorError(
        f"is adapted in another shape than {spec.name} has",
        tensor=pair.target,
        code=ErrorCode.CONTRADICTION,
        expected=list(shape),
        found=f"matrices of {list(pair.left.shape)} and {list(pair.right.shape)}",
        hint="Give the model that the adapter was trained for.",
    )
