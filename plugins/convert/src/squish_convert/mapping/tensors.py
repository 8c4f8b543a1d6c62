"""The tensors of a model in another layout, as views built on access, with added constants and lossless casts."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import evolve, field, frozen

from squish_core import dtypes
from squish_core.codecs.regions import full, panels
from squish_core.codes import ErrorCode
from squish_core.errors import TensorError
from squish_core.file import File
from squish_core.guard import quietly
from squish_core.model import DENSE, CodecSpec, Encoding, Exactness, Part, TensorSpec, check_declared

from ..expressions import (
    Add,
    Cut,
    Expression,
    Int32,
    Interleave,
    Join,
    NegExp,
    Pad,
    Permute,
    Reshape,
    Scale,
    Stack,
    Tile,
    Transpose,
    source_names,
)
from ..families import GGUF, Family, Rule
from .codecs.heads import Order
from .coverage import (
    HINT,
    Coverage,
    ModelSizes,
    Sizes,
    SourceTensor,
    groups_of_sizes,
    is_dense,
    is_included,
    matches,
    shape_of,
    sizes_at,
    turns_when_dense,
)
from .names import Numbers, fill, members, replaced, target_rules
from .row_views import RowViews, deinterleave, interleave, scale, transpose

if TYPE_CHECKING:
    import numpy as np


CACHED = 1 << 24
"""Maximum bytes of cached specs: a permuted tensor may have a segment per row, others may be in memory."""
SEGMENT = 64
"""Approximate size of a segment."""


@frozen(kw_only=True)
class TargetTensor:
    """A tensor of the target: its rule, the numbers in its name, and the source tensors that it is built from."""

    rule: Rule
    numbers: Mapping[str, int]
    sources: tuple[str, ...] = ()


@frozen(kw_only=True)
class Change:
    """A change to a tensor apart from its name. `exactness` is None unless values change."""

    words: tuple[str, ...] = ()
    exactness: Exactness | None = None


@frozen(kw_only=True)
class Setting:
    """What the rules of a layout depend on, apart from the file.

    `sizes` and `factors` are the model's. `vectors`: dtype of its dense vectors in Hugging Face's layout, or None for
    the source's.
    `constants`: tensors computed from the settings. `rows`, `coded`, `left_out`: as in `Carried`.
    `only`: patterns of the layers to write, if not all are written.
    `moved`: prefixes of the family's names -> those that the layout has instead.
    """

    layout: str
    sizes: ModelSizes
    factors: Mapping[str, Sequence[tuple[int, float]]] = field(factory=dict)
    vectors: str | None = None
    constants: Mapping[str, np.ndarray] = field(factory=dict)
    rows: Mapping[str, np.ndarray] = field(factory=dict)
    coded: bool = False
    left_out: tuple[str, ...] = ()
    only: Collection[str] = ()
    moved: Mapping[str, str] = field(factory=dict)

    @property
    def experts(self) -> int:
        """The number of experts."""
        return sizes_at(self.sizes, {})["experts"]


class MappedTensors(Mapping[str, TensorSpec]):
    """Specs in another layout over the bytes of a file.

    Parameters
    ----------
    file
        The source.
    family
        The model family, with the rules.
    coverage
        The source tensors matched with the family's.
    setting
        The target layout, and what its rules depend on.

    Attributes
    ----------
    dtypes
        Dtype that the target expects of a dense tensor, for the specs accessed so far.
    changes
        Change to a tensor apart from its name, for the specs accessed so far.
    """

    def __init__(self, file: File, family: Family, coverage: Coverage, setting: Setting) -> None:
        self.file, self.family, self.coverage, self.setting = file, family, coverage, setting
        self.rows = RowViews(file)
        self.targets = _targets(family, coverage, setting)
        self.dtypes: dict[str, str] = {}
        self.changes: dict[str, Change] = {}
        self._specs: dict[str, TensorSpec] = {}
        self._cached = 0

    def __iter__(self) -> Iterator[str]:
        return iter(self.targets)

    def __len__(self) -> int:
        return len(self.targets)

    def __contains__(self, name: object) -> bool:
        return name in self.targets

    def __getitem__(self, name: str) -> TensorSpec:
        spec = self._specs.get(name)
        if spec is None:
            spec = self._spec(name, self.targets[name])
            size = _size(spec)
            if self._cached + size > CACHED:
                self._specs.clear()
                self._cached = 0
            self._specs[name] = spec
            self._cached += size
        return spec

    def _spec(self, name: str, target: TargetTensor) -> TensorSpec:
        if name in self.setting.constants:
            spec = dense(name, self.setting.constants[name])
            if self.setting.vectors is not None and self.setting.layout != GGUF:
                self.dtypes[name] = self.setting.vectors
            return spec
        origin = self.coverage.sources[target.sources[0]]
        if len(target.sources) == 1 and (origin.rule.of, origin.numbers) == (target.rule.of, target.numbers):
            spec, change = self._oriented(self.file.index.tensors[origin.name], target.rule.of)
            spec = self.in_shape(spec, target.rule.of, sizes_at(self.setting.sizes, target.numbers))
        else:
            spec, change = _Builder(self, target.numbers).make(target.rule.of, target.numbers)
        spec = evolve(spec, name=name, tied_to=None, row_names=None)
        if name not in self.changes:  # the first access: finding the dtype may read all values
            self._note_dtype(spec, target, origin)
        self.changes[name] = change
        return spec

    def _oriented(self, spec: TensorSpec, expression: Expression) -> tuple[TensorSpec, Change]:
        """Return a tensor under the same rule in both layouts; transposed if only one of them stores codes."""
        if not turns_when_dense(expression) or is_dense(spec) != self.setting.coded:
            return spec, Change()
        return transpose(spec), Change(words=("transposed",))

    def in_shape(self, spec: TensorSpec, expression: Expression, sizes: Sizes) -> TensorSpec:
        """Return a tensor of the family with its axes of 1 where the family has them."""
        if not isinstance(expression, str) or 1 not in spec.shape:
            return spec
        shapes = {tensor.name: tensor.shape for tensor in self.family.tensors}
        shape = shape_of(expression, shapes, sizes)
        return spec if shape == spec.shape or -1 in shape else self.rows.reshape(spec, shape)

    def check_form(self, name: str, stored: TensorSpec) -> None:
        """Raise TensorError if a tensor has the rows of codes but is dense, or the reverse."""
        if turns_when_dense(self.targets[name].rule.of) and is_dense(stored) == self.setting.coded:
            raise TensorError(
                "has the wrong orientation: only dense tensors of this kind are transposed",
                tensor=name,
                code="rows",
                expected="codes" if self.setting.coded else "floats",
                found=str(stored.encodings[0].codec),
                hint="Encode all such tensors alike: as codes with the target's method for them, or as floats without.",
            )

    def _note_dtype(self, spec: TensorSpec, target: TargetTensor, origin: SourceTensor) -> None:
        """Note the dtype that the target expects, if it can represent every value."""
        dtype = target.rule.dtype
        if dtype is None and origin.rule.dtype is not None and self.setting.layout != GGUF:
            narrow = self.setting.vectors
            dtype = narrow if narrow and narrow != spec.dtype and fits(self.file, spec, narrow) else None
        if dtype is not None:
            self.dtypes[spec.name] = dtype


def _size(spec: TensorSpec) -> int:
    parts = [part for encoding in spec.encodings for part in encoding.parts.values()]
    return sum(SEGMENT * len(part.segments) if part.data is None else memoryview(part.data).nbytes for part in parts)


class _Builder:
    """Builds one spec and records the changes."""

    def __init__(self, tensors: MappedTensors, numbers: Numbers) -> None:
        self.tensors, self.rows = tensors, tensors.rows
        self.sizes = sizes_at(tensors.setting.sizes, numbers)
        self.words: dict[str, None] = {}
        self.exactness: Exactness | None = None

    def make(self, expression: Expression, numbers: Mapping[str, int]) -> tuple[TensorSpec, Change]:
        """Evaluate an expression on the tensors of the family."""
        spec = self._forward(expression, numbers)
        return spec, Change(words=tuple(self.words), exactness=self.exactness)

    def _forward(self, expression: Expression, numbers: Numbers) -> TensorSpec:
        if isinstance(expression, str):
            return self._family_tensor(fill(expression, numbers))
        if isinstance(expression, Stack):
            experts = range(self.sizes["experts"])
            self.words["experts stacked"] = None
            return self.rows.stack([self._forward(expression.of, {**numbers, "e": number}) for number in experts])
        if isinstance(expression, Join):
            self.words["matrices fused"] = None
            return self.rows.concatenate([self._forward(part, numbers) for part, _ in expression.of])
        if isinstance(expression, Interleave):
            self.words["rows interleaved" if expression.axes else "slices joined"] = None
            pieces = [self._forward(piece, numbers) for piece, _ in expression.of]
            return interleave(pieces, groups_of_sizes(expression, self.sizes), self.tensors.file.registry)
        spec = self._forward(expression.of, numbers)
        if isinstance(expression, Transpose):
            return spec if expression.dense_only and self.tensors.setting.coded else self._transpose(spec)
        if isinstance(expression, Reshape):
            return self._reshape(spec, expression)
        if isinstance(expression, Int32):
            return self._integers(spec, "i32")
        if isinstance(expression, Pad):
            return self._padded(spec, self.sizes[expression.rows] - spec.shape[0])
        if isinstance(expression, Cut):
            self.words["first rows cut"] = None
            return self.rows.rows(spec, self.sizes[expression.rows], spec.shape[0])
        return self._changed(spec, expression, False)

    def _family_tensor(self, name: str) -> TensorSpec:
        """Extract a tensor of the family from the source tensor that contains it."""
        origin = self.tensors.coverage.origins[name]
        spec = self.tensors.file.index.tensors[origin.name]
        check_declared(spec)
        if not spec.encodings:
            raise TensorError(spec.problem or "has no readable encoding", tensor=origin.name, code=ErrorCode.UNREADABLE)
        return self._backward(origin.rule.of, spec, name, origin.numbers)

    def _backward(self, expression: Expression, spec: TensorSpec, name: str, numbers: Numbers) -> TensorSpec:
        """Invert an expression: extract one of its tensors from the result."""
        if isinstance(expression, str):
            return self.tensors.in_shape(spec, expression, self.sizes)
        if isinstance(expression, Stack):
            self.words["experts split"] = None
            return self._backward(expression.of, self.rows.member(spec, numbers["e"]), name, numbers)
        if isinstance(expression, Join):
            self.words["fused matrices split"] = None
            sizes = [self.sizes[rows] for _, rows in expression.of]
            parts = [part for part, _ in expression.of]
            number = part_of(parts, name, numbers)
            start = sum(sizes[:number])
            return self._backward(parts[number], self.rows.rows(spec, start, start + sizes[number]), name, numbers)
        if isinstance(expression, Interleave):
            self.words["interleaved rows separated" if expression.axes else "slices separated"] = None
            groups, pieces = groups_of_sizes(expression, self.sizes), [piece for piece, _ in expression.of]
            number = part_of(pieces, name, numbers)
            return self._backward(pieces[number], deinterleave(spec, groups, number), name, numbers)
        if isinstance(expression, Transpose):
            spec = spec if expression.dense_only and not is_dense(spec) else self._transpose(spec)
        elif isinstance(expression, Reshape):
            spec = self._reshape(spec, expression.of)
        elif isinstance(expression, Int32):
            spec = self._integers(spec, "i64")
        elif isinstance(expression, Pad):
            spec = self._unpadded(spec, self._shape(expression.of)[0])
        elif isinstance(expression, Cut):
            spec = self._restored(spec, expression.rows)
        else:
            spec = self._changed(spec, expression, True)
        return self._backward(expression.of, spec, name, numbers)

    def _changed(self, spec: TensorSpec, change: Permute | Tile | Add | NegExp | Scale, inverse: bool) -> TensorSpec:
        """Apply an operation that keeps the shape, or its inverse."""
        if isinstance(change, Permute | Tile):
            return self._reorder(spec, change, inverse)
        if isinstance(change, Scale):
            runs = self.tensors.setting.factors[change.factor]
            scaled = scale(spec, [(rows, 1 / factor if inverse else factor) for rows, factor in runs])
            self.words |= {} if scaled is spec else {"rows multiplied in f32": None}
            return scaled
        if isinstance(change, Add):
            constant = -change.constant if inverse else change.constant
            self.words[f"{constant:+g} in f32"] = None
            do, undo = adding(constant), adding(-constant)
        else:
            do, undo = (log_of_negative, negative_exp) if inverse else (negative_exp, log_of_negative)
            self.words["logarithm in f32" if inverse else "negative exponential in f32"] = None
        narrow = self.tensors.setting.vectors if inverse else None
        spec, self.exactness = change_values(self.tensors.file, spec, do, undo, narrow)
        return spec

    def _integers(self, spec: TensorSpec, dtype: str) -> TensorSpec:
        """Give whole numbers another width."""
        if spec.dtype == dtype:
            return spec
        self.words[f"integers in {dtypes.bits(dtype)} bits"] = None
        values = _read_integers(self.tensors.file, spec, dtype)
        self.exactness = Exactness("values", dtype)
        return evolve(dense(spec.name, values, dtype), attrs=spec.attrs)

    def _reorder(self, spec: TensorSpec, change: Permute | Tile, inverse: bool) -> TensorSpec:
        columns = isinstance(change, Tile) and change.columns
        order = head_order(change, self.sizes, spec, inverse)
        word = "rows reordered within heads"
        if isinstance(change, Tile):
            word = f"{'columns' if columns else 'rows'} of groups of heads {'grouped' if order.inverse else 'tiled'}"
        if order.groups <= 1 or len(order.parts) <= 1:
            return spec
        self.words[word] = None
        return self.rows.reorder(spec, order, columns)

    def _reshape(self, spec: TensorSpec, target: Expression) -> TensorSpec:
        """Give a tensor the shape of an expression."""
        return self.rows.reshape(spec, self._shape(target))

    def _shape(self, expression: Expression) -> tuple[int, ...]:
        shapes = {tensor.name: tensor.shape for tensor in self.tensors.family.tensors}
        return shape_of(expression, shapes, self.sizes)

    def _padded(self, spec: TensorSpec, count: int) -> TensorSpec:
        if count <= 0:
            return spec
        self.words["first row repeated"] = None
        return self.rows.concatenate([spec, *[self.rows.rows(spec, 0, 1)] * count])

    def _unpadded(self, spec: TensorSpec, rows: int) -> TensorSpec:
        if rows >= spec.shape[0]:
            return spec
        self.words["repeated rows cut"] = None
        return self.rows.rows(spec, 0, rows)

    def _restored(self, spec: TensorSpec, name: str) -> TensorSpec:
        """Put the rows that were cut before the others."""
        import numpy as np

        shape = (self.sizes[name], *spec.shape[1:])
        stored = self.tensors.setting.rows.get(name)
        self.words["rows of zeros first" if stored is None else "first rows put back"] = None
        first = np.zeros(shape, np.float32) if stored is None else stored
        return dense(spec.name, np.concatenate([first, _read_floats(self.tensors.file, spec, MOST_VALUES)]), spec.dtype)

    def _transpose(self, spec: TensorSpec) -> TensorSpec:
        self.words["transposed"] = None
        return transpose(spec)


def head_order(change: Permute | Tile, sizes: Mapping[str, int], spec: TensorSpec, inverse: bool) -> Order:
    """The order of a tensor's rows or columns; TensorError if they cannot be divided into heads."""
    columns = isinstance(change, Tile) and change.columns
    size = (spec.shape or (0,))[-1 if columns else 0]
    if isinstance(change, Permute):
        heads = sizes[change.heads]
        order = Order(heads, size // (2 * heads) if heads else 0, (1, 1), not inverse)
    else:
        order = tile_order(change, sizes, size, inverse != change.inverse)
    if order.rows != size or order.heads < 1:
        raise TensorError(
            f"has {'columns' if columns else 'rows'} that cannot be divided into heads",
            tensor=spec.name,
            code="heads",
            expected=f"a multiple of {2 * order.heads}"
            if isinstance(change, Permute)
            else f"{order.groups} equal groups beyond the first {order.first}",
            found=f"shape {list(spec.shape)}",
        )
    return order


def tile_order(tile: Tile, sizes: Mapping[str, int], size: int, inverse: bool) -> Order:
    """The order of a `Tile` along an axis of a size."""
    groups, first = sizes[tile.groups], sizes[tile.after] if tile.after else 0
    if isinstance(tile.parts, str):
        heads = sizes[tile.parts]
        each = max(size - first, 0) // heads if heads else 0
        parts = (each,) * (heads // groups if groups and heads % groups == 0 else 0)
    else:
        parts = tuple(sizes[part] for part in tile.parts)
    return Order(sizes[tile.heads] if tile.heads else 1, groups, parts, inverse, first)


def part_of(parts: Sequence[Expression], name: str, numbers: Numbers) -> int:
    """Return the number of the expression that contains a tensor."""
    return next(n for n, part in enumerate(parts) if name in (fill(leaf, numbers) for leaf in source_names(part)))


def wraps_dense(codec: CodecSpec) -> bool:
    """Return whether a mapping codec (transpose, interleave, stack) wraps a dense tensor."""
    while codec.inner is not None:
        codec = codec.inner
        if codec == DENSE:
            return True
    return False


def _targets(family: Family, coverage: Coverage, setting: Setting) -> dict[str, TargetTensor]:
    """Return the target's tensors in source order."""
    table = target_rules(family, setting.layout)
    targets: dict[str, TargetTensor] = {}
    experts = setting.experts
    for name, origin in coverage.origins.items():
        if matches(name, setting.left_out) or not is_included(name, origin, setting.only):
            continue
        match = table.find(name)
        if match is None:
            raise TensorError(f"has no name in the layout {setting.layout}", tensor=name, code=ErrorCode.UNMAPPED)
        rule, numbers = match
        own = {hole: number for hole, number in numbers.items() if f"{{{hole}}}" in rule.name}
        target = replaced(fill(rule.name, own), setting.moved)
        if target not in targets:
            sources: dict[str, None] = {}
            for member, _ in members(rule.of, own, experts):
                if member not in coverage.origins:
                    raise TensorError(
                        f"is missing, but {target} is built from it", tensor=member, code=ErrorCode.UNMAPPED
                    )
                sources[coverage.origins[member].name] = None
            targets[target] = TargetTensor(rule=rule, numbers=own, sources=tuple(sources))
    for name in setting.constants:
        targets[name] = TargetTensor(rule=Rule(name, name), numbers={})
    return targets


MAX_SIZE = 1 << 20
"""Largest vector that is computed in memory."""
MOST_VALUES = 1 << 24
"""Largest table that is rewritten in memory."""


def dense(name: str, values: np.ndarray, dtype: str = "f32") -> TensorSpec:
    """Return a dense tensor with its bytes in memory."""
    data = quietly(dtypes.cast, values, dtype).tobytes()
    part = Part(dtype=dtype, shape=values.shape, data=data)
    return TensorSpec(
        name=name, shape=values.shape, dtype=dtype, encodings=(Encoding(codec=DENSE, parts={"data": part}),)
    )


def read_vector(file: File, spec: TensorSpec) -> np.ndarray:
    """Read a dense float vector, or a small matrix, as f32; TensorError for any other tensor."""
    return _read_floats(file, spec, MAX_SIZE)


def _read_floats(file: File, spec: TensorSpec, most: int) -> np.ndarray:
    """Read a dense tensor of at most so many floats as f32; TensorError for any other tensor."""
    import numpy as np

    encoding = spec.encodings[0] if spec.encodings else None
    floats = spec.dtype in dtypes.FLOATS and dtypes.bits(spec.dtype) >= 8
    if encoding is None or encoding.codec != DENSE or not floats or len(spec.shape) > 4 or spec.elements > most:
        codec = spec.problem or str(encoding.codec if encoding else "unreadable")
        raise TensorError(
            "must be a dense vector of floats, since its values change",
            tensor=spec.name,
            code="values",
            expected=f"a vector of at most {most} floats",
            found=f"{codec}, {spec.dtype} {list(spec.shape)}",
        )
    with np.errstate(all="ignore"):
        return file.bind(spec, encoding).read(full(spec.shape)).astype(np.float32)


def _read_integers(file: File, spec: TensorSpec, dtype: str) -> np.ndarray:
    """Read a dense tensor of whole numbers that a dtype represents; TensorError for any other tensor."""
    import numpy as np

    encoding = spec.encodings[0] if spec.encodings else None
    is_whole = spec.dtype in ("i32", "i64", "u32") and spec.elements <= MOST_VALUES
    if encoding is None or encoding.codec != DENSE or not is_whole:
        raise TensorError(
            "must be a table of whole numbers",
            tensor=spec.name,
            code="values",
            expected=f"at most {MOST_VALUES} values of i64 or i32",
            found=f"{spec.dtype} {list(spec.shape)}",
        )
    values = file.bind(spec, encoding).read(full(spec.shape))
    limits = np.iinfo(dtypes.to_numpy(dtype))
    outside = values[(values < limits.min) | (values > limits.max)]
    if outside.size:
        raise TensorError(
            f"has a number that {dtype} cannot express",
            tensor=spec.name,
            code="values",
            expected=f"at most {limits.max}",
            found=int(outside[0]),
            hint=HINT,
        )
    return values


Values = Callable[["np.ndarray"], "np.ndarray"]
"""A function of f32 values."""


def adding(constant: float) -> Values:
    """The function that adds a constant."""
    return lambda values: values + values.dtype.type(constant)


def negative_exp(values: np.ndarray) -> np.ndarray:
    """Negative exponentials, rounded once."""
    import numpy as np

    return (-np.exp(values.astype(np.float64))).astype(np.float32)


def log_of_negative(values: np.ndarray) -> np.ndarray:
    """Logarithms of the negative values; those of bf16 or f16, where they have the same exponential."""
    import numpy as np

    logarithms = np.log(-values.astype(np.float64)).astype(np.float32)
    for dtype in ("f16", "bf16"):
        rounded = dtypes.cast(logarithms, dtype).astype(np.float32)
        logarithms = np.where(negative_exp(rounded) == values, rounded, logarithms)
    return logarithms


def change_values(
    file: File, spec: TensorSpec, change: Values, restore: Values, narrow: str | None
) -> tuple[TensorSpec, Exactness]:
    """Change the values of a vector in f32; returns the result, and how exactly `restore` gives the values back.

    The result has the dtype `narrow` if `restore` then still gives the same f32 values. TensorError if no value close
    to one of them comes back.
    """
    import numpy as np

    values = read_vector(file, spec)
    with np.errstate(all="ignore"):  # NaN and infinities are values like others
        total = change(values)
        if narrow is not None and narrow != "f32":
            rounded = dtypes.cast(total, narrow).astype(np.float32)
            if np.array_equal(restore(rounded), values, equal_nan=True):
                return evolve(dense(spec.name, rounded, narrow), attrs=spec.attrs), Exactness("values", "f32")
        restored = restore(total)
        error = np.abs(restored.astype(np.float64) - values)
        error[(restored == values) | (np.isnan(restored) & np.isnan(values))] = 0
    largest = float(error.max(initial=0.0))
    if not math.isfinite(largest):
        place = int(np.argmin(np.isfinite(error)))
        raise TensorError(
            "has a value that the target cannot express",
            tensor=spec.name,
            code="values",
            expected="values with an exponential in f32" if change is negative_exp else "negative values",
            found=f"{values[place]} at {place}",
            hint=HINT,
        )
    exactness = Exactness("values", "f32") if largest == 0 else Exactness("bounded", error=largest)
    return evolve(dense(spec.name, total), attrs=spec.attrs), exactness


def fits(file: File, spec: TensorSpec, dtype: str) -> bool:
    """Return whether `dtype` represents every value of a dense tensor exactly."""
    import numpy as np

    if not is_dense(spec) or spec.dtype not in dtypes.FLOATS:
        return False
    bound = file.bind(spec, spec.encodings[0])
    for region in panels(spec.shape, bound.grain, 4):
        values = bound.read(region)
        with np.errstate(all="ignore"):
            if not np.array_equal(dtypes.cast(values, dtype).astype(values.dtype), values, equal_nan=True):
                return False
    return True
