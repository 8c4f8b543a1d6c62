"""Mixed precision: sensitive tensors stay unquantized, the others get an encoding by its error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from squish_core.api import (
    AliasResolver,
    AllocationTarget,
    Allocator,
    CodecError,
    CodecSpec,
    EncodingOption,
    ErrorCode,
    ModelFacts,
    PanelReader,
    Params,
    SquishError,
    TensorSpec,
    kind_of,
    parse_bytes,
)

from ..checks import refuse

Array = np.ndarray
UNCHANGED = "it fits the size unchanged"
_LIMITS = {"bits": (2, 8), "bpw": (1, 16), "outliers": (0, 1e30)}


class Mixed(Allocator):
    """Choose an encoding for each matrix: one width, or those with the least error within a budget.

    bits      4     int2, int3, int4 or int8 for all (short names of the target format); or
    bpw             mean bits per weight of the quantized tensors, scales included; or
    size            bytes of all files of the target, such as 12GB. With a budget, each tensor gets one of all encodings
                    that the target stores and an encoder here writes: the budget goes to the largest error reduction
                    per byte (squared error relative to the tensor's energy, weighed by activation statistics if there
                    are any, measured on a sample)
    outliers  20    keep a tensor with a value above this multiple of its row's mean magnitude; 0: never, as with
                    `size`; 100: only super weights

    Always kept: embeddings, norms, heads, routers, convolutions and biases by name (`kind_of`: most sensitive to
    rounding, or too small to matter), and vectors. With `bpw`, embeddings that are the head, too (no tensor is a
    head of its own), are quantized like the others: they may be half of a small model. With `size`, embeddings and
    heads are, too, and any tensor may stay unchanged. Later rules with a pattern override the choice.
    Sources: Squish's --outlier-threshold and --super-weight; HAWQ for the allotment.
    """

    def choose(
        self, specs: Sequence[TensorSpec], params: Params, values: PanelReader, short: AliasResolver, model: ModelFacts
    ) -> Mapping[str, CodecSpec | str]:
        settings = _check_params(params)
        is_tied = not any(kind_of(name) == "head" for name in model.names)
        quantized = (
            ("embedding", "head") if "size" in settings else ("embedding",) if "bpw" in settings and is_tied else ()
        )
        choices: dict[str, CodecSpec | str] = {}
        matrices = []
        for spec in specs:
            if reason := _reason(spec, quantized) or _outlier(values, spec, settings["outliers"]):
                choices[spec.name] = reason
            else:
                matrices.append(spec)
        if "bits" in settings:
            codec = _width(short, settings["bits"])
            return {**choices, **{spec.name: codec for spec in matrices}}
        options = {name: list(found) for name, found in model.target.options(matrices).items()}
        if "size" in settings:
            return {**choices, **_allot_size(options, choices, settings["size"], model.target)}
        encodings = {name: [each for each in found if each.codec is not None] for name, found in options.items()}
        choices |= {name: "no encoding fits the shape" for name, found in encodings.items() if not found}
        elements = sum(spec.elements for spec in matrices if encodings[spec.name])
        return {
            **choices,
            **_allot_mean({name: found for name, found in encodings.items() if found}, elements, settings["bpw"]),
        }


def _check_params(params: Params) -> dict[str, Any]:
    options: dict[str, Any] = {"outliers": 0.0 if "size" in params else 20.0}
    for name, value in params.items():
        if name == "size":
            if (nbytes := parse_bytes(str(value))) is None:
                raise refuse(name, "bytes, such as 12GB or 700MiB", value)
            options[name] = nbytes
            continue
        if (limits := _LIMITS.get(name)) is None:
            raise refuse(name, "bits, bpw, size or outliers", value)
        if not isinstance(value, (int, float)) or not limits[0] <= value <= limits[1]:
            raise refuse(name, f"{limits[0]} to {limits[1]:g}", value)
        options[name] = value
    if len(goals := options.keys() & {"bits", "bpw", "size"}) > 1:
        raise CodecError(f"{' and '.join(sorted(goals))} are mutually exclusive", code=ErrorCode.PARAMS)
    return options if goals else {**options, "bits": 4}


def _width(short: AliasResolver, width: int) -> CodecSpec:
    try:
        return short(f"int{width}")
    except SquishError:
        raise CodecError(
            "the target format does not have this width",
            found=f"int{width}",
            code=ErrorCode.PARAMS,
            hint="`squish formats ID` lists its short names.",
        ) from None


def _reason(spec: TensorSpec, quantized: Sequence[str]) -> str:
    """Return why a tensor is kept, by its name and shape, unless it is of one of the kinds `quantized`."""
    if len(spec.shape) < 2 or not spec.elements:
        return "vectors are not quantized"
    if not spec.dtype.startswith(("f", "bf")):
        return f"only float tensors are quantized, not {spec.dtype}"
    kind = kind_of(spec.name)
    return f"sensitive ({kind})" if kind and kind not in quantized else ""


def _outlier(values: PanelReader, spec: TensorSpec, most: float) -> str:
    """Return why a tensor is kept, by the ratio of a row's largest to its mean magnitude."""
    panels: Iterable[Array] = values(spec) if most else ()
    for panel in panels:
        rows = np.abs(panel.reshape(-1, panel.shape[-1]).astype(np.float32, copy=False))
        ratio = float((rows.max(axis=1) / (rows.mean(axis=1) + 1e-8)).max(initial=0))
        if ratio > most:
            return f"outliers, {ratio:.0f} times the mean of their row"
    return ""


