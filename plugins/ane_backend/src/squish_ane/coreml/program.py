"""The program in a Core ML specification: operations and the location of their values.

Field numbers are from Apple's Model.proto and MIL.proto.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from attrs import field, frozen

from squish_core.api import FormatError, LimitError, Limits, dtypes, protobuf

from .blobs import BY_NUMBER, TYPES

message, number, packed_list = protobuf.message, protobuf.number, protobuf.packed_list

Feature = tuple[str, str, tuple[int, ...]]
"""Name, dtype and shape of an input, output or result."""

STRING = 2
WEIGHTS = "@model_path/weights/weight.bin"
MOST_NUMBERS = 256
"""Maximum numbers kept of an integer constant; only axes and shapes are used."""
OPSETS = {"iOS16": ("CoreML6", 7), "iOS17": ("CoreML7", 8), "iOS18": ("CoreML8", 9)}
"""Deployment target -> opset and specification version."""


@frozen
class Kind:
    """A tensor type: dtype name ("" for types without weights) and shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of elements."""
        return dtypes.count(self.shape)


@frozen(kw_only=True)
class Value:
    """A constant: inline bytes or an offset in the weights; small ones as `numbers` or `text`."""

    kind: Kind
    data: bytes | None = None
    numbers: tuple[int, ...] = ()
    text: str | None = None
    file: str = ""
    at: int = -1


@frozen(kw_only=True)
class Operation:
    """An operation: constants by parameter, names of other operations' results by parameter, and its own results.

    `producers`: the compressed operations that produce its inputs, by parameter.
    """

    type: str
    values: Mapping[str, Value]
    inputs: Mapping[str, str]
    outputs: tuple[tuple[str, Kind], ...]
    producers: Mapping[str, Operation] = field(factory=dict)

    @property
    def name(self) -> str:
        """The operation's name, else its result's."""
        label = self.values.get("name")
        return label.text if label and label.text else self.outputs[0][0]


@frozen(kw_only=True)
class Program:
    """The relevant contents of a specification."""

    version: int
    opset: str
    operations: tuple[Operation, ...]
    meta: Mapping[str, str] = field(factory=dict)


def read_program(data: bytes, limits: Limits) -> Program:
    """Read the main (or first) function; FormatError if missing or corrupt."""
    version, meta, ml_program = 0, {}, None
    for item in protobuf.Message.of(data):
        if item.number == 1:
            version = item.integer
        elif item.number == 2:
            meta = _metadata(item)
        elif item.number == 502:
            ml_program = item
    if ml_program is None:
        raise FormatError(
            "not an ML program", code="kind", hint="Only ML programs (iOS 15 and later) have compressed weights."
        )
    functions = dict(_entries(ml_program, 2))
    function = functions.get("main") or next(iter(functions.values()), None)
    if function is None:
        raise FormatError("the program has no function", offset=ml_program.offset, code="program")
    opset = next((item.text for item in function.message if item.number == 2), "")
    blocks = dict(_entries(function, 3))
    block = blocks.get(opset)
    if block is None:
        raise FormatError("the program has no block for its opset", offset=function.offset, found=opset, code="program")
    operations: list[Operation] = []
    for item in block.message:
        if len(operations) > limits.tensors:
            raise LimitError(
                "too many operations",
                offset=item.offset,
                expected=f"at most {limits.tensors}",
                code="count",
                limit="tensors",
            )
        if item.number == 3:
            operations.append(_operation(item))
    return Program(version=version, opset=opset, operations=tuple(operations), meta=meta)


def _metadata(description: protobuf.Field) -> dict[str, str]:
    texts = {}
    for item in description.message:
        if item.number == 100:
            for key, value in _entries(item, 100):
                texts[key] = value.text
    return texts


def _entries(parent: protobuf.Field, tag: int) -> Iterator[tuple[str, protobuf.Field]]:
    """Yield keys and values of a map."""
    for item in parent.message:
        if item.number == tag:
            pair = {each.number: each for each in item.message}
            if 1 in pair and 2 in pair:
                yield pair[1].text, pair[2]


def _operation(source: protobuf.Field) -> Operation:
    kind, outputs = "", []
    values: dict[str, Value] = {}
    inputs: dict[str, str] = {}
    for item in source.message:
        if item.number == 1:
            kind = item.text
        elif item.number == 3:
            outputs.append(_feature(item))
    for key, argument in _entries(source, 2):
        for binding in argument.message:
            for choice in binding.message:
                if choice.number == 1:
                    inputs[key] = choice.text
                elif choice.number == 2:
                    values[key] = _value(choice)
    for key, value in _entries(source, 5):
        values[key] = _value(value)
    if not outputs:
        raise FormatError("operation without a result", offset=source.offset, found=kind, code="program")
    return Operation(type=kind, values=values, inputs=inputs, outputs=tuple(outputs))


def _feature(source: protobuf.Field) -> tuple[str, Kind]:
    name, kind = "", Kind("", ())
    for item in source.message:
        if item.number == 1:
            name = item.text
        elif item.number == 2:
            kind = _kind(item)
    return name, kind


def _kind(source: protobuf.Field) -> Kind:
    """Read a value's type; types other than tensors have no dtype."""
    for item in source.message:
        if item.number != 1:
            continue
        dtype, shape = 0, []
        for each in item.message:
            if each.number == 1:
                dtype = each.integer
            elif each.number == 3:
                shape.append(_size(each))
        return Kind(BY_NUMBER.get(dtype, ""), tuple(shape))
    return Kind("", ())


