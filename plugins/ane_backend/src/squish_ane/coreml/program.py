"""The program in a Core ML specification: operations, their values, and where a value's bytes are.

Numbers of fields are those of Apple's Model.proto and MIL.proto.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from attrs import field, frozen

from squish_core.api import FormatError, LimitError, Limits, dtypes

from .blobs import BY_NUMBER, TYPES
from .protobuf import Field, fields, message, number, packed, varints

Feature = tuple[str, str, tuple[int, ...]]
"""Name, dtype and shape of an input, an output or a result."""

STRING = 2
WEIGHTS = "@model_path/weights/weight.bin"
MOST_NUMBERS = 256
"""Numbers of an integer constant that are kept: axes and shapes, which are all that is asked for, have fewer."""
OPSETS = {"iOS16": ("CoreML6", 7), "iOS17": ("CoreML7", 8), "iOS18": ("CoreML8", 9)}
"""Deployment target -> opset and specification version."""


@frozen
class Kind:
    """A tensor type: dtype name ("" for one that holds no weights) and shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Elements."""
        return dtypes.count(self.shape)


@frozen(kw_only=True)
class Value:
    """A constant: its bytes, or its place in the weights; `numbers` and `text` of small ones."""

    kind: Kind
    data: bytes | None = None
    numbers: tuple[int, ...] = ()
    text: str | None = None
    file: str = ""
    at: int = -1


@frozen(kw_only=True)
class Operation:
    """One operation: constants by parameter, names of the results of others by parameter, and its own results.

    `makers`: the compressed operations that make its inputs, by parameter.
    """

    type: str
    values: Mapping[str, Value]
    inputs: Mapping[str, str]
    outputs: tuple[tuple[str, Kind], ...]
    makers: Mapping[str, Operation] = field(factory=dict)

    @property
    def name(self) -> str:
        """The name it was given, else that of its result."""
        told = self.values.get("name")
        return told.text if told and told.text else self.outputs[0][0]


@frozen(kw_only=True)
class Program:
    """What a specification says that matters here."""

    version: int
    opset: str
    operations: tuple[Operation, ...]
    meta: Mapping[str, str] = field(factory=dict)


def read_program(data: bytes, limits: Limits) -> Program:
    """The program of the first function; FormatError where there is none or it is damaged."""
    version, meta, found = 0, {}, None
    for item in fields(memoryview(data)):
        if item.number == 1:
            version = item.integer
        elif item.number == 2:
            meta = _metadata(item)
        elif item.number == 502:
            found = item
    if found is None:
        raise FormatError(
            "is not an ML program", code="kind", hint="Only ML programs (iOS 15 and later) carry compressed weights."
        )
    functions = dict(_entries(found, 2))
    function = functions.get("main") or next(iter(functions.values()), None)
    if function is None:
        raise FormatError("the program has no function", offset=found.offset, code="program")
    opset = next((item.text for item in fields(function.bytes, function.offset) if item.number == 2), "")
    blocks = dict(_entries(function, 3))
    block = blocks.get(opset)
    if block is None:
        raise FormatError("the program has no block for its opset", offset=function.offset, found=opset, code="program")
    operations: list[Operation] = []
    for item in fields(block.bytes, block.offset):
        if len(operations) > limits.tensors:
            raise LimitError(
                "too many operations", offset=item.offset, expected=f"at most {limits.tensors}", code="count",
                limit="tensors",
            )  # fmt: skip
        if item.number == 3:
            operations.append(_operation(item))
    return Program(version=version, opset=opset, operations=tuple(operations), meta=meta)


def _metadata(description: Field) -> dict[str, str]:
    found = {}
    for item in fields(description.bytes, description.offset):
        if item.number == 100:
            for key, value in _entries(item, 100):
                found[key] = value.text
    return found


def _entries(parent: Field, tag: int) -> Iterator[tuple[str, Field]]:
    """Keys and values of a map."""
    for item in fields(parent.bytes, parent.offset):
        if item.number == tag:
            pair = {each.number: each for each in fields(item.bytes, item.offset)}
            if 1 in pair and 2 in pair:
                yield pair[1].text, pair[2]


def _operation(given: Field) -> Operation:
    kind, outputs = "", []
    values: dict[str, Value] = {}
    inputs: dict[str, str] = {}
    for item in fields(given.bytes, given.offset):
        if item.number == 1:
            kind = item.text
        elif item.number == 3:
            outputs.append(_named(item))
    for key, argument in _entries(given, 2):
        for binding in fields(argument.bytes, argument.offset):
            for choice in fields(binding.bytes, binding.offset):
                if choice.number == 1:
                    inputs[key] = choice.text
                elif choice.number == 2:
                    values[key] = _value(choice)
    for key, value in _entries(given, 5):
        values[key] = _value(value)
    if not outputs:
        raise FormatError("an operation has no result", offset=given.offset, found=kind, code="program")
    return Operation(type=kind, values=values, inputs=inputs, outputs=tuple(outputs))


def _named(given: Field) -> tuple[str, Kind]:
    name, kind = "", Kind("", ())
    for item in fields(given.bytes, given.offset):
        if item.number == 1:
            name = item.text
        elif item.number == 2:
            kind = _kind(item)
    return name, kind


def _kind(given: Field) -> Kind:
    """A value's type; what is no tensor has no dtype."""
    for item in fields(given.bytes, given.offset):
        if item.number != 1:
            continue
        dtype, shape = 0, []
        for each in fields(item.bytes, item.offset):
            if each.number == 1:
                dtype = each.integer
            elif each.number == 3:
                shape.append(_size(each))
        return Kind(BY_NUMBER.get(dtype, ""), tuple(shape))
    return Kind("", ())


