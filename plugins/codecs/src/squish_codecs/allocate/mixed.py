"""Mixed precision: sensitive tensors stay as they are, the others get widths by what they lose."""

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
)  # fmt: skip

from ..affine.codec import Affine
from ..checks import refuse
from ..palette.codec import Palette

Array = np.ndarray
WIDTHS = (2, 3, 4, 8)
SAMPLE = 1 << 20
"""Values of a tensor on which errors are measured, in panels spread over it."""
CODECS: dict[str, type[Codec]] = {"affine": Affine, "palette": Palette}


class Mixed(Allocator):
    """One of int2, int3, int4 and int8 (short names of the target format) for each matrix.

    bits      4     the width of all; or
    bpw             mean bits per weight of the tensors that are quantized, scales included: every tensor starts with
                    the narrowest width, and the budget goes where it takes away most error (squared, relative to the
                    tensor's energy, measured on a sample) for each bit
    outliers  20    a tensor with a value this many times its row's mean magnitude is kept; 0: never; 100: only for
                    super weights

    Kept without looking: embeddings, norms, heads, routers, convolutions and biases by their names (`kind_of`: they
    suffer most from rounding, or are too small to matter), and vectors. Later rules with a pattern win over all of
    this.
    Sources: Squish's --outlier-threshold and --super-weight; HAWQ for the allotment.
    """

    def choose(
        self, specs: Sequence[TensorSpec], params: Params, values: PanelReader, short: AliasResolver, model: ModelFacts
    ) -> Mapping[str, CodecSpec | str]:
        wanted = _checked(params)
        found = {width: codec for width in _widths(wanted) if (codec := _short(short, width)) is not None}
        if not found:
            raise CodecError(
                "the target format has no such width", found=", ".join(f"int{width}" for width in _widths(wanted)),
                code=ErrorCode.PARAMS, hint="`squish formats ID` shows its short names.",
            )  # fmt: skip
        chosen: dict[str, CodecSpec | str] = {}
        matrices = []
        for spec in specs:
            reason = _reason(spec) or _outlier(values(spec), wanted["outliers"])
            if reason:
                chosen[spec.name] = reason
                continue
            options = [_option(spec, codec) for codec in found.values()]
            matrices.append((spec, [option for option in options if option is not None]))
        if "bpw" not in wanted:
            return {**chosen, **{spec.name: found[wanted["bits"]] for spec, _ in matrices}}
        candidates = {spec.name: _measured(spec, options, values) for spec, options in matrices if options}
        chosen |= {spec.name: "no width fits its shape" for spec, options in matrices if not options}
        elements = sum(spec.elements for spec, options in matrices if options)
        return {**chosen, **_allotted(candidates, elements, wanted["bpw"])}


@frozen
class Option:
    """A width for a tensor: what it costs and what it loses."""

    codec: CodecSpec
    bits: int
    error: float = 0.0


def _checked(params: Params) -> dict[str, Any]:
    wanted: dict[str, Any] = {"outliers": 20.0}
    for name, value in params.items():
        limits = {"bits": (2, 8), "bpw": (1, 16), "outliers": (0, 1e30)}.get(name)
        if limits is None:
            raise refuse(name, "bits, bpw or outliers", value)
        if not isinstance(value, (int, float)) or not limits[0] <= value <= limits[1]:
            raise refuse(name, f"{limits[0]} to {limits[1]:g}", value)
        wanted[name] = value
    if "bits" in wanted and "bpw" in wanted:
        raise CodecError("bits and bpw exclude each other", code=ErrorCode.PARAMS)
    if "bpw" not in wanted:
        wanted.setdefault("bits", 4)
    return wanted


def _widths(wanted: Mapping[str, Any]) -> tuple[int, ...]:
    return WIDTHS if "bpw" in wanted else (wanted["bits"],)


def _short(short: AliasResolver, width: int) -> CodecSpec | None:
    try:
        return short(f"int{width}")
    except SquishError:
        return None


