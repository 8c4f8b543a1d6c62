"""The error for tensors whose codes a target cannot store: by codec, with the rule that would convert them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from squish_core.codes import ErrorCode
from squish_core.errors import Problem, SquishError, TensorError
from squish_core.file import File
from squish_core.model import CodecSpec, TensorSpec
from squish_core.text import counted

from .nearest import Attempt, Nearest, nearest_encodings
from .patterns import patterns_of, templates_of

SHOWN_PATTERNS = 3
"""Maximum number of kinds of names in a hint; with more, it shows `*`, and the matrices to keep."""
ACRONYM = 4
"""Letters of a method's name that is written in capitals, such as GPTQ."""
MAPPING = ("deinterleave", "heads", "interleave", "slice", "stack", "transpose")
"""Codecs that read a mapped tensor from the source's."""


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
    nearest, suggestions = _nearest_rules(
        file, {codec: [spec for spec, _ in group] for codec, group in groups.items()}, specs, aliases, attempt
    )
    exact = _rules(_patterns([spec.name for spec, _ in refusals], specs), "f32")
    exact = f", exactly with {exact}" if _is_exact([group[0][0] for group in groups.values()], attempt) else ""
    combined = TensorError(
        message, tensor=first.name, found=described(file, first), code=ErrorCode.REFUSED,
        hint=f"Ask for their values with {values}{exact}{nearest and ', or for '}{nearest}.",
    )  # fmt: skip
    combined.findings, combined.suggestions = tuple(findings), tuple(suggestions)
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
) -> tuple[str, list[dict[str, Any]]]:  # fmt: skip
    """The rules that encode each group as the nearest codes, in the order in which they apply together, as text (empty
    if no group has such codes), and all suggestions as data."""
    largest = max(groups, key=lambda codec: len(templates_of(spec.name for spec in groups[codec])))
    hints, suggestions = list[str](), list[dict[str, Any]]()
    for codec in sorted(groups, key=lambda codec: codec != largest):  # its rules may match all tensors
        group = groups[codec]
        names, label = [spec.name for spec in group], described(file, group[0])
        patterns = (
            _patterns(names, specs)
            if codec == largest
            else dict.fromkeys(patterns_of(names, _others(names, specs)), False)
        )
        nearest = nearest_encodings(file, group, aliases, attempt)
        suggestions += [_suggestion(label, patterns, each) for each in nearest]
        if not nearest:
            hints.append(f"the values of {label} with {_rules(patterns, 'bf16')}")
            continue
        others = "".join(f"; or {each.name}: {each}" for each in nearest[1:])
        hints.append(
            f"the nearest codes to {label} with {_rules(patterns, nearest[0].name)} and {{option:requantize=True}} "
            f"({nearest[0]}{others})"
        )
    text = ", and for ".join(hints)
    return (f"{text}; {{option:encode=nearest}} does so", suggestions) if suggestions else ("", [])


def _suggestion(label: str, patterns: Mapping[str, bool], nearest: Nearest) -> dict[str, Any]:
    rules = [f"{pattern}={'keep' if keeps else nearest.name}" for pattern, keeps in patterns.items()]
    return {"codes": label, "encode": rules, "bits": nearest.bits, "decibels": nearest.decibels}


def described(file: File, spec: TensorSpec) -> str:
    """Stored codes in the words of the field: "GPTQ, 4 bits, group 32, zero points"; a codec without parameters by
    its id."""
    index = file.original.index
    spec = index.tensors[file.sources(spec.name)[0]]
    codec = spec.encodings[0].codec
    layout = file.registry.codec(codec).code_layout(spec) if codec.id in file.registry.codecs else None
    if layout is None or not (codec.params or codec.inner):
        return spec.dtype if codec.id == "dense" else codec.id
    method = index.version if index.version[:1].isalpha() else codec.id
    group = max(layout.group, default=0)
    facts = [
        method.upper() if len(method) <= ACRONYM else method,
        counted(layout.bits, "bit"),
        f"group {group}" if group else "one scale a row",
        {"zero_point": "zero points", "bias": "biases"}.get(layout.offset_kind, "symmetric"),
    ]
    return ", ".join(facts[:-1] if layout.table is not None else facts)


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
    rules = (f"{pattern}={'keep' if keeps else encoding}" for pattern, keeps in patterns.items())
    return " ".join(f"{{option:encode={rule}}}" for rule in rules)
