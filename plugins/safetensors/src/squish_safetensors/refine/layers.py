"""Formats inside safetensors: layers stored as several tensors, and neighboring JSON files."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from attrs import evolve, frozen

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
    Source,
    SquishError,
    Stream,
    TensorSpec,
    check_shape,
    dtypes,
    load_json,
)

from ..folder import CONFIG_FILE, MAX_ENTRY, read_json

_ANY_RANK = Limits(rank=sys.maxsize)
"""No limit: `refine_layers` checks the rank with the limits of the caller."""
StoredParts = Mapping[str, Part]
LayerReader = Callable[[str, StoredParts], TensorSpec]
"""Returns a layer's tensor from the layer's name and its parts by suffix; raises SquishError if they do not match."""


@frozen
class CheckpointFiles:
    """Reads small parts and JSON assets of a safetensors Index."""

    index: Index
    source: Source
    limits: Limits

    def read(self, part: Part, label: str) -> bytes:
        """Read the bytes of a small part; `label` names it in errors."""
        return b"".join(
            self.file(segment.file).read(segment.offset, segment.length, label) for segment in part.segments
        )

    def json(self, name: str) -> dict[str, Any]:
        """Read the JSON object in an asset; {} if missing or unreadable (the container reports it)."""
        asset = self.index.assets.get(name)
        if asset is None:
            return {}
        try:
            return read_json(self.file(asset.segments[0].file), name, self.limits)
        except SquishError:
            return {}

    def file(self, number: int) -> Source:
        """Open a file of the Index by number."""
        name = self.index.files[number].name
        return self.source if not self.source.is_dir and name == self.source.filename else self.source.member(name)


def collect_layers(
    tensors: Mapping[str, TensorSpec], suffixes: Iterable[str], *, bases: Sequence[str] = (".weight",),
    beside: Iterable[str] = (), packed: Iterable[str] = (),
) -> dict[str, dict[str, Part]]:  # fmt: skip
    """Return layers by name, with their parts by suffix.

    `<layer><base>` without any of `suffixes` is a dense tensor, unless its dtype is one of `packed`, whose values are
    meaningless without the other parts. Suffixes `beside` belong to an existing layer, or else are dense tensors.
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
    }  # fmt: skip


def refine_layers(
    files: CheckpointFiles, name: str, version: str, layers: Mapping[str, StoredParts], make: LayerReader,
    problems: Iterable[Problem], *,
    bases: Sequence[str] = (".weight",),
) -> Index:  # fmt: skip
    """Return the Index with each layer's tensors replaced by one tensor, in the place of the first of them.

    A layer that `make` refuses becomes a tensor `<layer><base>` without an encoding (by default with the first base):
    its parts are extras, and a Problem has the reason.
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
            base = next((each for each in bases if each in layers[layer]), bases[0])
            spec = _layer_tensor(make, layer, layers[layer], layer + base, findings, files.limits)
        if tensors.setdefault(spec.name, spec) is not spec:
            message = "stored twice, quantized and dense; the second one is ignored"
            findings.append(Problem(code="duplicate", severity="error", where=spec.name, message=message))
    return evolve(index, format=name, version=version, tensors=tensors, problems=(*index.problems, *findings))


def _layer_tensor(
    make: LayerReader, layer: str, parts: StoredParts, name: str, problems: list[Problem], limits: Limits
) -> TensorSpec:  # fmt: skip
    try:
        spec = make(layer, parts)
        check_shape(spec.shape, limits, tensor=spec.name)
        return spec
    except SquishError as error:
        code = error.code or "layer"
        problems.append(Problem(code=code, severity="error", where=name, message=str(error.within(tensor=name))))
        first = next(iter(parts.values()))
        extras = {suffix.lstrip(".") or "data": part for suffix, part in parts.items()}
        return TensorSpec(
            name=name, shape=first.shape, dtype="unknown", extras=extras, problem=str(error).rstrip(".")
        )  # fmt: skip


def build_tensor(
    name: str, shape: Iterable[int], spec: CodecSpec, codec: Codec, parts: Mapping[str, tuple[str, Part]],
    extras: StoredParts | None = None, dtype: str = "f32",
) -> TensorSpec:  # fmt: skip
    """Return a tensor with the codec `spec`; `parts` maps roles to the name of the stored field and the part.

    FormatError names the field whose dtype or shape differs from what the codec requires.
    """
    logical = check_shape(tuple(shape), _ANY_RANK, tensor=name)
    tensor = TensorSpec(name=name, shape=logical, dtype=dtype)
    try:
        declared = codec.parts(tensor, spec.params)
    except CodecError as error:
        raise FormatError(
            f"does not match the declared quantization: {error.message}", tensor=name, expected=error.expected,
            found=error.found, code=error.code,
        ) from None  # fmt: skip
    for role, (kind, dims) in declared.items():
        field, part = parts[role]
        if (part.dtype, part.shape) != (kind, tuple(dims)):
            raise FormatError(
                "does not match the declared quantization", tensor=name, part=field, expected=f"{kind} {list(dims)}",
                found=f"{part.dtype} {list(part.shape)}", code="shape",
                hint="The configuration and the tensors belong to different models, or a file is damaged.",
            )  # fmt: skip
    stored = {role: parts[role][1] for role in declared}
    encodings = (Encoding(codec=spec, parts=stored),)
    return TensorSpec(name=name, shape=logical, dtype=dtype, encodings=encodings, extras=extras or {})


def require_part(parts: StoredParts, suffix: str, allowed: Iterable[str], *, rank: int | None = None) -> Part:
    """Return a required part with one of these dtypes; FormatError names it."""
    part = parts.get(suffix)
    field = suffix.lstrip(".")
    if part is None:
        raise FormatError(
            "missing tensor of a layer", part=field, expected=field,
            found=", ".join(each.lstrip(".") for each in parts), code=ErrorCode.MISSING,
            hint="A shard of the model may be missing.",
        )  # fmt: skip
    if part.dtype not in allowed or (rank is not None and len(part.shape) != rank):
        axes = "" if rank is None else f" with {rank} dimensions"
        raise FormatError(
            "wrong dtype or shape", part=field, expected=" or ".join(allowed) + axes,
            found=f"{part.dtype} {list(part.shape)}", code="dtype",
        )  # fmt: skip
    return part


def view_part(part: Part, dtype: str, shape: Iterable[int]) -> Part:
    """View a part's bytes with another dtype and shape of equal size."""
    if (part.dtype, part.shape) == (dtype, shape):
        return part
    view = evolve(part, dtype=dtype, shape=tuple(shape))
    if dtypes.bits(dtype) * dtypes.count(view.shape) != 8 * part.nbytes:
        raise FormatError(
            "the size does not match the declaration", expected=f"{dtype} {list(view.shape)}",
            found=f"{part.dtype} {list(part.shape)}", code="size",
        )  # fmt: skip
    return view


