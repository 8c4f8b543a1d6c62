"""The bytes that rules leave unchanged, rules that later ones override, and notes on the encoding that a step reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from attrs import evolve

from squish_core.conversion.rules import KEEP, Rule, rule_for
from squish_core.conversion.step import KEPT, RuleEffect, Step
from squish_core.file import File


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
