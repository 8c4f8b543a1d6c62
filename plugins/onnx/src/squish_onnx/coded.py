"""A graph's values, and the weights that it has as codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import field, frozen

from squish_core.api import Limits, Source, dtypes, protobuf

from .nodes import Flow
from .tensor import TensorProto, read_tensor

HALF_BLOCKS = {2: 2, 4: 8, 8: 128}
"""Bits -> what MatMulNBits subtracts from a code without a zero point."""
F32 = 1
"""TensorProto.DataType of f32."""
SCALES = ("f32", "f16", "bf16")
_MOST = 64
"""Values of a constant that is read."""


@frozen(kw_only=True)
class CodeUse:
    """Nodes that compute with codes: `rows` gathers rows, otherwise they multiply; `bias` is a value that is added.

    `x` and `output`: what goes in and what comes out. `nodes`: their numbers. `operator`: one that computes with these
    codes and with no others; DequantizeLinear only makes their values.
    """

    rows: bool
    x: str
    output: str
    nodes: tuple[int, ...]
    bias: str = ""
    operator: str = ""


@frozen(kw_only=True)
class CodedWeight:
    """A quantized weight of a graph. `params`: those of the codec; `parts`: role -> initializer."""

    name: str
    shape: tuple[int, ...]
    params: Mapping[str, Any]
    parts: Mapping[str, str]
    codec: str = "affine"
    uses: tuple[CodeUse, ...] = field(default=(), eq=False)


@frozen
class CodesApart:
    """Codes of an operator that are no `CodedWeight`: the initializer, the operator, and why."""

    name: str
    operator: str
    reason: str


@frozen
class GraphValues:
    """Values of a graph: what makes and reads them, initializers, and small constants."""

    flow: Flow
    initializers: Mapping[str, TensorProto]
    source: Source
    limits: Limits

    def numbers(self, name: str) -> list[Any] | None:
        """The values of a small constant in the model as a list; None for other values."""
        tensor = self.initializers.get(name)
        node = self.flow.producers.get(name) if tensor is None else None
        constant = node is not None and node.kind == "Constant"
        if node is not None and constant and isinstance(stored := node.attributes.get("value"), protobuf.Field):
            tensor = read_tensor(stored, "constant", self.limits)
        if tensor is None or tensor.problem or dtypes.bits(tensor.dtype) < 8 or dtypes.count(tensor.shape) > _MOST:
            return None
        data = self.source.view(*tensor.raw) if tensor.raw is not None else tensor.values
        return None if data is None else np.frombuffer(data, dtypes.to_numpy(tensor.dtype)).tolist()

    def stored(self, name: str) -> str:
        """The initializer whose values a value has: itself, or the one that it is cast from."""
        node = None if name in self.initializers else self.flow.producers.get(name)
        is_cast = (
            node is not None and node.kind == "Cast" and len(node.inputs) == 1 and node.attributes.get("to") == F32
        )
        return node.inputs[0] if node is not None and is_cast else name

    def tensor(self, name: str, *kinds: str) -> TensorProto | None:
        """An initializer of one of these dtypes."""
        tensor = self.initializers.get(name)
        return tensor if tensor is not None and tensor.dtype in kinds and not tensor.problem else None