def unmatched_override(override: str) -> Problem:
    """Return the warning about layer settings that match no quantized layer."""
    message = "settings for a layer that is not quantized"
    return Problem(code="override", severity="note", where=override[:80], message=message)


def stored_part(spec: TensorSpec) -> Part:
    """Return the only part of a stored tensor, with the tensor's dtype even if the container has packed bytes."""
    parts = spec.encodings[0].parts if spec.encodings else spec.extras
    return next(iter(parts.values()))


def bare_parts(parts: StoredParts) -> dict[str, Part]:
    """Return parts without segments, as declared by a target's encoding."""
    return {role: Part(dtype=part.dtype, shape=part.shape) for role, part in parts.items()}


def lower_layer(
    tensor: OutgoingTensor, fields: Iterable[tuple[str, str, tuple[int, ...], str | bytes]]
) -> list[OutgoingTensor]:
    """Return the stored tensors of a layer to write; `fields` are (name, dtype, shape, role or bytes) of each."""
    arrays = []
    for name, dtype, shape, data in fields:
        part = Part(dtype=dtype, shape=shape)
        spec = TensorSpec(name=name, shape=shape, dtype=dtype, encodings=(Encoding(codec=DENSE, parts={"data": part}),))
        stream = tensor.parts[data] if isinstance(data, str) else Stream(part, partial(iter, (data,)))
        arrays.append(OutgoingTensor(spec, {"data": stream}))
    return arrays


def with_config(assets: Mapping[str, bytes], change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, bytes]:
    """Return the assets with their config.json (or {} without one) changed by `change`.

    An unchanged config.json keeps its bytes, and an empty one is not created.
    """
    config = read_config(assets.get(CONFIG_FILE, b"{}"))
    changed = change(config)
    if changed == config and (CONFIG_FILE in assets or not config):
        return dict(assets)
    return {**assets, CONFIG_FILE: (json.dumps(changed, ensure_ascii=False, indent=4) + "\n").encode()}


def read_config(raw: bytes) -> dict[str, Any]:
    """Read the object in a config.json; FormatError if unreadable."""
    try:
        return load_json(raw, CONFIG_FILE, Limits(), piece=MAX_ENTRY, constants=True)
    except SquishError as error:
        raise FormatError(
            f"cannot read the source's {CONFIG_FILE}: {error.message}", part=CONFIG_FILE, offset=error.offset,
            expected=error.expected, found=error.found, code="json", hint="Correct it, or download it again.",
        ) from None  # fmt: skip
