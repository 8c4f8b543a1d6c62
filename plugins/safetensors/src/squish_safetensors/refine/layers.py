"""Formats inside safetensors: layers stored as several tensors."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from attrs import evolve

from squish_core.api import (
    DENSE,
    Codec,
    CodecError,
    CodecSpec,
    Encoding,
    ErrorCode,
    FormatError,
    Index,
    Limits,
    OutgoingTensor,
    Part,
    Problem,
    SquishError,
    Stream,
    TensorSpec,
    check_shape,
)

from .files import CheckpointFiles
from .parts import StoredParts, stored_part

_ANY_RANK = Limits(rank=sys.maxsize)
"""No limit: `refine_layers` checks the rank with the limits of the caller."""
LayerReader = Callable[[str, StoredParts], TensorSpec]
"""Returns a layer's tensor from the layer's name and its parts by suffix; raises SquishError if they do not match."""


def collect_layers(
    tensors: Mapping[str, TensorSpec],
    suffixes: Iterable[str],
    *,
    bases: Sequence[str] = (".weight",),
    beside: Iterable[str] = (),
    packed: Iterable[str] = (),
) -> dict[str, dict[str, Part]]:
    """Return layers by name, with their parts by suffix.

    `<layer><base>` without any of `suffixes` is a dense tensor, unless its dtype is one of `packed`, whose values are
    meaningless without the other parts. Suffixes `beside` belong to an existing layer, or else are dense tensors.

    Parameters
    ----------
    tensors : mapping of str to TensorSpec
        The stored tensors.
    suffixes : iterable of str
        Suffixes that only the parts of a quantized layer have, such as ``".scales"``.
    bases : sequence of str
        Suffixes of the weights themselves.
    beside : iterable of str
        Suffixes of tensors that may accompany a layer.
    packed : iterable of str
        Dtypes of codes.

    Returns
    -------
    dict of str to dict
        Layer -> suffix -> part.

    Examples
    --------
    >>> tensors = {
    ...     name: TensorSpec(name=name, shape=(2,), dtype="u8", extras={"data": Part(dtype="u8", shape=(2,))})
    ...     for name in ("norm.weight", "up.weight", "up.scales")
    ... }
    >>> layers = collect_layers(tensors, (".scales",))
    >>> {layer: list(parts) for layer, parts in layers.items()}
    {'up': ['.weight', '.scales']}
    """
    key = frozenset(suffixes)
    all_suffixes = sorted({*key, *beside, *bases}, key=len, reverse=True)
    pattern = re.compile(f"(.*?)({'|'.join(map(re.escape, all_suffixes))})", re.DOTALL)
    layers: dict[str, dict[str, Part]] = {}
    for name, spec in tensors.items():
        split = pattern.fullmatch(name)
        if split:
            layers.setdefault(split[1], {})[split[2]] = stored_part(spec)
    return {
        layer: parts
        for layer, parts in layers.items()
        if key.intersection(parts) or any(base in parts and parts[base].dtype in packed for base in bases)
    }


def refine_layers(
    files: CheckpointFiles,
    name: str,
    version: str,
    layers: Mapping[str, StoredParts],
    make: LayerReader,
    problems: Iterable[Problem],
    *,
    bases: Sequence[str] = (".weight",),
) -> Index:
    """Return the Index with each layer's tensors replaced by one tensor, in the place of the first of them.

    A layer that `make` refuses becomes a tensor `<layer><base>` without an encoding (by default with the first base):
    its parts are extras, and a Problem has the reason.

    Parameters
    ----------
    files : CheckpointFiles
        The Index of the stored tensors, with its source and limits.
    name, version : str
        Format and version of the new Index.
    layers : mapping of str to mapping
        The parts of each layer, as `collect_layers` returns them.
    make : callable
        Returns the tensor of a layer.
    problems : iterable of Problem
        Problems to add to those of the Index.
    bases : sequence of str
        Suffixes of the weights themselves.

    Returns
    -------
    Index

    Examples
    --------
    >>> def embeddings(layer, parts):
    ...     return TensorSpec(name=layer + ".weight", shape=(8, 32), dtype="f32")
    >>> with squish.open("model.safetensors") as file:
    ...     files = CheckpointFiles(file.index, file.source, Limits())
    ...     layers = collect_layers(file.index.tensors, ("_embd.weight",))
    ...     index = refine_layers(files, "example", "1", layers, embeddings, ())
    >>> index.format, sorted(index.tensors)
    ('example', ['blk.0.ffn_norm.weight', 'blk.0.ffn_up.weight', 'token.weight'])
    """
    index = files.index
    owner = {layer + suffix: layer for layer, parts in layers.items() for suffix in parts}
    findings = list(problems)
    tensors: dict[str, TensorSpec] = {}
    complete: set[str] = set()
    for stored_name, original in index.tensors.items():
        layer = owner.get(stored_name)
        if layer in complete:
            continue
        spec = original
        if layer is not None:
            complete.add(layer)
            base = next((suffix for suffix in bases if suffix in layers[layer]), bases[0])
            spec = _layer_tensor(make, layer, layers[layer], layer + base, findings, files.limits)
        if tensors.setdefault(spec.name, spec) is not spec:
            message = "stored twice, quantized and dense; the second one is ignored"
            findings.append(Problem(code=ErrorCode.DUPLICATE, severity="error", where=spec.name, message=message))
    return evolve(index, format=name, version=version, tensors=tensors, problems=(*index.problems, *findings))


def _layer_tensor(
    make: LayerReader, layer: str, parts: StoredParts, name: str, problems: list[Problem], limits: Limits
) -> TensorSpec:
    try:
        spec = make(layer, parts)
        check_shape(spec.shape, limits, tensor=spec.name)
        return spec
    except SquishError as error:
        code = error.code or "layer"
        location = error.part if error.tensor in (None, name) else error.where()
        reason = f"{location}: {error.reason()}" if location else error.reason()
        problem = Problem(code=code, severity="error", where=name, message=reason)
        problems.append(problem)
        first = next(iter(parts.values()))
        extras = {suffix.lstrip(".") or "data": part for suffix, part in parts.items()}
        return TensorSpec(
            name=name,
            shape=first.shape,
            dtype="unknown",
            extras=extras,
            problem=reason.rstrip("."),
            undeclared=problem if code == ErrorCode.UNDECLARED_SCALES else None,
        )


def build_tensor(
    name: str,
    shape: Iterable[int],
    spec: CodecSpec,
    codec: type[Codec] | tuple[type[Codec], ...],
    parts: Mapping[str, tuple[str, Part]],
    extras: StoredParts | None = None,
    dtype: str = "f32",
) -> TensorSpec:
    """Return a tensor with one encoding, after a check of its parts.

    Parameters
    ----------
    name : str
        Name of the tensor.
    shape : iterable of int
        Its logical shape.
    spec : CodecSpec
        The codec and its parameters.
    codec : type or tuple of type
        The class that `spec` names, which declares dtype and shape of each part; of a codec with an inner one both
        classes, the outer one first.
    parts : mapping of str to tuple
        Role -> name of the stored field, and its part.
    extras : mapping of str to Part, optional
        Other stored parts of the layer.
    dtype : str
        Dtype of the values.

    Returns
    -------
    TensorSpec

    Raises
    ------
    FormatError
        If dtype or shape of a part differ from what the codec requires; it names the field.

    Examples
    --------
    >>> from squish_core.codecs.dense import Dense
    >>> part = Part(dtype="f32", shape=(2, 3))
    >>> build_tensor("up.weight", (2, 3), DENSE, Dense, {"data": ("weight", part)}).shape
    (2, 3)
    """
    logical = check_shape(tuple(shape), _ANY_RANK, tensor=name)
    tensor = TensorSpec(name=name, shape=logical, dtype=dtype)
    try:
        declared = _bound(spec, *(codec if isinstance(codec, tuple) else (codec,))).parts(tensor)
    except CodecError as error:
        raise FormatError(
            f"does not match the declared quantization: {error.message}",
            tensor=name,
            expected=error.expected,
            found=error.found,
            code=error.code,
        ) from None
    for role, (kind, dims) in declared.items():
        field, part = parts[role]
        if (part.dtype, part.shape) != (kind, tuple(dims)):
            raise FormatError(
                "does not match the declared quantization",
                tensor=name,
                part=field,
                expected=f"{kind} {list(dims)}",
                found=f"{part.dtype} {list(part.shape)}",
                code="shape",
                hint="The configuration and the tensors belong to different models, or a file is damaged.",
            )
    stored = {role: parts[role][1] for role in declared}
    encodings = (Encoding(codec=spec, parts=stored),)
    return TensorSpec(name=name, shape=logical, dtype=dtype, encodings=encodings, extras=extras or {})


def _bound(spec: CodecSpec, codec: type[Codec], *inner: type[Codec]) -> Codec:
    return codec.from_params(spec.params, None if spec.inner is None else _bound(spec.inner, *inner))


def unmatched_override(override: str) -> Problem:
    """Return the warning about layer settings that match no quantized layer.

    Parameters
    ----------
    override : str
        Name or pattern of the layer in the configuration.

    Returns
    -------
    Problem
        With code ``"override"``.

    Examples
    --------
    >>> unmatched_override("lm_head").where
    'lm_head'
    """
    message = "settings for a layer that is not quantized"
    return Problem(code="override", severity="note", where=override[:80], message=message)


def lower_layer(
    tensor: OutgoingTensor, fields: Iterable[tuple[str, str, tuple[int, ...], str | bytes]]
) -> list[OutgoingTensor]:
    r"""Return the stored tensors of a layer to write.

    Parameters
    ----------
    tensor : OutgoingTensor
        The tensor in the target's encoding.
    fields : iterable of tuple
        (name, dtype, shape, data) of each stored tensor; the data are the role of a part, or bytes.

    Returns
    -------
    list of OutgoingTensor

    Examples
    --------
    >>> tensor = OutgoingTensor(TensorSpec(name="up.weight", shape=(2,), dtype="f32"), {})
    >>> [bits] = lower_layer(tensor, [("up.bits", "u8", (1,), b"\x04")])
    >>> bits.spec.name, bits.spec.shape, list(bits.parts)
    ('up.bits', (1,), ['data'])
    """
    arrays = []
    for name, dtype, shape, data in fields:
        part = Part(dtype=dtype, shape=shape)
        spec = TensorSpec(name=name, shape=shape, dtype=dtype, encodings=(Encoding(codec=DENSE, parts={"data": part}),))
        stream = tensor.parts[data] if isinstance(data, str) else Stream(part, partial(iter, (data,)))
        arrays.append(OutgoingTensor(spec, {"data": stream}))
    return arrays
