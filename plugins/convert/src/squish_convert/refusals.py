"""The error for codes that a target cannot store: grouped by codec, with rules that would convert them.

Suggests the nearest encodings that the target can store, ranked by measured error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from attrs import frozen

from squish_core.codecs.regions import stored_panels
from squish_core.codes import ErrorCode
from squish_core.errors import Problem, SquishError, TensorError
from squish_core.file import File
from squish_core.model import CodecSpec, TensorSpec
from squish_core.plugins.registry import Registry
from squish_core.text import counted

from .compare.metrics import Distance
from .mapping.codecs.lora import codec_below_lora
from .panels import EncodedPanels
from .step import Step

SHOWN_PATTERNS = 3
"""Maximum number of kinds of names in a hint; with more, it shows `*`, and the matrices to keep."""
ACRONYM = 4
"""Letters of a method's name that is written in capitals, such as GPTQ."""
MAPPING = ("deinterleave", "heads", "interleave", "scale", "slice", "stack", "transpose")
"""Codecs that read a mapped tensor from the source's."""


def refused_codes(
    file: File,
    refusals: Sequence[tuple[TensorSpec, SquishError]],
    specs: Sequence[TensorSpec],
    aliases: Collection[str],
    attempt: Attempt,
) -> TensorError:
    """Return the error for tensors whose stored codes the target cannot store.

    `aliases` are short names of the target's encodings; `attempt` plans a tensor as one of them.
    """
    groups: dict[str, list[tuple[TensorSpec, SquishError]]] = {}
    for spec, error in refusals:
        groups.setdefault(_stored_as(spec), []).append((spec, error))
    findings = [
        Problem(code=ErrorCode.REFUSED, severity="error", where=codec, message=_group_text(file, group))
        for codec, group in groups.items()
    ]
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
        message,
        tensor=first.name,
        found=described(file, first),
        code=ErrorCode.REFUSED,
        hint=f"Ask for their values with {values}{exact}{nearest and ', or for '}{nearest}.",
    )
    combined.findings, combined.suggestions = tuple(findings), tuple(suggestions)
    return combined


def _is_exact(specs: Sequence[TensorSpec], attempt: Attempt) -> bool:
    """Return whether f32 represents all values of these tensors."""
    try:
        return not any(attempt(spec, CodecSpec("f32")).is_lossy for spec in specs)
    except SquishError:
        return False


def _nearest_rules(
    file: File,
    groups: Mapping[str, list[TensorSpec]],
    specs: Sequence[TensorSpec],
    aliases: Collection[str],
    attempt: Attempt,
) -> tuple[str, list[dict[str, Any]]]:
    """The rules that encode each group as its nearest codes, in the order to apply them, and all suggestions as data.

    The rules are text, empty if no group has such codes.
    """
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
    return {"codes": label, "encode": rules, "bits": nearest.bits, "snr": nearest.decibels}


def described(file: File, spec: TensorSpec) -> str:
    """Describe stored codes in the words of the field: "GPTQ, 4 bits, group 32, zero points".

    A codec without parameters is described by its id.
    """
    index = file.original.index
    spec = index.tensors[file.sources(spec.name)[0]]
    codec = codec_below_lora(spec.encodings[0].codec) or spec.encodings[0].codec
    layout = file.registry.codec(codec).code_layout(spec) if codec.id in file.registry.codecs else None
    if layout is None or not (codec.params or codec.inner):
        return spec.dtype if codec.id == "dense" else codec.id
    method = index.version if index.version[:1].isalpha() else codec.id
    group = 0 if layout.group[-1:] == (0,) else max(layout.group, default=0)  # 0: the whole row
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
    """Return the codec in the file, without codecs that map its rows; or the dtype."""
    codec = spec.encodings[0].codec
    while codec.id in MAPPING and codec.inner is not None:
        codec = codec.inner
    return spec.dtype if codec.id == "dense" else codec.id


def _bits(file: File, spec: TensorSpec) -> float:
    """Bits per weight; for a mapped tensor, those of its sources."""
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
    """Return the other matrices."""
    refused = set(names)
    return [spec.name for spec in specs if len(spec.shape) > 1 and spec.name not in refused]


def _rules(patterns: Mapping[str, bool], encoding: str) -> str:
    rules = (f"{pattern}={'keep' if keeps else encoding}" for pattern, keeps in patterns.items())
    return " ".join(f"{{option:encode={rule}}}" for rule in rules)


_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def templates_of(names: Iterable[str]) -> list[str]:
    """Return the names with `*` for their numbers, each once.

    >>> templates_of(["blk.0.up.weight", "blk.1.up.weight", "output.weight"])
    ['blk.*.up.weight', 'output.weight']
    """
    return list(dict.fromkeys(_NUMBER.sub("*", name) for name in names))


