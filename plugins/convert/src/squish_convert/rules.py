"""Rules of `--encode`: parse `PATTERN=SPEC`, expand short names, match tensors, and note what rules leave unchanged."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from attrs import evolve, frozen

from squish_core.codecs.allocator import ModelFacts
from squish_core.codes import ErrorCode
from squish_core.errors import MissingPluginError, UsageError
from squish_core.file import File
from squish_core.formats.base import WritableContainer
from squish_core.model import DENSE, CodecSpec, TensorSpec
from squish_core.plugins import catalog
from squish_core.plugins.registry import Registry
from squish_core.specs import parse_spec
from squish_core.text import counted, did_you_mean

from .overflow import REFUSE, take_overflow
from .step import KEPT, RuleEffect, Step

KEEP = CodecSpec("keep")
NEAREST = CodecSpec("nearest")
"""Keep what the target can store, and encode the rest as the target's codes with the smallest error."""
WORDS = (KEEP.id, NEAREST.id)
"""Specifications that do not name an encoding."""
ALL = "*"
"""The pattern that matches every tensor."""
ALIKE = 0.7
"""Share of a pattern's letters that a suggested name must contain."""


@frozen
class EncodeRule:
    """Encode tensors whose name matches `pattern`; without a pattern, every tensor that the codec can encode.

    `overflow`: "refuse" or "saturate" values that do not stay finite.
    """

    pattern: str | None
    spec: CodecSpec
    overflow: str = REFUSE
    names: frozenset[str] | None = None
    """The tensors that a function chose; `pattern` is then the function's name."""

    def matches(self, name: str) -> bool:
        """Return whether the rule applies to a tensor of this name."""
        if self.names is not None:
            return name in self.names
        return self.pattern is None or fnmatchcase(name, self.pattern)


Encode = str | Iterable[str] | Mapping[str, str] | Callable[[TensorSpec], str | None]
"""The argument `encode=`: specifications, `PATTERN=SPEC`, or a function from a tensor to its specification."""


def parse_rules(encode: Encode | None, tensors: Mapping[str, TensorSpec]) -> tuple[EncodeRule, ...]:
    """`--encode` values as rules; a `=` before any `:` separates a name pattern from its specification.

    A function is called with each of the `tensors`.
    """
    if encode is None:
        return ()
    if callable(encode):
        return _rules_of_function(encode, tensors)
    items = [encode] if isinstance(encode, str) else encode
    texts = tuple(items) if isinstance(items, Iterable) else (items,)
    values = (*texts, *items.values()) if isinstance(items, Mapping) else texts
    if invalid := [value for value in values if not isinstance(value, str)]:
        raise UsageError(
            "{option:encode} cannot be read",
            found=f"{type(invalid[0]).__name__} {invalid[0]!r}",
            code=ErrorCode.ENCODE,
            expected="'SPEC', ['SPEC', 'PATTERN=SPEC'], {'PATTERN': 'SPEC'} or a function, SPEC like 'int4'",
        )
    if isinstance(items, Mapping):
        return tuple(_rule(pattern, spec) for pattern, spec in items.items())
    rules = []
    for text in texts:
        before, equals, after = text.partition("=")
        if equals and ":" not in before:
            rules.append(_rule(before, after))
        else:
            rules.append(_rule(None, text))
    return tuple(rules)


def _rules_of_function(
    choose: Callable[[TensorSpec], str | None], tensors: Mapping[str, TensorSpec]
) -> tuple[EncodeRule, ...]:
    """One rule for each specification that a function returns."""
    names: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        text = choose(tensor)
        if text is not None and not isinstance(text, str):
            raise UsageError(
                "the function given as {option:encode} must return text or None",
                found=f"{type(text).__name__} {text!r}",
                code=ErrorCode.ENCODE,
                expected="'SPEC', such as 'int4:group_size=64', or None to leave the tensor",
            )
        if text is not None:
            names.setdefault(text, []).append(name)
    label = getattr(choose, "__name__", type(choose).__name__)
    return tuple(evolve(_rule(label, text), names=frozenset(matches)) for text, matches in names.items())


def _rule(pattern: str | None, text: str) -> EncodeRule:
    spec = parse_spec(text)
    return EncodeRule(pattern, spec) if spec.id == KEEP.id else EncodeRule(pattern, *take_overflow(spec))


