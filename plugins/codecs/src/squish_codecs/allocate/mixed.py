"""Mixed precision: sensitive tensors stay unquantized, the others get a width by their error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, cast

import numpy as np
from attrs import evolve, frozen

from squish_core.api import (
    AliasResolver,
    Allocator,
    Codec,
    CodecError,
    CodecSpec,
    ErrorCode,
    ModelFacts,
    PanelReader,
    Params,
    Parts,
    SquishError,
    TensorSpec,
    dtypes,
    full,
    kind_of,
)

from ..affine.codec import Affine
from ..checks import refuse
from ..palette.codec import Palette

Array = np.ndarray
WIDTHS = (2, 3, 4, 8)
SAMPLE = 1 << 20
"""Values per tensor for measuring errors, sampled from all panels."""
CODECS: dict[str, type[Codec]] = {"affine": Affine, "palette": Palette}


class Mixed(Allocator):
    """Choose int2, int3, int4 or int8 (short names of the target format) for each matrix.

    bits      4     one width for all; or
    bpw             mean bits per weight of the quantized tensors, scales included: each tensor starts at the narrowest
                    width, then the budget goes to the largest error reduction per bit (squared error relative to the
                    tensor's energy, measured on a sample)
    outliers  20    keep a tensor with a value above this multiple of its row's mean magnitude; 0: never; 100: only
                    super weights

    Always kept: embeddings, norms, heads, routers, convolutions and biases by name (`kind_of`: most sensitive to
    rounding, or too small to matter), and vectors. With `bpw`, embeddings that are the head, too (no tensor is a
    head of its own), are quantized like the others: they may be half of a small model. Later rules with a pattern
    override the choice.
    Sources: Squish's --outlier-threshold and --super-weight; HAWQ for the allotment.
    """

    def choose(
        self, specs: Sequence[TensorSpec], params: Params, values: PanelReader, short: AliasResolver, model: ModelFacts
    ) -> Mapping[str, CodecSpec | str]:
        settings = _check_params(params)
        widths = _candidate_widths(settings)
        encodings = {width: codec for width in widths if (codec := _short(short, width)) is not None}
        if not encodings:
            raise CodecError(
                "the target format does not have this width",
                found=", ".join(f"int{width}" for width in widths),
                code=ErrorCode.PARAMS,
                hint="`squish formats ID` lists its short names.",
            )
        choices: dict[str, CodecSpec | str] = {}
        matrices = []
        is_tied = "bpw" in settings and not any(kind_of(name) == "head" for name in model.names)
        for spec in specs:
            reason = _reason(spec, "embedding" if is_tied else None) or _outlier(values(spec), settings["outliers"])
            if reason:
                choices[spec.name] = reason
                continue
            options = [_option(spec, codec) for codec in encodings.values()]
            matrices.append((spec, [option for option in options if option is not None]))
        if "bpw" not in settings:
            return {**choices, **{spec.name: encodings[settings["bits"]] for spec, _ in matrices}}
        candidates = {spec.name: _measure_errors(spec, options, values) for spec, options in matrices if options}
        choices |= {spec.name: "no width fits the shape" for spec, options in matrices if not options}
        elements = sum(spec.elements for spec, options in matrices if options)
        return {**choices, **_allot(candidates, elements, settings["bpw"])}


@frozen
class Option:
    """A candidate width for a tensor, with its size and error."""

    codec: CodecSpec
    bits: int
    error: float = 0.0


def _check_params(params: Params) -> dict[str, Any]:
    options: dict[str, Any] = {"outliers": 20.0}
    for name, value in params.items():
        limits = {"bits": (2, 8), "bpw": (1, 16), "outliers": (0, 1e30)}.get(name)
        if limits is None:
            raise refuse(name, "bits, bpw or outliers", value)
        if not isinstance(value, (int, float)) or not limits[0] <= value <= limits[1]:
            raise refuse(name, f"{limits[0]} to {limits[1]:g}", value)
        options[name] = value
    if "bits" in options and "bpw" in options:
        raise CodecError("bits and bpw are mutually exclusive", code=ErrorCode.PARAMS)
    if "bpw" not in options:
        options.setdefault("bits", 4)
    return options


def _candidate_widths(options: Mapping[str, Any]) -> tuple[int, ...]:
    return WIDTHS if "bpw" in options else (options["bits"],)


def _short(short: AliasResolver, width: int) -> CodecSpec | None:
    try:
        return short(f"int{width}")
    except SquishError:
        return None


def _reason(spec: TensorSpec, quantized: str | None = None) -> str:
    """Return why a tensor is kept, by its name and shape, unless it is of the kind `quantized`."""
    if len(spec.shape) < 2 or not spec.elements:
        return "vectors are not quantized"
    if not spec.dtype.startswith(("f", "bf")):
        return f"only float tensors are quantized, not {spec.dtype}"
    kind = kind_of(spec.name)
    return f"sensitive ({kind})" if kind and kind != quantized else ""


def _outlier(panels: Iterable[Array], most: float) -> str:
    """Return why a tensor is kept, by the ratio of a row's largest to its mean magnitude."""
    if not most:
        return ""
    for panel in panels:
        rows = np.abs(panel.reshape(-1, panel.shape[-1]).astype(np.float32, copy=False))
        ratio = float((rows.max(axis=1) / (rows.mean(axis=1) + 1e-8)).max(initial=0))
        if ratio > most:
            return f"outliers, {ratio:.0f} times the mean of their row"
    return ""


def _option(spec: TensorSpec, codec: CodecSpec) -> Option | None:
    """Return the size of a tensor in an encoding; None if its shape does not fit."""
    try:
        codec_type = CODECS[codec.id]
        params = codec_type.params_for(spec, codec.params)
        layouts = codec_type.from_params(params).parts(spec).values()
        return Option(CodecSpec(codec.id, params), 8 * sum(dtypes.nbytes(*part) for part in layouts))
    except (SquishError, KeyError):
        return None


def _measure_errors(spec: TensorSpec, options: list[Option], values: PanelReader) -> list[Option]:
    """Return the options with their error: relative to the energy of the sample, times the tensor's elements."""
    step = max(1, spec.elements // SAMPLE)
    errors, energy = [0.0] * len(options), 0.0
    for panel in values(spec):
        rows = panel[: max(1, len(panel) // step)].astype(np.float32, copy=False)
        energy += float(np.square(rows, dtype=np.float64).sum())
        part = evolve(spec, shape=rows.shape, dtype="f32")
        for index, option in enumerate(options):
            codec = CODECS[option.codec.id].from_params(option.codec.params)
            parts = cast(Parts, codec.encode(np.ascontiguousarray(rows)))
            out = np.empty(rows.shape, np.float32)
            codec.decode(parts, part, region=full(rows.shape), out=out)
            errors[index] += float(np.square(out - rows, dtype=np.float64).sum())
    scale = spec.elements / (energy or 1.0)
    return [evolve(option, error=scale * error) for option, error in zip(options, errors)]


def _allot(candidates: Mapping[str, list[Option]], elements: int, bpw: float) -> dict[str, CodecSpec]:
    """Choose an option for each tensor: upgrade by error reduction per bit until the budget is spent."""
    least = sum(options[0].bits for options in candidates.values())
    budget = bpw * elements - least
    if budget < 0:
        raise CodecError(
            "bpw is below the narrowest widths",
            expected=f"{least / elements:.2f} bits per weight or more",
            found=f"bpw={bpw}",
            code=ErrorCode.PARAMS,
            hint="Raise bpw.",
        )
    current = dict.fromkeys(candidates, 0)
    queue = [upgrade for name in candidates if (upgrade := _upgrade(name, candidates[name], 0, budget))]
    heapify(queue)
    while queue:
        _, name, index = heappop(queue)
        options, current_index = candidates[name], current[name]
        extra = options[index].bits - options[current_index].bits
        if extra <= budget:
            current[name] = current_index = index
            budget -= extra
        if upgrade := _upgrade(name, options, current_index, budget):
            heappush(queue, upgrade)
    return {name: candidates[name][index].codec for name, index in current.items()}


def _upgrade(name: str, options: list[Option], current_index: int, budget: float) -> tuple[float, str, int] | None:
    """Return the affordable wider option with the largest error reduction per bit, negated for the heap."""
    upgrades = []
    for index in range(current_index + 1, len(options)):
        extra = options[index].bits - options[current_index].bits
        gain = options[current_index].error - options[index].error
        if 0 < extra <= budget and gain > 0:
            upgrades.append((-gain / extra, name, index))
    return min(upgrades, default=None)
