"""Tensors of one layout in terms of another layout's: the operations of a family's rules."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen


@frozen
class Permute:
    """Interleave both halves of each head's rows, as llama.cpp's `llama` does. `heads` names the number of heads.

    Row `2 * i + j` of a head with `d` rows is row `j * d / 2 + i` in Hugging Face's order.
    """

    of: Expression
    heads: str


@frozen
class Add:
    """Add a constant, in f32."""

    of: Expression
    constant: float


@frozen
class NegExp:
    """The negative exponential of a vector, in f32. Its inverse is the logarithm of the negative values."""

    of: Expression


@frozen
class Scale:
    """Multiply rows, in f32, by the numbers that `factor` names (`Family.factors`); the inverse divides."""

    of: Expression
    factor: str


@frozen
class Int32:
    """Whole numbers in 32 bits, which Hugging Face has in 64."""

    of: Expression


@frozen
class Tile:
    """Take the first part of every group of rows, then the second part of every group, and so on.

    `groups` names the number of groups. `parts` names the rows of each part of a group, or the number of parts of equal
    size in all groups. The first rows, as many as `after` names, stay where they are.
    `columns`: the groups lie in the columns. `inverse`: the parts come first, and are put into groups. `heads` names
    the number of heads with as many groups each; no row leaves its head.
    """

    of: Expression
    groups: str
    parts: str | tuple[str, ...]
    after: str = ""
    columns: bool = False
    inverse: bool = False
    heads: str = ""


@frozen
class Reshape:
    """Give a dense tensor another shape with as many values, such as one without an axis of 1; `shape` names sizes.

    `by_shape`: files may have the shape of `of`, too.
    """

    of: Expression
    shape: tuple[str, ...]
    by_shape: bool = False


@frozen
class Pad:
    """Repeat the first row behind the last one until there are as many rows as `rows` names, if there are fewer.

    Engines read it for tokens that have no row of their own.
    """

    of: Expression
    rows: str


@frozen
class Cut:
    """Leave out the first rows, as many as `rows` names, which no engine reads.

    On the way back they are those of `Carried.rows` under the same name, or zeros.
    """

    of: Expression
    rows: str


@frozen
class Transpose:
    """Swap the last two axes. Blocks of codes run along rows, so only values can be transposed.

    `dense_only`: the layout transposes the tensor only if it is dense; codes have the rows of `of`
    (`Carried.coded` says which of the two a target stores). `by_shape`: files have the tensor either way, and its shape
    says which; only for reading.
    """

    of: Expression
    dense_only: bool = False
    by_shape: bool = False


@frozen
class Stack:
    """Stack the tensors of all experts (`{e}`) along a new first axis."""

    of: Expression


@frozen
class Join:
    """Concatenate tensors along the rows; each is paired with the name of its number of rows."""

    of: tuple[tuple[Expression, str], ...]


@frozen
class Interleave:
    """Interleave groups of rows of several tensors; each is paired with the name of its number of rows in a group.

    The rows lie along `axis` of the result, and along as many `axes` of the tensors: 2 are for the groups and the rows
    of each; with 0, a tensor is a row of the only group.
    """

    of: tuple[tuple[Expression, str], ...]
    axis: int = 0
    axes: int = 1


Operation = Permute | Tile | Add | NegExp | Scale | Int32 | Reshape | Pad | Cut | Transpose
Expression = str | Operation | Stack | Join | Interleave
"""A tensor of another layout in terms of the family's: a name, or an operation. Every operation has an inverse."""


def source_names(expression: Expression) -> Iterator[str]:
    """Yield the templates of the tensors in an expression.

    Parameters
    ----------
    expression
        A template, or an operation on tensors (`Join`, `Stack`, `Permute`, ...).

    Yields
    ------
    str
        In the order of the expression.

    Examples
    --------
    >>> list(source_names(Join((("q_proj", "q_rows"), ("k_proj", "kv_rows")))))
    ['q_proj', 'k_proj']
    """
    if isinstance(expression, str):
        yield expression
    elif isinstance(expression, Join | Interleave):
        for part, _ in expression.of:
            yield from source_names(part)
    else:
        yield from source_names(expression.of)
