"""The error for tensors whose codes a target cannot store: by codec, with the rule that would convert them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from math import prod

from squish_core.codecs.regions import sizes
from squish_core.codes import ErrorCode
from squish_core.conversion.panels import EncodedPanels
from squish_core.conversion.patterns import patterns_of, templates_of
from squish_core.conversion.step import Step
from squish_core.errors import Problem, SquishError, TensorError
from squish_core.file import File
from squish_core.mapping.mapped import MappedFile
from squish_core.model import CodecSpec, TensorSpec
from squish_core.text import counted

SHOWN_PATTERNS = 3
"""Maximum number of kinds of names in a hint; with more, it shows `*`, and the matrices to keep."""
MEASURED_PANELS = 16
"""Panels that are encoded to measure the error of the nearest codes: a second or less."""
MAPPING = ("deinterleave", "heads", "interleave", "slice", "stack", "transpose")
"""Codecs that read a mapped tensor from the source's."""
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
        Problem(code=ErrorCode.REFUSED, severity="error", where=codec, message=_group_text(file, group))
        for codec, group in groups.items()
    ]  # fmt: skip
    first, error = refusals[0]
    message = error.message
    if len(refusals) > 1:
        details = "; ".join(f"{finding.where}: {finding.message}" for finding in findings)
        message += f"; of {counted(len(specs), 'tensor')} it cannot hold {len(refusals)}: {details}"
    values = _rules(_patterns([spec.name for spec, _ in refusals], specs), "bf16")
    nearest = _nearest_rules(
        file, {codec: [spec for spec, _ in group] for codec, group in groups.items()}, specs, aliases, attempt
    )
    exact = _rules(_patterns([spec.name for spec, _ in refusals], specs), "f32")
    exact = f", exactly with {exact}" if _is_exact([group[0][0] for group in groups.values()], attempt) else ""
    combined = TensorError(
        message, tensor=first.name, found=error.found, code=ErrorCode.REFUSED,
        hint=f"Ask for their values with {values}{exact}{nearest and ', or for '}{nearest}.",
    )  # fmt: skip
    combined.findings = tuple(findings)
    return combined


def _is_exact(specs: Sequence[TensorSpec], attempt: Attempt) -> bool:
    """Whether f32 has all values of these tensors."""
    try:
        return not any(attempt(spec, CodecSpec("f32")).is_lossy for spec in specs)
    except SquishError:
        return False


def _nearest_rules(
    file: File, groups: Mapping[str, list[TensorSpec]], specs: Sequence[TensorSpec], aliases: Collection[str],
    attempt: Attempt,
) -> str:  # fmt: skip
    """The rules that encode each group as the nearest codes, in the order in which they apply together; empty if no
    group has such codes."""
    largest = max(groups, key=lambda codec: len(templates_of(spec.name for spec in groups[codec])))
    hints, has_codes = [], False
    for codec in sorted(groups, key=lambda codec: codec != largest):  # its rules may match all tensors
        group = groups[codec]
        names = [spec.name for spec in group]
        patterns = (
            _patterns(names, specs)
            if codec == largest
            else dict.fromkeys(patterns_of(names, _others(names, specs)), False)
        )
        if (nearest := _nearest(group, _bits(file, group[0]), aliases, attempt)) is None:
            hints.append(f"the values of {codec} with {_rules(patterns, 'bf16')}")
            continue
        name, steps = nearest
        has_codes = True
        hints.append(
            f"the nearest codes to {codec} with {_rules(patterns, name)} and requantize=True "
            f"({steps[0].bits:.3g} bits a weight, {_bound(file, steps)})"
        )  # fmt: skip
    return ", and for ".join(hints) if has_codes else ""


def _group_text(file: File, group: Sequence[tuple[TensorSpec, SquishError]]) -> str:
    spec, _ = group[0]
    more = f" and {len(group) - 1} more" if len(group) > 1 else ""
    return f"{counted(len(group), 'tensor')} of {_bits(file, spec):.3g} bits a weight ({spec.name}{more})"


def _stored_as(spec: TensorSpec) -> str:
    """The codec in the file, inside those that map its rows; or the dtype."""
    codec = spec.encodings[0].codec
    while codec.id in MAPPING and codec.inner is not None:
        codec = codec.inner
    return spec.dtype if codec.id == "dense" else codec.id


def _bits(file: File, spec: TensorSpec) -> float:
    """Bits of a weight; of a mapped tensor those of its sources, of which it may be a part."""
    specs = [spec]
    if isinstance(file, MappedFile):
        specs = [file.original.index.tensors[name] for name in file.sources(spec.name)]
    return 8 * sum(each.encodings[0].stored for each in specs) / max(sum(each.elements for each in specs), 1)


def _patterns(names: Sequence[str], specs: Sequence[TensorSpec]) -> dict[str, bool]:
    """Patterns of a rule for these tensors, and whether it keeps what matches.

    For all tensors, or with too many kinds of names, `*` and the other matrices.
    """
    others = _others(names, specs)
    if len(templates_of(names)) <= SHOWN_PATTERNS and len(names) < len(specs):
        return dict.fromkeys(patterns_of(names, others), False)
    return {"*": False, **dict.fromkeys(patterns_of(others, names), True)}


def _others(names: Sequence[str], specs: Sequence[TensorSpec]) -> list[str]:
    """The other matrices."""
    refused = set(names)
    return [spec.name for spec in specs if len(spec.shape) > 1 and spec.name not in refused]


def _rules(patterns: Mapping[str, bool], encoding: str) -> str:
    return " ".join(f"encode='{pattern}={'keep' if keeps else encoding}'" for pattern, keeps in patterns.items())


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


def _nearest(
    group: Sequence[TensorSpec], bits: float, aliases: Collection[str], attempt: Attempt
) -> tuple[str, list[Step]] | None:
    """The short name of the target's codes with the number of bits nearest to the tensors', and their encoding."""
    steps = {}
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
