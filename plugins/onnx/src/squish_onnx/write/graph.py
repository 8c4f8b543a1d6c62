"""A graph under construction: nodes, constants and the weights they refer to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import frozen

from squish_core.api import TensorSpec

from ..graph_values import HALF_BLOCKS
from . import proto

MICROSOFT = "com.microsoft"


@frozen
class Initializer:
    """An initializer of the graph: a part of a tensor, with its own name and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    tensor: str
    role: str


class Graph:
    """The nodes of a graph in order. A method that adds nodes returns the name of the output.

    `prefix`: prefix of the names of outputs and constants. `axes`: number of leading axes of every activation, None if
    it varies.

    Examples
    --------
    >>> graph = Graph([TensorSpec(name="w", shape=(2, 4), dtype="f32", encodings=())])
    >>> graph.op("Add", "x", graph.constant(1.0)), "w" in graph, len(graph.nodes)
    ('Add.1', True, 1)
    """

    def __init__(self, specs: Sequence[TensorSpec], prefix: str = "", axes: int | None = None) -> None:
        self._prefix, self._axes = prefix, axes
        self.nodes: list[bytes] = []
        self.inputs: list[bytes] = []
        self.outputs: list[bytes] = []
        self.initializers: dict[str, Initializer] = {}
        self.constants: dict[tuple[bytes, str, tuple[int, ...]], tuple[str, np.ndarray]] = {}
        self._specs = {spec.name: spec for spec in specs}
        self._count = 0
        self.domains: set[str] = set()

    def __contains__(self, name: object) -> bool:
        return name in self._specs

    def spec(self, name: str) -> TensorSpec:
        """Return the spec of a tensor."""
        return self._specs[name]

    def op(self, kind: str, *inputs: str, output: str = "", domain: str = "", **attributes: proto.Attribute) -> str:
        """Add a node with one output."""
        return self.ops(kind, inputs, (output,), domain, **attributes)[0]

    def ops(
        self, kind: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = "", **attributes: proto.Attribute
    ) -> list[str]:
        """Add a node, and name its outputs that have no name."""
        names = []
        for output in outputs:
            self._count += not output
            names.append(output or f"{self._prefix}{kind}.{self._count}")
        self.nodes.append(proto.node(kind, inputs, names, domain, **attributes))
        self.domains.add(domain)
        return names

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """Add a constant; equal constants are stored once."""
        array = np.asarray(value, dtype)
        key = array.tobytes(), array.dtype.str, array.shape
        if key not in self.constants:
            self.constants[key] = f"{self._prefix}constant.{len(self.constants)}", array
        return self.constants[key][0]

    @property
    def constant_nodes(self) -> list[bytes]:
        """The Constant nodes, which precede all others."""
        return [
            proto.node("Constant", (), (label,), "", value=proto.array(array))
            for label, array in self.constants.values()
        ]

    def integers(self, *values: int) -> str:
        """Add a constant list of integers, such as axes or a shape."""
        return self.constant(values, np.int64)

    def part(self, name: str, role: str = "data", suffix: str = "", shape: Sequence[int] = ()) -> str:
        """Add a part of a tensor as an initializer."""
        spec = self._specs[name]
        part, label = spec.encodings[0].parts[role], name + suffix
        dtype, sizes = (dense_dtype(spec), spec.shape) if is_dense(spec) else (part.dtype, part.shape)
        self.initializers[label] = Initializer(label, dtype, tuple(shape or sizes), name, role)
        return label

    def floats(self, name: str) -> str:
        """Add a dense tensor, cast to f32."""
        label = self.part(name)
        return label if self._specs[name].dtype == "f32" else self.op("Cast", label, to=proto.CODES["f32"])

    def linear(self, name: str, x: str, bias: str = "", output: str = "") -> str:
        """Add `x @ weight.T`, plus the bias if the model has it."""
        spec, last = self._specs[name], "" if bias in self._specs else output
        y = self._dense_linear(name, x, last) if is_dense(spec) else self._quantized_linear(spec, x, last)
        return self.op("Add", y, self.floats(bias), output=output) if bias in self._specs else y

    def _dense_linear(self, name: str, x: str, output: str) -> str:
        return self.op("MatMul", x, self.op("Transpose", self.floats(name), perm=(1, 0)), output=output)

    def _quantized_linear(self, spec: TensorSpec, x: str, output: str) -> str:
        """Add MatMulNBits, and for biases a product with the sums of x over blocks.

        A value is `code * scale + bias`, but MatMulNBits multiplies by `(code - half) * scale`; the difference is the
        sum of x over the block times `bias + half * scale`. Zero points are a separate input of MatMulNBits.
        """
        params = spec.encodings[0].codec.params
        bits, block, (rows, columns) = params["bits"], params["group_size"], spec.shape
        blocks = columns // block
        data = self.part(spec.name, "data", "_quant", (rows, blocks, block * bits // 8))
        scales = self._scales(spec)
        offset = params.get("offset", "none")
        zeros = [self._zeros(spec)] if offset == "zero_point" else []
        last = output if offset != "bias" else ""
        y = self.op(
            "MatMulNBits",
            x,
            data,
            scales,
            *zeros,
            output=last,
            domain=MICROSOFT,
            K=columns,
            N=rows,
            bits=bits,
            block_size=block,
            accuracy_level=1,
        )
        if offset != "bias":
            return y
        biases = self.part(spec.name, "offset", "_biases")
        half = self.constant(HALF_BLOCKS[bits])
        offsets = self.op("Add", biases, self.op("Mul", self.op("Reshape", scales, self.integers(rows, blocks)), half))
        # onnxruntime sums zero rows incorrectly over a negative axis.
        axis = self.integers(-1 if self._axes is None else self._axes + 1)
        sums = self.op("ReduceSum", self._reshape_last(x, x, blocks, block), axis, keepdims=0)
        return self.op("Add", y, self.op("MatMul", sums, self.op("Transpose", offsets, perm=(1, 0))), output=output)

    def _scales(self, spec: TensorSpec) -> str:
        """Add the scales of a matrix as f32, in one row."""
        (rows, columns), params = spec.shape, spec.encodings[0].codec.params
        label = self.part(spec.name, "scale", "_scales", (rows * (columns // params["group_size"]),))
        is_f32 = params.get("scale_dtype", "f32") == "f32"
        return label if is_f32 else self.op("Cast", label, to=proto.CODES["f32"])

    def _zeros(self, spec: TensorSpec) -> str:
        """Add the packed zero points of a matrix, by rows."""
        (rows, columns), params = spec.shape, spec.encodings[0].codec.params
        blocks = columns // params["group_size"]
        return self.part(spec.name, "offset", "_zero_points", (rows, blocks * params["bits"] // 8))

    def _reshape_last(self, x: str, like: str, *sizes: int, missing: int = 1) -> str:
        """Reshape `x` to the leading axes of `like` (all but the last `missing`) and these last sizes."""
        if self._axes is not None:
            return self.op("Reshape", x, self.integers(*(0,) * self._axes, *sizes))
        shape = self.op("Shape", like)
        if missing:
            shape = self.op("Slice", shape, self.integers(0), self.integers(-missing))
        return self.op("Reshape", x, self.op("Concat", shape, self.integers(*sizes), axis=0))

    def embedding(self, name: str, ids: str, output: str = "") -> str:
        """Add a gather of rows; a quantized matrix is dequantized after the gather."""
        spec = self._specs[name]
        if is_dense(spec):
            last = output if spec.dtype == "f32" else ""
            rows = self.op("Gather", self.part(name), ids, output=last)
            return rows if spec.dtype == "f32" else self.op("Cast", rows, to=proto.CODES["f32"], output=output)
        params = spec.encodings[0].codec.params
        bits, block, columns = params["bits"], params["group_size"], spec.shape[-1]
        blocks = columns // block
        packed = self.op("Gather", self.part(name, "data", "_quant", (spec.shape[0], *self._blocks(spec))), ids)
        codes = self._reshape_last(self._unpack(packed, bits), ids, blocks, block, missing=0)
        scales = self._rows_of(self._scales(spec), blocks, ids)
        offset = params.get("offset", "none")
        if offset == "bias":
            biases = self._rows_of(self.part(name, "offset", "_biases"), blocks, ids)
            values = self.op("Add", self.op("Mul", codes, scales), biases)
        else:
            zeros = self.constant(HALF_BLOCKS[bits])
            if offset == "zero_point":
                packed = self.op("Gather", self._zeros(spec), ids)
                zeros = self._reshape_last(self._unpack(packed, bits), ids, blocks, 1, missing=0)
            values = self.op("Mul", self.op("Sub", codes, zeros), scales)
        shape = self.op("Concat", self.op("Shape", ids), self.integers(columns), axis=0)
        return self.op("Reshape", values, shape, output=output)

    def _blocks(self, spec: TensorSpec) -> tuple[int, int]:
        params = spec.encodings[0].codec.params
        return spec.shape[-1] // params["group_size"], params["group_size"] * params["bits"] // 8

    def _rows_of(self, part: str, blocks: int, ids: str) -> str:
        """Gather the scales or biases of rows, with an axis for the codes of a block."""
        grid = self.op("Reshape", part, self.integers(-1, blocks))
        return self.op("Unsqueeze", self.op("Gather", grid, ids), self.integers(-1))

    def _unpack(self, data: str, bits: int) -> str:
        """Unpack codes to f32, lowest bits first; shifts clear the bits above each code, then below it."""
        if bits < 8:
            above, rest = self.constant(range(8 - bits, -1, -bits), np.uint8), self.constant(8 - bits, np.uint8)
            shifted = self.op("BitShift", self.op("Unsqueeze", data, self.integers(-1)), above, direction="LEFT")
            data = self.op("BitShift", shifted, rest, direction="RIGHT")
        return self.op("Cast", data, to=proto.CODES["f32"])


def dense_dtype(spec: TensorSpec) -> str:
    """Return the dtype of the values of a dense tensor."""
    return str(spec.encodings[0].codec.params.get("dtype", spec.dtype))


def is_dense(spec: TensorSpec) -> bool:
    """Return whether a tensor is stored as values, not codes.

    Parameters
    ----------
    spec
        A tensor with one encoding.

    Returns
    -------
    bool
        False for codes.

    Examples
    --------
    >>> from squish_core.api import DENSE, Encoding
    >>> is_dense(TensorSpec(name="w", shape=(2,), dtype="f32", encodings=(Encoding(codec=DENSE, parts={}),)))
    True
    """
    return spec.encodings[0].codec.id == "dense"