def _reason(spec: TensorSpec) -> str:
    """Why a tensor is kept, from its name and shape."""
    if len(spec.shape) < 2 or not spec.elements:
        return "a vector is not quantized"
    if not spec.dtype.startswith(("f", "bf")):
        return f"only float tensors are encoded, and it is {spec.dtype}"
    kind = kind_of(spec.name)
    return f"sensitive by its name ({kind})" if kind else ""


def _outlier(panels: Iterable[Array], most: float) -> str:
    """Why a tensor is kept, from its values: a row's largest magnitude against its mean."""
    if not most:
        return ""
    for panel in panels:
        rows = np.abs(panel.reshape(-1, panel.shape[-1]).astype(np.float32, copy=False))
        ratio = float((rows.max(axis=1) / (rows.mean(axis=1) + 1e-8)).max(initial=0))
        if ratio > most:
            return f"it has outliers, {ratio:.0f} times the mean of their row"
    return ""


def _option(spec: TensorSpec, codec: CodecSpec) -> Option | None:
    """What a tensor takes in an encoding; None where its shape does not fit."""
    try:
        implementation = CODECS[codec.id]()
        params = implementation.params_for(spec, codec.params)
        declared = implementation.parts(spec, params).values()
        return Option(CodecSpec(codec.id, params), 8 * sum(dtypes.nbytes(*part) for part in declared))
    except (SquishError, KeyError):
        return None


def _measured(spec: TensorSpec, options: list[Option], values: PanelReader) -> list[Option]:
    """The options with their errors: of the sampled panels, relative to their energy, times the tensor's elements."""
    step = max(1, spec.elements // SAMPLE)
    lost, energy = [0.0] * len(options), 0.0
    for panel in values(spec):
        rows = panel[: max(1, len(panel) // step)].astype(np.float32, copy=False)
        energy += float(np.square(rows, dtype=np.float64).sum())
        part = evolve(spec, shape=rows.shape, dtype="f32")
        for place, option in enumerate(options):
            codec = CODECS[option.codec.id]()
            made = cast(Parts, codec.encode(np.ascontiguousarray(rows), option.codec.params))
            out = np.empty(rows.shape, np.float32)
            codec.decode(made, part, option.codec.params, region=full(rows.shape), out=out)
            lost[place] += float(np.square(out - rows, dtype=np.float64).sum())
    scale = spec.elements / (energy or 1.0)
    return [evolve(option, error=scale * error) for option, error in zip(options, lost)]


def _allotted(candidates: Mapping[str, list[Option]], elements: int, bpw: float) -> dict[str, CodecSpec]:
    """The option of each tensor: upgrades by error taken away per bit, while the budget lasts."""
    least = sum(options[0].bits for options in candidates.values())
    budget = bpw * elements - least
    if budget < 0:
        raise CodecError(
            "the narrowest widths take more", expected=f"{least / elements:.2f} bits per weight or more",
            found=f"bpw={bpw}", code=ErrorCode.PARAMS, hint="Ask for more bits per weight.",
        )  # fmt: skip
    current = dict.fromkeys(candidates, 0)
    queue = [upgrade for name in candidates if (upgrade := _upgrade(name, candidates[name], 0, budget))]
    heapify(queue)
    while queue:
        _, name, place = heappop(queue)
        options, here = candidates[name], current[name]
        extra = options[place].bits - options[here].bits
        if extra <= budget:
            current[name] = here = place
            budget -= extra
        if upgrade := _upgrade(name, options, here, budget):
            heappush(queue, upgrade)
    return {name: candidates[name][place].codec for name, place in current.items()}


def _upgrade(name: str, options: list[Option], here: int, budget: float) -> tuple[float, str, int] | None:
    """The wider option that takes away most error per bit and fits the budget, with that as a negative number."""
    found = []
    for place in range(here + 1, len(options)):
        extra = options[place].bits - options[here].bits
        gain = options[here].error - options[place].error
        if 0 < extra <= budget and gain > 0:
            found.append((-gain / extra, name, place))
    return min(found, default=None)