def patterns_of(names: Iterable[str], others: Iterable[str]) -> list[str]:
    """Patterns that match these names and none of the others, if one number tells them apart.

    >>> names = [f"blk.{number}.down.weight" for number in (0, 1, 5, 10, 12)]
    >>> patterns_of(names, ["blk.0.up.weight"])
    ['blk.*.down.weight']
    >>> patterns_of(names, ["blk.2.down.weight"])
    ['blk.[015].down.weight', 'blk.1[02].down.weight']
    """
    mixed = set(templates_of(others))
    patterns: dict[str, None] = {}
    digits: dict[str, list[str]] = {}
    for name in names:
        numbers = _NUMBER.findall(name)
        template = _NUMBER.sub("*", name)
        if template in mixed and len(numbers) == 1:
            pattern = template.replace("*", f"{numbers[0][:-1]}*")
            digits.setdefault(pattern, []).append(numbers[0][-1])
            patterns[pattern] = None
        else:
            patterns[template] = None
    return [_with_digits(pattern, digits[pattern]) if pattern in digits else pattern for pattern in patterns]


def _with_digits(pattern: str, digits: list[str]) -> str:
    return pattern.replace("*", digits[0] if len(digits) == 1 else f"[{''.join(digits)}]")


SUGGESTED = 3
"""Maximum number of encodings to suggest for a codec."""
SAMPLED_PANELS, SAMPLED_BYTES = 2, 128 << 10
"""Panels that are encoded to measure an error, and bytes of a panel as f32."""
SMALL_FLOAT = 4
"""Maximum bits of floats that are not suggested for integer codes: they have fewer levels where most values are."""
Attempt = Callable[[TensorSpec, CodecSpec], Step]
"""Plans to encode a tensor; SquishError if the target cannot store the encoding."""


@frozen
class Nearest:
    """An encoding of the target: its short name, bits per weight, and signal-to-noise ratio in dB on sampled values.

    The ratio is None if it was not measured: values of remote files are not read for it.
    """

    name: str
    bits: float
    decibels: float | None

    def __str__(self) -> str:
        error = "the error is measured while writing" if self.decibels is None else f"{self.decibels:.1f} dB"
        return f"{self.bits:.3g} bits a weight, {error}"


def nearest_encodings(
    file: File, group: Sequence[TensorSpec], aliases: Collection[str], attempt: Attempt
) -> list[Nearest]:
    """The encodings that fit every tensor of a group, the most exact first, without those worse in error and in size.

    `group` are tensors of one codec; `aliases` are the short names of the target's encodings.
    """
    source = _table_bits(group[0], group[0].encodings[0].codec, file.registry)
    found = []
    for name in aliases:
        try:
            step = attempt(group[0], CodecSpec(name))
        except SquishError:
            continue
        is_float = 0 < _table_bits(step.spec, step.codec, file.registry) <= SMALL_FLOAT
        if step.codec.id != "dense" and step.is_lossy and not (is_float and source == 0):
            found.append(Nearest(name, step.bits, None if file.source.is_remote else _decibels(file, step)))
    if file.source.is_remote:
        bits = 8 * group[0].encodings[0].stored / max(group[0].elements, 1)
        found.sort(key=lambda each: (abs(each.bits - bits), each.name))
    else:
        found.sort(key=lambda each: (-(each.decibels or 0), each.bits, each.name))
    front: list[Nearest] = []
    for each in found:
        surpassed = front and not file.source.is_remote and each.bits >= front[-1].bits
        if not surpassed and _fits_all(group[1:], each, attempt):
            front.append(each)
        if len(front) == SUGGESTED:
            break
    return front


def _fits_all(group: Sequence[TensorSpec], encoding: Nearest, attempt: Attempt) -> bool:
    try:
        return all(attempt(spec, CodecSpec(encoding.name)) for spec in group)
    except SquishError:  # some of the tensors cannot have this encoding
        return False


def _decibels(file: File, step: Step) -> float | None:
    """The signal-to-noise ratio on the first values; None if they cannot be encoded, which converting reports."""
    total = Distance()
    panels = EncodedPanels(file, step, None)
    regions = stored_panels(step.spec.shape, panels.grain, 4, budget=SAMPLED_BYTES)
    try:
        for _, distance, _ in panels.measured(islice(regions, SAMPLED_PANELS)):
            if distance is not None:
                total.merge(distance)
    except SquishError:
        return None
    return total.snr


def _table_bits(spec: TensorSpec, codec: CodecSpec, registry: Registry) -> int:
    """Return the bits of codes that stand for floats of a table; 0 if they are integers, or the codec does not say."""
    if codec.id not in registry.codecs:
        return 0
    layout = registry.codec(codec).code_layout(spec)
    return layout.bits if layout is not None and layout.table is not None else 0