def _allot_mean(options: Mapping[str, list[EncodingOption]], elements: int, bpw: float) -> dict[str, CodecSpec | str]:
    """Choose by a mean of bits per weight."""
    least = 8 * sum(min(each.nbytes for each in found) for found in options.values())
    if least > bpw * elements:
        raise CodecError(
            "bpw is below the narrowest encodings",
            expected=f"{least / elements:.2f} bits per weight or more",
            found=f"bpw={bpw}",
            code=ErrorCode.PARAMS,
            hint="Raise bpw.",
        )
    return _named(allot(options, int(bpw * elements / 8)))


def _allot_size(
    options: Mapping[str, list[EncodingOption]],
    kept: Mapping[str, CodecSpec | str],
    size: int,
    target: AllocationTarget,
) -> dict[str, CodecSpec | str]:
    """Choose by the bytes of the target; those beside the tensors (header, padding) depend a little on the choice."""
    chosen = allot(options, 0)
    total = least = target.size({**kept, **_named(chosen)})
    if least > size:
        raise CodecError(
            "the size cannot be reached",
            expected=f"size={least} or more",
            found=f"size={size}",
            code=ErrorCode.PARAMS,
            hint=f"Use size={least}, or let fewer tensors be kept by other rules.",
        )
    room = sum(each.nbytes for each in chosen.values()) + size - total
    while True:
        chosen = allot(options, room)
        total = target.size({**kept, **_named(chosen)})
        if total <= size:
            return _named(chosen)
        room = sum(each.nbytes for each in chosen.values()) + size - total


def _named(chosen: Mapping[str, EncodingOption]) -> dict[str, CodecSpec | str]:
    return {name: UNCHANGED if option.codec is None else option.codec for name, option in chosen.items()}


def allot(options: Mapping[str, Sequence[EncodingOption]], budget: int) -> dict[str, EncodingOption]:
    """Choose an option for each tensor, with the least sum of errors within a budget of bytes.

    Each tensor starts at its fewest bytes, whatever the budget; then the upgrade that reduces the error most per byte
    is taken, while one fits. As long as the best one fits, these are steps along the lower convex hulls of the tensors'
    options, and the sum is optimal for the bytes spent.
    """
    fronts = {name: _front(found) for name, found in options.items() if found}
    chosen = dict.fromkeys(fronts, 0)
    left = budget - sum(front[0].nbytes for front in fronts.values())
    queue = [upgrade for name, front in fronts.items() if (upgrade := _upgrade(name, front, 0, left))]
    heapify(queue)
    while queue:
        _, name, index = heappop(queue)
        front = fronts[name]
        extra = front[index].nbytes - front[chosen[name]].nbytes
        if extra <= left:
            chosen[name], left = index, left - extra
        if upgrade := _upgrade(name, front, chosen[name], left):
            heappush(queue, upgrade)
    return {name: fronts[name][index] for name, index in chosen.items()}


def _front(options: Iterable[EncodingOption]) -> list[EncodingOption]:
    """Return the options that no smaller one surpasses, by ascending bytes and falling error."""
    front: list[EncodingOption] = []
    for option in sorted(options, key=lambda each: (each.nbytes, each.error)):
        if not front or option.error < front[-1].error:
            front.append(option)
    return front


def _upgrade(name: str, front: Sequence[EncodingOption], current: int, left: int) -> tuple[float, str, int] | None:
    """Return the affordable larger option with the most error reduction per byte, negated for the heap."""
    start = front[current]
    steps = (
        ((option.error - start.error) / (option.nbytes - start.nbytes), name, index)
        for index, option in enumerate(front[current + 1 :], current + 1)
        if option.nbytes - start.nbytes <= left
    )
    return min(steps, default=None)
