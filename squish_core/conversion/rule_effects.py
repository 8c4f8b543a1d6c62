"""Rules of `encode=` that left most of what they apply to unchanged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from attrs import frozen

from squish_core.conversion.plan import KEPT, Step
from squish_core.conversion.rules import KEEP, Rule, rule_for


@frozen(kw_only=True)
class RuleEffect:
    """What a rule of `encode=` left unchanged: of how many tensors and stored bytes, and the most common reason."""

    rule: str
    kept: int
    tensors: int
    kept_size: int
    size: int
    reason: str


def ineffective_rules(rules: tuple[Rule, ...], steps: Sequence[Step]) -> tuple[RuleEffect, ...]:
    """The rules that left more than half of the bytes they apply to unchanged."""
    effects = []
    for rule in rules:
        ruled = [step for step in steps if rule.spec != KEEP and rule_for(rules, step.name) is rule]
        kept = [step for step in ruled if step.note.startswith(KEPT)]
        sizes = sum(step.stored for step in kept), sum(step.stored for step in ruled)
        if 2 * sizes[0] > sizes[1]:
            reasons = Counter[str]()
            for step in kept:
                reasons[step.note.removeprefix(KEPT)] += step.stored
            effects.append(
                RuleEffect(
                    rule=str(rule.spec), kept=len(kept), tensors=len(ruled), kept_size=sizes[0], size=sizes[1],
                    reason=reasons.most_common(1)[0][0],
                )
            )  # fmt: skip
    return tuple(effects)