def with_preset(
    rules: tuple[EncodeRule, ...], container: WritableContainer, model: ModelFacts
) -> tuple[EncodeRule, ...]:
    """Return the rules; the only one without a pattern may name a preset of the format, unless it has parameters."""
    bare = [rule for rule in rules if rule.pattern is None]
    if len(bare) != 1 or bare[0].spec.params or bare[0].spec.inner:
        return rules
    text = container.preset(bare[0].spec.id.lower(), model)
    return tuple(evolve(rule, spec=parse_spec(text)) if text and rule is bare[0] else rule for rule in rules)


def rule_for(rules: Iterable[EncodeRule], name: str) -> EncodeRule | None:
    """Return the last rule that matches a tensor's name."""
    match = None
    for rule in rules:
        if rule.matches(name):
            match = rule
    return match


def required_patterns(rules: Iterable[EncodeRule]) -> list[str]:
    """Return the name patterns that must match a tensor; `PATTERN=keep` rules are often shared by many models."""
    return [rule.pattern for rule in rules if rule.pattern is not None and rule.names is None and rule.spec != KEEP]


def check_patterns(patterns: Iterable[str], names: Collection[str], file: str) -> None:
    """Check that each pattern matches a name.

    Parameters
    ----------
    patterns
        Shell patterns (`blk.*.weight`).
    names
        The names of the tensors.
    file
        Name of the file, for errors.

    Raises
    ------
    UsageError
        A pattern matches no name (code `pattern`); the hint has close names.

    Examples
    --------
    >>> check_patterns(["blk.*"], ["blk.0.weight", "output.weight"], "model.gguf")
    """
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = ", ".join(suggest_names(pattern, names))
            raise UsageError(
                "no tensor matches",
                file=file,
                found=repr(pattern),
                code="pattern",
                hint=f"Close matches: {near}." if near else "`squish ls` lists the names; quote patterns in a shell.",
            )


def suggest_names(pattern: str, names: Iterable[str]) -> list[str]:
    """Up to three close matches; repeated layers are collapsed to the first."""
    import difflib

    letters = re.sub(r"[*?\[\]]", "", pattern)
    alike: dict[str, str] = {}
    for name in names:
        alike.setdefault(re.sub(r"\d+", "0", name), name)
    matcher = difflib.SequenceMatcher(None, "", letters, autojunk=False)
    scores = []
    for name in alike.values():
        matcher.set_seq1(name)
        scores.append((-sum(block.size for block in matcher.get_matching_blocks()), len(name), name))
    return [name for score, _, name in sorted(scores)[:3] if -score >= ALIKE * len(letters)]


def expand(spec: CodecSpec, container: str, registry: Registry) -> CodecSpec:
    """Resolve short names in any case: the target container's aliases first, then the codecs'."""
    inner = None if spec.inner is None else expand(spec.inner, container, registry)
    names = {*WORDS, *registry.codecs, *registry.allocators}
    name = spec.id if spec.id in names else spec.id.lower()  # Q4_K, as in GGUF
    spec = evolve(spec, id=name, inner=inner)
    if spec.id in names:
        if spec.id not in WORDS and kind_of(spec, registry) not in ("tensor", "allocator"):
            raise UsageError(
                "not a tensor codec",
                found=repr(spec.id),
                code=ErrorCode.ENCODE,
                hint="Formats that compress their parts have an option for it (--to FORMAT:OPTION=VALUE).",
            )
        return _check_nesting(spec, registry)
    for table in _alias_tables(container, registry):
        if spec.id in table:
            full = parse_spec(table[spec.id])
            if full.id == "dense" and spec.params:  # the alias already names its dtype
                raise UsageError(f"{spec.id} takes no parameters", found=", ".join(spec.params), code=ErrorCode.PARAMS)
            return _check_nesting(evolve(spec, id=full.id, params={**full.params, **spec.params}), registry)
    encoders = (entry.info.id for entry in registry.find("codec", kind="tensor"))
    aliases = (name for table in _alias_tables(container, registry) for name in table)
    legal = sorted({*WORDS, *registry.allocators, *encoders, *aliases})
    package = catalog.package_for("codec", spec.id) or catalog.package_for("allocator", spec.id)
    suggestion = f"{did_you_mean(spec.id, legal)} `squish codecs` lists all.".lstrip()
    kind = MissingPluginError if package else UsageError
    raise kind(
        "no such encoding",
        found=repr(spec.id),
        code=ErrorCode.ENCODE,
        hint=f"Run `{catalog.install_command(package)}`." if package else suggestion,
    )


