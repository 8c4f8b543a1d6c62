"""Subgraphs of standard operators that compute with codes, as Squish writes them."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from .graph_values import F32, HALF_BLOCKS, GraphValues, QuantizedWeight
from .nodes import Node, Pattern

_LONGEST = 8
"""Largest number of nodes between gathered codes and their values."""


def _scaled(rows: str) -> Pattern:
    """Return the pattern of gathered scales or biases, with an axis for the codes of a block."""
    return ("Unsqueeze", {}, ("Gather", {}, ("Reshape", {}, rows, f"grid of {rows}"), "ids"), f"axis of {rows}")


def _integers(name: str, *, narrow: bool) -> Pattern:
    """Return the pattern of gathered codes or zero points as f32; bit shifts unpack those of fewer than 8 bits."""
    rows: Pattern = ("Gather", {}, name, "ids")
    if narrow:
        rows = ("BitShift", {"direction": b"LEFT"}, ("Unsqueeze", {}, rows, "last axis"), "above")
        rows = ("BitShift", {"direction": b"RIGHT"}, rows, "rest")
    return ("Reshape", {}, ("Cast", {"to": F32}, rows), f"shape of {name}")


def _values(*, narrow: bool) -> Iterator[Pattern]:
    """Yield the patterns that dequantize rows: with half the range as zero point, with zero points, with biases."""
    codes = _integers("data", narrow=narrow)
    for zero in ("half", _integers("zeros", narrow=narrow)):
        yield ("Reshape", {}, ("Mul", {}, ("Sub", {}, codes, zero), _scaled("scale")), "shape")
    yield ("Reshape", {}, ("Add", {}, ("Mul", {}, codes, _scaled("scale")), _scaled("biases")), "shape")


ROWS: tuple[Pattern, ...] = (*_values(narrow=False), *_values(narrow=True))
"""Patterns that dequantize rows of 8-bit codes, then of narrower codes."""
_OFFSETS: Pattern = ("Add", {}, "biases", ("Mul", {}, ("Reshape", {}, "scale", "grid"), "half"))
_SUMS: Pattern = ("ReduceSum", {"keepdims": 0}, ("Reshape", {}, "x", "split"), "axes")
TOTAL: Pattern = ("Add", {}, "product", ("MatMul", {}, _SUMS, ("Transpose", {"perm": [1, 0]}, _OFFSETS)))
"""Pattern that adds, to a product with codes, the sums of x over blocks times `bias + half * scale`."""


@frozen(kw_only=True)
class CodeChain:
    """The operands of a chain. `shape`, `bits` and `block` describe the matrix; `biases` and `zeros` may be ""."""

    scale: str
    biases: str
    zeros: str
    shape: tuple[int, int]
    bits: int
    block: int
    output: str
    nodes: tuple[int, ...]


def block_sums(node: Node, graph: GraphValues, weight: QuantizedWeight) -> CodeChain | None:
    """Return the chain that adds biases to a product through the sums of x over blocks.

    Parameters
    ----------
    node
        A MatMulNBits without zero points; it multiplies by `(code - half) * scale`.
    graph, weight
        The graph, and the weight without biases.

    Returns
    -------
    CodeChain or None
        None if no such chain follows.
    """
    total = graph.flow.reader(node.outputs[0])
    values = {"product": node.outputs[0], "x": node.inputs[0], "scale": node.inputs[2]}
    nodes: list[int] = []
    if total is None or not graph.flow.matches(total.outputs[0], TOTAL, values, nodes):
        return None
    (rows, columns), bits, block = weight.shape, weight.params["bits"], weight.params["group_size"]
    grid = [rows, columns // block]
    biases = graph.tensor(values["biases"], "f32")
    has_constants = graph.numbers(values["half"]) == [HALF_BLOCKS[bits]] and graph.numbers(values["grid"]) == grid
    if biases is None or list(biases.shape) != grid or not has_constants:
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
    """Return the chain that starts where a node gathers rows of codes.

    Parameters
    ----------
    node
        A Gather of axis 0.
    graph
        Its graph.

    Returns
    -------
    CodeChain or None
        None if the rows are not codes, or the graph uses them in another way.
    """
    packed = graph.tensor(node.inputs[0], "u8") if len(node.inputs) == 2 and not node.attributes.get("axis") else None
    if packed is None or len(packed.shape) != 3:
        return None
    for output in _chain_outputs(node, graph):
        for pattern in ROWS:
            values: dict[str, str] = {"data": node.inputs[0], "ids": node.inputs[1]}
            nodes: list[int] = []
            is_match = graph.flow.matches(output, pattern, values, nodes)
            if is_match and (chain := _rows(values, nodes, packed.shape, output, graph)):
                return chain
    return None


def _chain_outputs(node: Node, graph: GraphValues) -> Iterator[str]:
    """Follow the only reader of each output, and yield its output."""
    for _ in range(_LONGEST):
        reader = graph.flow.reader(node.outputs[0]) if node.outputs else None
        if reader is None:
            return
        node = reader
        yield node.outputs[0]


def _rows(
    values: dict[str, str], nodes: list[int], packed: tuple[int, ...], output: str, graph: GraphValues
) -> CodeChain | None:
    """Return the chain that matched a pattern, if its constants fit the codes."""
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