def _size(dimension: Field) -> int:
    """A dimension's size; 0 where it is not constant."""
    for item in fields(dimension.bytes, dimension.offset):
        if item.number == 1:
            return next((each.integer for each in fields(item.bytes, item.offset) if each.number == 1), 0)
    return 0


def _value(given: Field) -> Value:
    kind, found = Kind("", ()), {}
    for item in fields(given.bytes, given.offset):
        if item.number == 2:
            kind = _kind(item)
        elif item.number == 3:
            found = _immediate(item)
        elif item.number == 5:
            blob = {each.number: each for each in fields(item.bytes, item.offset)}
            found = {"file": blob[1].text if 1 in blob else "", "at": blob[2].integer if 2 in blob else 0}
    return Value(kind=kind, **found)  # type: ignore[arg-type]


def _immediate(given: Field) -> dict[str, object]:
    for item in fields(given.bytes, given.offset):
        if item.number != 1:
            continue
        for held in fields(item.bytes, item.offset):
            lists = (each for each in fields(held.bytes, held.offset) if each.number == 1)
            if held.number == 7:
                return {"data": next((bytes(each.bytes) for each in lists), b"")}
            if held.number == 1:
                data = bytearray()
                for each in lists:
                    data += each.bytes
                return {"data": bytes(data)}
            if held.number == 4:
                return {"text": next((each.text for each in lists), "")}
            if held.number in (2, 3, 5):
                return {"numbers": tuple(islice(_numbers(lists), MOST_NUMBERS))}
    return {}


def _numbers(lists: Iterable[Field]) -> Iterator[int]:
    for each in lists:
        if isinstance(each.value, int):
            yield each.value
        else:
            yield from varints(each.bytes, each.offset)


def blob(dtype: str, shape: tuple[int, ...], at: int) -> bytes:
    """A value that lies in the weights."""
    return kind_of(2, TYPES[dtype].number, shape) + message(5, message(1, WEIGHTS), number(2, at))


def text(value: str) -> bytes:
    """A string value."""
    return kind_of(2, STRING, ()) + message(3, message(1, message(4, message(1, value))))


def integers(dtype: str, shape: tuple[int, ...], *values: int) -> bytes:
    """An integer value; u32 as Core ML keeps it, as bytes."""
    held = message(2, packed(1, *values))
    if dtype == "u32":
        held = message(7, message(1, b"".join(value.to_bytes(4, "little") for value in values)))
    return kind_of(2, TYPES[dtype].number, shape) + message(3, message(1, held))


def zeros(dtype: str, shape: tuple[int, ...]) -> bytes:
    """A value of zeros that lies in the specification itself."""
    tag = 1 if dtype == "f32" else 7  # floats have a list of their own, the other types are bytes
    held = message(tag, message(1, bytes(TYPES[dtype].bits // 8 * dtypes.count(shape))))
    return kind_of(2, TYPES[dtype].number, shape) + message(3, message(1, held))


def kind_of(tag: int, type_number: int, shape: tuple[int, ...]) -> bytes:
    """A value type: a tensor of this dtype and shape."""
    sizes = b"".join(message(3, message(1, number(1, size))) for size in shape)
    return message(tag, message(1, number(1, type_number), number(2, len(shape)), sizes))


def operation(
    kind: str,
    *outputs: Feature,
    inputs: Mapping[str, bytes | str],
    attributes: Mapping[str, bytes],
) -> bytes:
    """An operation; an input is a value, or the name of another result."""
    arguments = {
        key: message(1, given) if isinstance(given, str) else message(2, given) for key, given in inputs.items()
    }
    bound = [message(2, message(1, key), message(2, message(1, each))) for key, each in arguments.items()]
    results = [message(3, message(1, name), kind_of(2, TYPES[dtype].number, shape)) for name, dtype, shape in outputs]
    named = [message(5, message(1, key), message(2, value)) for key, value in attributes.items()]
    return message(3, message(1, kind), *bound, *results, *named)


_ARRAY_TYPES = {"f16": 65552, "f32": 65568}


def specification(
    target: str,
    operations: Sequence[bytes],
    inputs: Sequence[Feature],
    outputs: Sequence[Feature],
    meta: Mapping[str, str],
) -> bytes:
    """A whole specification. Features are (name, dtype, shape)."""
    opset, version = OPSETS[target]
    features = [
        message(tag, message(1, name), message(3, message(5, packed(1, *shape), number(2, _ARRAY_TYPES[dtype]))))
        for tag, group in ((1, inputs), (10, outputs))
        for name, dtype, shape in group
    ]
    told = message(100, *(message(100, message(1, key), message(2, value)) for key, value in meta.items()))
    block = message(3, message(1, opset), message(2, *(message(2, name) for name, _, _ in outputs), *operations))
    given = [message(1, message(1, name), kind_of(2, TYPES[dtype].number, shape)) for name, dtype, shape in inputs]
    function = message(2, message(1, "main"), message(2, *given, message(2, opset), block))
    return number(1, version) + message(2, *features, told) + message(502, number(1, 1), function)