def _check_nesting(spec: CodecSpec, registry: Registry) -> CodecSpec:
    """Return the specification; UsageError if its brackets are misplaced."""
    if spec.id in WORDS and spec.params:
        raise UsageError(f"{spec.id} takes no parameters", found=", ".join(spec.params), code=ErrorCode.PARAMS)
    if spec.inner is None:
        return spec
    for codec in (spec, spec.inner):
        if kind_of(codec, registry) != "tensor":  # an allocator, or keep
            raise UsageError(
                f"{codec.id} cannot be combined with another encoding", found=str(spec), code=ErrorCode.PARAMS
            )
    if not registry.codec_type(spec.id).wraps:
        raise UsageError(
            f"{spec.id} does not wrap another encoding",
            found=str(spec),
            code=ErrorCode.PARAMS,
            hint="Leave out the brackets.",
        )
    return spec


def kind_of(spec: CodecSpec, registry: Registry) -> str:
    """Return the kind of a codec: "tensor", "bytes" or "whole"; or "allocator"."""
    if spec.id in registry.allocators:
        return "allocator"
    return registry.codecs[spec.id].info.kind if spec.id in registry.codecs else ""


def short_names(container: str, registry: Registry) -> list[str]:
    """Return the short names of a container's encodings; those of all codecs if it has none of its own."""
    own, *others = _alias_tables(container, registry)
    return list(own) or [name for table in others for name in table]


def every_short_name(container: str, registry: Registry) -> list[str]:
    """Return the short names of a container's encodings, then those of all codecs and encoders, each once."""
    return list(dict.fromkeys(name for table in _alias_tables(container, registry) for name in table))


def _alias_tables(container: str, registry: Registry) -> list[Mapping[str, str]]:
    tables = [registry.containers[container].info.aliases]
    tables += [entry.info.aliases for entry in registry.codecs.values()]
    return tables + [entry.info.aliases for entry in registry.encoders.values()]


def ineffective_rules(rules: tuple[EncodeRule, ...], steps: Sequence[Step]) -> tuple[RuleEffect, ...]:
    """Return the rules that leave more than half of the bytes they apply to unchanged."""
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
                    rule=str(rule.spec),
                    kept=len(unchanged),
                    tensors=len(matches),
                    kept_size=sizes[0],
                    size=sizes[1],
                    reason=reasons.most_common(1)[0][0],
                )
            )
    return tuple(effects)


def size_notes(rules: tuple[EncodeRule, ...], steps: Sequence[Step]) -> Iterator[str]:
    """Notes about a budget of bits (`bpw`) that kept tensors exceed, and about encodings larger than plain values."""
    for rule in rules:
        bpw = rule.spec.params.get("bpw") if rule.spec != KEEP else None
        matrices = [
            step
            for step in steps
            if bpw is not None and len(step.spec.shape) > 1 and rule_for(rules, step.name) is rule
        ]
        bits = 8 * sum(step.size for step in matrices) / max(sum(step.spec.elements for step in matrices), 1)
        kept = [step for step in matrices if step.note.startswith(KEPT)]
        if bpw is not None and kept and bits > 1.01 * bpw:
            largest = max(kept, key=lambda step: step.size)
            yield (
                f"{rule.spec}: {bits:.2f} bits per weight, with {counted(len(kept), 'matrix', 'matrices')} that it "
                f"keeps, the largest {largest.name} ({largest.note.removeprefix(KEPT)})"
            )
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


def overridden_rules(rules: tuple[EncodeRule, ...], steps: Sequence[Step]) -> tuple[str, ...]:
    """Notes about patterns whose tensors all match later rules."""
    effective = {id(rule_for(rules, step.name)) for step in steps}
    overridden = [rule for rule in rules if rule.pattern is not None and id(rule) not in effective]
    return tuple(
        f"{rule.pattern}={rule.spec} has no effect: later rules match its tensors, and the last match wins"
        for rule in overridden
        if any(rule.matches(step.name) for step in steps)
    )


def note_origin(file: File, step: Step) -> Step:
    """Note on a step that it converts another encoding than the one that reading decodes."""
    if len(file.index.tensors[step.name].encodings) < 2:
        return step
    default = file[step.name].bound.encoding
    if default.label == step.origin.label:
        return step
    note = f"converted from {step.origin.label}, while reading the source gives {default.label}"
    return evolve(step, note=f"{step.note}; {note}" if step.note else note)
