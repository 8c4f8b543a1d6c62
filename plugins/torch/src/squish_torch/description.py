"""Descriptions of encodings as canonical JSON: codec, parameters, shape and parts, without bytes."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from attrs import evolve

from squish_core.api import (
    BytesSource,
    CodecError,
    CodecSpec,
    Encoding,
    File,
    Index,
    Part,
    Registry,
    Tensor,
    TensorError,
    TensorSpec,
    dtypes,
)
from squish_core.api import (
    registry as installed,
)

TUPLE, BYTES, MAPPING = "()", "bytes", "{}"
"""Keys that mark values of types that JSON lacks."""


def describe(spec: TensorSpec, encoding: Encoding) -> str:
    """Describe an encoding of a tensor; equal encodings and shapes have equal descriptions.

    Parameters
    ----------
    spec
        The tensor; the description omits its name.
    encoding
        One of its encodings.

    Returns
    -------
    str
        JSON with sorted keys and without spaces.

    Raises
    ------
    CodecError
        A parameter of the codec is not plain data.

    Examples
    --------
    >>> tensor = squish.open("model.gguf")["blk.0.ffn_norm.weight"]
    >>> describe(tensor.spec, tensor.bound.encoding)
    '{"codec":["dense",{},null],"dtype":"f32","parts":{"data":["f32",[32]]},"shape":[32]}'
    """
    document = {
        "codec": _codec(encoding.codec),
        "dtype": spec.dtype,
        "parts": {role: [part.dtype, list(part.shape)] for role, part in encoding.parts.items()},
        "shape": list(spec.shape),
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def read_description(text: str, name: str = "weight") -> TensorSpec:
    """Parse a description.

    Parameters
    ----------
    text
        A description.
    name
        Name of the tensor.

    Returns
    -------
    TensorSpec
        With one encoding, whose parts have no location.

    Raises
    ------
    CodecError
        The text is not a description.

    Examples
    --------
    >>> read_description('{"codec":["dense",{},null],"dtype":"f32","parts":{},"shape":[2]}').shape
    (2,)
    """
    try:
        document = json.loads(text)
        codec = _read_codec(document["codec"])
        parts = {
            str(role): Part(dtype=_dtype(dtype), shape=_shape(shape))
            for role, (dtype, shape) in document["parts"].items()
        }
        shape, dtype = _shape(document["shape"]), _dtype(document["dtype"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CodecError(
            "not the description of an encoding",
            tensor=name,
            expected="JSON as `describe` writes it",
            found=f"{type(error).__name__}: {error}",
            code="description",
        ) from None
    return TensorSpec(name=name, shape=shape, dtype=dtype, encodings=(Encoding(codec=codec, parts=parts),))


def tensor_from_parts(
    description: str, parts: Mapping[str, Any], *, name: str = "weight", registry: Registry | None = None
) -> Tensor:
    """Make a tensor from parts in memory, without an open file.

    Parameters
    ----------
    description
        The result of `describe`.
    parts
        Role -> contiguous buffer, which the tensor reads in place and keeps alive.
    name
        Its name in errors.
    registry
        The plugins to use; those installed by default.

    Returns
    -------
    Tensor
        As from an open file; `load` returns its `Weight`.

    Raises
    ------
    CodecError
        The description cannot be read.
    TensorError
        A part is missing, or its size differs from the description.

    Examples
    --------
    >>> stored = squish.open("model.gguf")["blk.0.ffn_up.weight"]
    >>> text = describe(stored.spec, stored.bound.encoding)
    >>> tensor = tensor_from_parts(text, {"data": stored.parts()["data"].raw})
    >>> bool((tensor.numpy() == stored.numpy()).all())
    True
    """
    spec = read_description(description, name)
    (encoding,) = spec.encodings
    stored_parts = {}
    for role, part in encoding.parts.items():
        buffer = memoryview(parts[role]).cast("B") if role in parts else None
        if buffer is None or buffer.nbytes != part.nbytes:
            raise TensorError(
                "a part does not fit its description",
                tensor=name,
                part=role,
                code="size",
                expected=f"{part.nbytes} bytes for {part.dtype} {list(part.shape)}",
                found="nothing" if buffer is None else f"{buffer.nbytes} bytes",
            )
        stored_parts[role] = evolve(part, data=buffer.toreadonly())
    spec = evolve(spec, encodings=(evolve(encoding, parts=stored_parts),))
    index = Index(format="memory", version="", files=(), tensors={name: spec})
    return File(BytesSource(b"", "<memory>"), index, registry or installed())[name]


def _codec(codec: CodecSpec) -> list[Any]:
    params = {key: _to_json(value, codec.id, key) for key, value in codec.params.items()}
    return [codec.id, params, None if codec.inner is None else _codec(codec.inner)]


def _read_codec(value: Any) -> CodecSpec:
    codec_id, params, inner = value
    if not isinstance(codec_id, str) or not isinstance(params, dict):
        raise TypeError(f"not a codec: {value!r:.60}")
    read = {key: _from_json(item) for key, item in params.items()}
    return CodecSpec(codec_id, read, None if inner is None else _read_codec(inner))


def _to_json(value: Any, codec: str, key: str) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {BYTES: b64encode(value).decode()}
    if isinstance(value, tuple):
        return {TUPLE: [_to_json(item, codec, key) for item in value]}
    if isinstance(value, list):
        return [_to_json(item, codec, key) for item in value]
    if isinstance(value, Mapping):
        return {MAPPING: {str(name): _to_json(item, codec, key) for name, item in value.items()}}
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    raise CodecError(
        f"the parameter {key!r} of {codec} is not plain data", found=type(value).__name__, code="description"
    )


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == BYTES:
        return b64decode(content, validate=True)
    if kind == TUPLE:
        return tuple(_from_json(item) for item in content)
    return {name: _from_json(item) for name, item in content.items()}


def _shape(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(size) is not int or size < 0 for size in value):
        raise TypeError(f"not a shape: {value!r:.60}")
    return tuple(value)


def _dtype(value: Any) -> str:
    if value not in dtypes.NAMES:
        raise ValueError(f"not a dtype: {value!r:.60}")
    return str(value)
