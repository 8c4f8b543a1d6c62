"""The bytes that rules leave unchanged, rules that later ones override, and notes on the encoding that a step reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from attrs import evolve

from squish_core.file import File
from squish_core.model import DENSE
from squish_core.text import counted

from .rules import KEEP, Rule, rule_for
from .step import KEPT, RuleEffect, Step


def ineffective_rules(rules: tuple[Rule, ...], steps: Sequence[Step]) -> tuple[RuleEffect, ...]:
    """The rules that leave more than half of the bytes they apply to unchanged."""
    effects = []
    steps_by_rule: dict[int, list[Step]] = {}
    for step in steps:
        steps_by_rule.setdefault(id(rule_for(rules, step.name)), []).append(step)
    for rule in rules:
        matches = steps_by_rule.get(id(rule), []) if rule.spec != KEEP else []
        unchanged = [step for step in matches if step.note.startswith(KEPT)]
        sizes = sum(step.stored for step in unchanged), sum(step.stored for step in matches)
        if 2 * sizes[0] > sizes[1]:
            reasons = Counter[str]()
            for step in unchanged:
                reasons[step.note.removeprefix(KEPT)] += step.stored
            effects.append(
                RuleEffect(
                    rule=str(rule.spec), kept=len(unchanged), tensors=len(matches), kept_size=sizes[0], size=sizes[1],
                    reason=reasons.most_common(1)[0][0],
                )
            )  # fmt: skip
    return tuple(effects)


def size_notes(rules: tuple[Rule, ...], steps: Sequence[Step]) -> Iterator[str]:
    """Notes about a budget of bits (`bpw`) that kept tensors exceed, and about encodings larger than plain values."""
    for rule in rules:
        bpw = rule.spec.params.get("bpw") if rule.spec != KEEP else None
        matrices = [
            step
            for step in steps
            if bpw is not None and len(step.spec.shape) > 1 and rule_for(rules, step.name) is rule
        ]
        bits = 8 * sum(step.size for step in matrices) / max(sum(step.spec.elements for step in matrices), 1)
        if bpw is not None and bits > 1.01 * bpw:
            kept = [step for step in matrices if step.note.startswith(KEPT)]
            reason = "as the target stores its codes"
            if kept:
                largest = max(kept, key=lambda step: step.size)
                reason = f"with {counted(len(kept), 'matrix', 'matrices')} that it keeps, the largest {largest.name} ("
                reason += f"{largest.note.removeprefix(KEPT)})"
            yield f"{rule.spec}: {bits:.2f} bits per weight, {reason}"
    grown: dict[str, list[Step]] = {}
    for step in steps:
        is_encoded = step.action == "encode" and step.origin.codec == DENSE != step.codec
        if is_encoded and step.spec.elements and step.size > step.stored:
            grown.setdefault(step.codec.id, []).append(step)
    for codec, larger in grown.items():
        worst = max(larger, key=lambda step: step.bits)
        yield (
            f"{codec} makes {counted(len(larger), 'tensor')} larger, {worst.name} most: {worst.bits:.0f} bits per "
            f"weight instead of {8 * worst.stored / worst.spec.elements:.0f}"
        )


def overridden_rules(rules: tuple[Rule, ...], steps: Sequence[Step]) -> tuple[str, ...]:
    """Notes about patterns whose tensors all match later rules."""
    effective = {id(rule_for(rules, step.name)) for step in steps}
    overridden = [rule for rule in rules if rule.pattern is not None and id(rule) not in effective]
    return tuple(
        f"{rule.pattern}={rule.spec} has no effect: later rules match its tensors, and the last match wins"
        for rule in overridden
        if any(rule.matches(step.name) for step in steps)
    )


def note_origin(file: File, step: Step) -> Step:
    """Add a note to a step that converts another encoding than the one that reading the file decodes."""
    if len(file.index.tensors[step.name].encodings) < 2:
        return step
    default = file[step.name].bound.encoding
    if default.label == step.origin.label:
        return step
    note = f"converted from {step.origin.label}, while reading the source gives {default.label}"
    return evolve(step, note=f"{step.note}; {note}" if step.note else note)