def _size(dimension: protobuf.Field) -> int:
    """Read a dimension's size; 0 if it is not constant."""
    for item in dimension.message:
        if item.number == 1:
            return next((each.integer for each in item.message if each.number == 1), 0)
    return 0


def _value(source: protobuf.Field) -> Value:
    kind, content = Kind("", ()), {}
    for item in source.message:
        if item.number == 2:
            kind = _kind(item)
        elif item.number == 3:
            content = _immediate(item)
        elif item.number == 5:
            blob = {each.number: each for each in item.message}
            content = {"file": blob[1].text if 1 in blob else "", "at": blob[2].integer if 2 in blob else 0}
    return Value(kind=kind, **content)  # type: ignore[arg-type]


def _immediate(source: protobuf.Field) -> dict[str, object]:
    for item in source.message:
        if item.number != 1:
            continue
        for content in item.message:
            lists = (each for each in content.message if each.number == 1)
            if content.number == 7:
                return {"data": next((bytes(each.bytes) for each in lists), b"")}
            if content.number == 1:
                data = bytearray()
                for each in lists:
                    data += each.bytes
                return {"data": bytes(data)}
            if content.number == 4:
                return {"text": next((each.text for each in lists), "")}
            if content.number in (2, 3, 5):
                return {"numbers": tuple(islice(_numbers(lists), MOST_NUMBERS))}
    return {}


def _numbers(lists: Iterable[protobuf.Field]) -> Iterator[int]:
    for each in lists:
        yield from each.integers


def blob(dtype: str, shape: tuple[int, ...], at: int) -> bytes:
    """Encode a value in the weights file."""
    return kind_of(2, TYPES[dtype].number, shape) + message(5, message(1, WEIGHTS), number(2, at))


def text(value: str) -> bytes:
    """Encode a string value."""
    return kind_of(2, STRING, ()) + message(3, message(1, message(4, message(1, value))))


def integers(dtype: str, shape: tuple[int, ...], *values: int) -> bytes:
    """Encode an integer value; Core ML stores u32 as bytes."""
    content = message(2, packed_list(1, *values))
    if dtype == "u32":
        content = message(7, message(1, b"".join(value.to_bytes(4, "little") for value in values)))
    return kind_of(2, TYPES[dtype].number, shape) + message(3, message(1, content))


def zeros(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Encode an inline value of zeros."""
    tag = 1 if dtype == "f32" else 7  # f32 has its own list, other types are bytes
    content = message(tag, message(1, bytes(TYPES[dtype].bits // 8 * dtypes.count(shape))))
    return kind_of(2, TYPES[dtype].number, shape) + message(3, message(1, content))


def kind_of(tag: int, type_number: int, shape: tuple[int, ...]) -> bytes:
    """Encode a tensor type."""
    sizes = b"".join(message(3, message(1, number(1, size))) for size in shape)
    return message(tag, message(1, number(1, type_number), number(2, len(shape)), sizes))


def operation(
    kind: str,
    *outputs: Feature,
    inputs: Mapping[str, bytes | str],
    attributes: Mapping[str, bytes],
) -> bytes:
    """Encode an operation; inputs are values or names of results."""
    arguments = {
        key: message(1, value) if isinstance(value, str) else message(2, value) for key, value in inputs.items()
    }
    bindings = [message(2, message(1, key), message(2, message(1, each))) for key, each in arguments.items()]
    results = [message(3, message(1, name), kind_of(2, TYPES[dtype].number, shape)) for name, dtype, shape in outputs]
    named = [message(5, message(1, key), message(2, value)) for key, value in attributes.items()]
    return message(3, message(1, kind), *bindings, *results, *named)


_ARRAY_TYPES = {"f16": 65552, "f32": 65568}


def specification(
    target: str,
    operations: Sequence[bytes],
    inputs: Sequence[Feature],
    outputs: Sequence[Feature],
    meta: Mapping[str, str],
) -> bytes:
    """Encode a specification. Features are (name, dtype, shape)."""
    opset, version = OPSETS[target]
    features = [
        message(tag, message(1, name), message(3, message(5, packed_list(1, *shape), number(2, _ARRAY_TYPES[dtype]))))
        for tag, group in ((1, inputs), (10, outputs))
        for name, dtype, shape in group
    ]
    metadata = message(100, *(message(100, message(1, key), message(2, value)) for key, value in meta.items()))
    block = message(3, message(1, opset), message(2, *(message(2, name) for name, _, _ in outputs), *operations))
    parameters = [message(1, message(1, name), kind_of(2, TYPES[dtype].number, shape)) for name, dtype, shape in inputs]
    function = message(2, message(1, "main"), message(2, *parameters, message(2, opset), block))
    return number(1, version) + message(2, *features, metadata) + message(502, number(1, 1), function)
