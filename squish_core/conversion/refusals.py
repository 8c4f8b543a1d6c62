"""The error for tensors whose codes a target cannot store: by codec, with the rule that would convert them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from math import prod

from squish_core.codecs.regions import sizes
from squish_core.codes import ErrorCode
from squish_core.conversion.panels import EncodedPanels
from squish_core.conversion.step import Step
from squish_core.display.tables import counted
from squish_core.errors import Problem, SquishError, TensorError
from squish_core.file import File
from squish_core.model import CodecSpec, TensorSpec

SHOWN_PATTERNS = 3
"""Maximum number of patterns in a hint; if more are needed, it shows the one for all tensors."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
MEASURED_PANELS = 16
"""Panels that are encoded to measure the error of the nearest codes: a second or less."""
Attempt = Callable[[TensorSpec, CodecSpec], Step]


def refused_codes(
    file: File, refusals: Sequence[tuple[TensorSpec, SquishError]], specs: Sequence[TensorSpec],
    aliases: Collection[str], attempt: Attempt,
) -> TensorError:  # fmt: skip
    """The error for tensors that the target cannot hold as they are stored.

    `aliases` are short names of the target's encodings, `attempt` is what encoding a tensor as one of them would be.
    """
    groups: dict[str, list[tuple[TensorSpec, SquishError]]] = {}
    for spec, error in refusals:
        groups.setdefault(_stored_as(spec), []).append((spec, error))
    findings = [
        Problem(code=ErrorCode.REFUSED, severity="error", where=codec, message=_group_text(group))
        for codec, group in groups.items()
    ]  # fmt: skip
    first, error = refusals[0]
    message = error.message
    if len(refusals) > 1:
        details = "; ".join(f"{finding.where}: {finding.message}" for finding in findings)
        message += f"; of {counted(len(specs), 'tensor')} it cannot hold {len(refusals)}: {details}"
    patterns = _patterns([spec.name for spec, _ in refusals], len(specs))
    hints = [f"Ask for their values with {_rules(patterns, 'bf16')}"]
    for codec, group in groups.items():
        if (nearest := _nearest([spec for spec, _ in group], aliases, attempt)) is not None:
            name, steps = nearest
            own = patterns if len(groups) == 1 else _patterns([spec.name for spec, _ in group], len(specs))
            hints.append(
                f"for the nearest codes to {codec} with {_rules(own, name)} and requantize=True "
                f"({steps[0].bits:.3g} bits a weight, {_bound(file, steps)})"
            )  # fmt: skip
    combined = TensorError(
        message, tensor=first.name, found=error.found, code=ErrorCode.REFUSED, hint=f"{', or '.join(hints)}."
    )
    combined.findings = tuple(findings)
    return combined


def _group_text(group: Sequence[tuple[TensorSpec, SquishError]]) -> str:
    spec, _ = group[0]
    more = f" and {len(group) - 1} more" if len(group) > 1 else ""
    return f"{counted(len(group), 'tensor')} of {_bits(spec):.3g} bits a weight ({spec.name}{more})"


def _stored_as(spec: TensorSpec) -> str:
    codec = spec.encodings[0].codec
    return spec.dtype if codec.id == "dense" else codec.id


def _bits(spec: TensorSpec) -> float:
    return 8 * spec.encodings[0].stored / max(spec.elements, 1)


def _patterns(names: Sequence[str], total: int) -> list[str]:
    """Patterns that match these names, with `*` for their numbers; `*` for all tensors or too many patterns."""
    patterns = list(dict.fromkeys(_NUMBER.sub("*", name) for name in names))
    return ["*"] if len(names) == total or len(patterns) > SHOWN_PATTERNS else patterns


def _rules(patterns: Sequence[str], encoding: str) -> str:
    return " ".join(f"encode='{pattern}={encoding}'" for pattern in patterns)


def _bound(file: File, steps: Sequence[Step]) -> str:
    """The largest error of these encodings: of all values, or of the first ones if there are many."""
    unknown = "the error is measured while writing"
    if file.source.is_remote:
        return unknown
    largest, values, left = 0.0, 0, MEASURED_PANELS
    for step in steps:
        panels = EncodedPanels(file, step, None)
        regions = list(islice(panels.regions(), left))
        try:
            errors = [distance.max_error for _, distance, _ in panels.measured(regions) if distance is not None]
        except SquishError:  # what convert reports when it encodes this tensor
            return unknown
        largest, values, left = (
            max(largest, *errors),
            values + sum(prod(sizes(region)) for region in regions),
            left - len(regions),
        )
        if left <= 0:
            break
    extent = "values" if values == sum(step.spec.elements for step in steps) else f"the first {values:,} values"
    return f"{extent} differ by at most {largest:.3g}"


def _nearest(group: Sequence[TensorSpec], aliases: Collection[str], attempt: Attempt) -> tuple[str, list[Step]] | None:
    """The short name of the target's codes with the number of bits nearest to the tensors', and their encoding."""
    bits, steps = _bits(group[0]), {}
    for name in aliases:
        try:
            step = attempt(group[0], CodecSpec(name))
        except SquishError:
            continue
        if step.codec.id != "dense" and step.is_lossy:
            steps[name] = step
    for name in sorted(steps, key=lambda name: (abs(bits - steps[name].bits), name)):
        try:
            return name, [steps[name], *(attempt(spec, CodecSpec(name)) for spec in group[1:])]
        except SquishError:  # codes that some of the tensors cannot have
            continue
    return None
