"""Chains of standard nodes that compute with codes, as Squish writes them."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from .coded import F32, HALF_BLOCKS, CodedWeight, GraphValues
from .nodes import Node, Pattern

_LONGEST = 8
"""Nodes from the rows of codes to their values."""


def _scaled(rows: str) -> Pattern:
    """Rows of scales or biases, with an axis for the codes of a block."""
    return ("Unsqueeze", {}, ("Gather", {}, ("Reshape", {}, rows, f"grid of {rows}"), "ids"), f"axis of {rows}")


def _integers(name: str, *, narrow: bool) -> Pattern:
    """Rows of codes or zero points as f32; those of fewer than 8 bits are shifted apart."""
    rows: Pattern = ("Gather", {}, name, "ids")
    if narrow:
        rows = ("BitShift", {"direction": b"LEFT"}, ("Unsqueeze", {}, rows, "last axis"), "above")
        rows = ("BitShift", {"direction": b"RIGHT"}, rows, "rest")
    return ("Reshape", {}, ("Cast", {"to": F32}, rows), f"shape of {name}")


def _values(*, narrow: bool) -> Iterator[Pattern]:
    """The values of codes: with half of their range as zero point, with zero points, and with biases."""
    codes = _integers("data", narrow=narrow)
    for zero in ("half", _integers("zeros", narrow=narrow)):
        yield ("Reshape", {}, ("Mul", {}, ("Sub", {}, codes, zero), _scaled("scale")), "shape")
    yield ("Reshape", {}, ("Add", {}, ("Mul", {}, codes, _scaled("scale")), _scaled("biases")), "shape")


ROWS: tuple[Pattern, ...] = (*_values(narrow=False), *_values(narrow=True))
"""The values of rows of 8-bit codes, and of narrower ones."""
_OFFSETS: Pattern = ("Add", {}, "biases", ("Mul", {}, ("Reshape", {}, "scale", "grid"), "half"))
_SUMS: Pattern = ("ReduceSum", {"keepdims": 0}, ("Reshape", {}, "x", "split"), "axes")
TOTAL: Pattern = ("Add", {}, "product", ("MatMul", {}, _SUMS, ("Transpose", {"perm": [1, 0]}, _OFFSETS)))
"""A product with codes, and the sums of x over blocks times `bias + half * scale`."""


@frozen(kw_only=True)
class CodeChain:
    """What a chain computes with. `shape`, `bits`, `block`: those of the matrix; `biases`, `zeros`: a value or ""."""

    scale: str
    biases: str
    zeros: str
    shape: tuple[int, int]
    bits: int
    block: int
    output: str
    nodes: tuple[int, ...]


def block_sums(node: Node, graph: GraphValues, weight: CodedWeight) -> CodeChain | None:
    """The chain that adds biases to a product through the sums of x over blocks.

    Parameters
    ----------
    node
        A MatMulNBits without zero points: it multiplies by `(code - half) * scale`.
    graph, weight
        The graph, and the weight without biases.

    Returns
    -------
    CodeChain or None
        None if nothing of the kind is added.
    """
    total = graph.flow.reader(node.outputs[0])
    values = {"product": node.outputs[0], "x": node.inputs[0], "scale": node.inputs[2]}
    nodes: list[int] = []
    if total is None or not graph.flow.matches(total.outputs[0], TOTAL, values, nodes):
        return None
    (rows, columns), bits, block = weight.shape, weight.params["bits"], weight.params["group_size"]
    grid = [rows, columns // block]
    biases = graph.tensor(values["biases"], "f32")
    is_form = graph.numbers(values["half"]) == [HALF_BLOCKS[bits]] and graph.numbers(values["grid"]) == grid
    if biases is None or list(biases.shape) != grid or not is_form:
        return None
    return CodeChain(
        scale=values["scale"],
        biases=values["biases"],
        zeros="",
        shape=(rows, columns),
        bits=bits,
        block=block,
        output=total.outputs[0],
        nodes=tuple(nodes),
    )


def gathered_rows(node: Node, graph: GraphValues) -> CodeChain | None:
    """The chain that starts where a node gathers rows of codes.

    Parameters
    ----------
    node
        A Gather of axis 0.
    graph
        Its graph.

    Returns
    -------
    CodeChain or None
        None if the rows are no codes, or something else becomes of them.
    """
    packed = graph.tensor(node.inputs[0], "u8") if len(node.inputs) == 2 and not node.attributes.get("axis") else None
    if packed is None or len(packed.shape) != 3:
        return None
    for output in _onward(node, graph):
        for pattern in ROWS:
            values: dict[str, str] = {"data": node.inputs[0], "ids": node.inputs[1]}
            nodes: list[int] = []
            is_match = graph.flow.matches(output, pattern, values, nodes)
            if is_match and (chain := _rows(values, nodes, packed.shape, output, graph)):
                return chain
    return None


def _onward(node: Node, graph: GraphValues) -> Iterator[str]:
    """The outputs of the nodes that a chain of single readers leads to."""
    for _ in range(_LONGEST):
        reader = graph.flow.reader(node.outputs[0]) if node.outputs else None
        if reader is None:
            return
        node = reader
        yield node.outputs[0]


def _rows(
    values: dict[str, str], nodes: list[int], packed: tuple[int, ...], output: str, graph: GraphValues
) -> CodeChain | None:
    """The chain of a pattern, if its constants are those of codes."""
    rows, blocks, size = packed
    bits = 8
    if "rest" in values:
        rest = graph.numbers(values["rest"])
        bits = 8 - rest[0] if rest else 0
        if bits not in HALF_BLOCKS or graph.numbers(values["above"]) != list(range(8 - bits, -1, -bits)):
            return None
    if "half" in values and graph.numbers(values["half"]) != [HALF_BLOCKS[bits]]:
        return None
    block = size * 8 // bits
    return CodeChain(
        scale=values["scale"],
        biases=values.get("biases", ""),
        zeros=values.get("zeros", ""),
        shape=(rows, blocks * block),
        bits=bits,
        block=block,
        output=output,
        nodes=tuple(nodes),
    )
