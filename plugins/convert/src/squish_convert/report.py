"""The report of a conversion, as data and as text, with its notes about the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from attrs import asdict, field, frozen

from squish_core.codes import ErrorCode
from squish_core.display import fit_all, table
from squish_core.errors import MAX_MESSAGE, redact, shorten
from squish_core.file import File
from squish_core.formats.dropped import Dropped
from squish_core.shown import Plotted
from squish_core.text import counted, format_bytes

from .compare.metrics import Distance
from .components import LeftOut
from .step import RuleEffect, Step

WORST = 12
"""Number of tensors whose error is printed."""
VARIANTS = 4
"""Number of parameter sets of a codec that are listed separately."""
LONG = 40
"""Characters of a codec and its parameters that fit a row; --json has all."""


@frozen(kw_only=True, repr=False)
class Conversion(Plotted):
    """The report of a conversion or dry run: steps of the tensors, sizes in bytes, and what was dropped.

    `notes`: remarks about the target. `unused`: patterns of `keep` rules that match no tensor
    (for other rules that is an error). `ineffective`: rules that left most of their bytes unchanged.
    `left_out`: components of the model that are not written, such as a vision tower.
    `deleted`: files of the source, on request.
    """

    source: str = field(converter=redact)
    target: str = field(converter=redact)
    format: str
    steps: tuple[Step, ...]
    source_size: int
    size: int | None
    dropped: tuple[Dropped, ...]
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    ineffective: tuple[RuleEffect, ...] = ()
    deleted: tuple[str, ...] = ()
    dry_run: bool
    seconds: float = 0.0

    def __repr__(self) -> str:
        counts = "".join(f" {action}={count}" for action, count in Counter(step.action for step in self.steps).items())
        size = f" size={self.size}{' dry_run' if self.dry_run else ''}"
        return f"<Conversion {self.source!r} -> {self.target!r} format={self.format}{counts}{size}>"

    def __str__(self) -> str:
        return "\n".join(fit_all(conversion_lines(self)))

    @property
    def quality(self) -> Distance | None:
        """Total error of all lossy encodings; None if there are none."""
        total, qualities = Distance(), [step.quality for step in self.steps if step.quality]
        for quality in qualities:
            total.merge(quality)
        return total if qualities else None

    @property
    def clipped(self) -> int:
        """Number of values that `overflow=saturate` clipped."""
        return sum(step.clipped for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON.

        Returns
        -------
        dict
            Sizes in bytes, and a record for each tensor under `steps`.

        Examples
        --------
        >>> squish.convert("model.gguf", "copy.safetensors", encode="f32", dry_run=True).to_dict()["dry_run"]
        True
        """
        keys = ("source", "target", "format", "source_size", "size", "dry_run", "seconds", "clipped")
        total = self.quality
        return {
            **{key: getattr(self, key) for key in keys},
            "dropped": [asdict(item) for item in self.dropped],
            "left_out": [asdict(item) for item in self.left_out],
            "notes": list(self.notes),
            "unused": list(self.unused),
            "ineffective": [asdict(effect) for effect in self.ineffective],
            "quality": total.to_dict() if total else None,
            "deleted": list(self.deleted),
            "tensors": [step.to_dict() for step in self.steps],
        }


def conversion_lines(report: Conversion) -> Iterator[str]:
    """Yield the report as text: actions and numbers of tensors, exactness, and dropped items."""
    size = format_bytes(report.size) if report.size is not None else "size unknown until written"
    verb, time = ("would write", "") if report.dry_run else ("wrote", f", {report.seconds:.1f} s")
    yield f"{verb} {report.target}: {report.format}, {size} (from {format_bytes(report.source_size)}){time}"
    for effect in report.ineffective:
        share = f"{format_bytes(effect.kept_size)} of {format_bytes(effect.size)}"
        yield (
            f"warning: the rule {effect.rule} left {share} unchanged "
            f"({effect.kept:,} of {counted(effect.tensors, 'tensor')}): {effect.reason}"
        )
    yield from (f"warning: no tensor matches {pattern!r}, so this rule keeps nothing" for pattern in report.unused)
    yield from _step_table(report.steps)
    yield from _quality_table(report)
    yield from _notes(report)
    if report.deleted:
        yield from ("would delete:" if report.dry_run else "deleted:", *(f"  {path}" for path in report.deleted))
    if report.left_out:
        yield from ("left out:", *(f"  {item}" for item in report.left_out))
    others = {name for item in report.left_out for name in item.tensors}
    if dropped := [item for item in report.dropped if item.kind != "tensor" or item.name not in others]:
        yield from ("not carried over:", *_dropped_lines(dropped))


def _step_table(steps: Iterable[Step]) -> list[str]:
    """Return a row for each combination of action, encodings and exactness."""
    kinds: dict[tuple[str, str, str, str], list[Step]] = {}
    labels = _short_labels(name for step in steps for name in (step.source, step.target))
    for step in steps:
        kinds.setdefault((step.action, labels[step.source], labels[step.target], str(step.exactness)), []).append(step)
    rows = [
        (
            action,
            f"{len(group):,}",
            format_bytes(sum(step.size for step in group)),
            f"{_bits(group):.2f}",
            exactness,
            source if source == target else f"{source} -> {target}",
        )
        for (action, source, target, exactness), group in kinds.items()
    ]
    return table(("action", "tensors", "size", "bits", "exactness", "stored as"), "<>>><<", rows)


def _quality_table(report: Conversion) -> list[str]:
    """Return the errors of encoded tensors, the worst first, and the total; tensors without an error have no row."""
    by_snr = sorted(
        ((step.quality, step) for step in report.steps if step.quality), key=lambda pair: (pair[0].snr, pair[1].name)
    )
    total = report.quality
    rows = [(quality, step.bits, step.name) for quality, step in by_snr[:WORST] if quality.max_error]
    if by_snr and not rows:
        return [f"no value differs in {counted(len(by_snr), 'encoded tensor')}"]
    if total and len(by_snr) > 1:
        hidden = len(by_snr) - len(rows)
        more = f", {hidden} of them not listed (--json lists all)" if hidden > 0 else ""
        rows.append((total, _bits([step for _, step in by_snr]), f"all {counted(len(by_snr), 'tensor')}{more}"))
    cells = [
        (f"{q.snr:.2f}", f"{q.nmse:.3g}", f"{q.max_error:.3g}", f"{q.cosine:.6g}", f"{bits:.2f}", name)
        for q, bits, name in rows
    ]
    header = ("SNR dB", "NMSE", "max error", "cosine", "bits", "lossy tensors, the worst first")
    return table(header, ">>>>><", cells)


def _notes(report: Conversion) -> Iterator[str]:
    """Notes of steps, each once with its number of tensors, then the target's."""
    names: dict[str, list[str]] = {}
    for step in report.steps:
        if step.note:
            names.setdefault(step.note, []).append(step.name)
    for note, tensors in names.items():
        listed = tensors[0] if len(tensors) == 1 else f"{counted(len(tensors), 'tensor')}: {tensors[0]}, ..."
        yield f"note: {note} ({listed})"
    if rows := [step for step in report.steps if step.stack]:
        stacks = counted(len({step.stack for step in rows}), "stacked tensor")
        yield f"note: {counted(len(rows), 'tensor')} written as rows of {stacks} ({rows[0].stack}, ...)"
    yield from (f"note: {note}" for note in report.notes)
    for step in report.steps:
        if step.clipped:
            yield f"note: {counted(step.clipped, 'value')} of {step.name} clipped: too large for {step.target}"


def _dropped_lines(dropped: Iterable[Dropped]) -> Iterator[str]:
    """Dropped items; one line for all names of the same kind, place and reason."""
    groups: dict[tuple[str, str, str], list[Dropped]] = {}
    for item in dropped:
        groups.setdefault((item.where, item.kind, item.reason), []).append(item)
    for (where, kind, reason), items in groups.items():
        names = ", ".join(item.name for item in items)
        label = f"{f'{where}: ' if where else ''}{kind}{f' ({reason})' if reason else ''}"
        yield f"  {items[0]}" if len(items) == 1 else f"  {label}: {names}"


def _bits(steps: Iterable[Step]) -> float:
    """Average bits per weight of several tensors."""
    steps = list(steps)
    return 8 * sum(step.size for step in steps) / max(sum(step.spec.elements for step in steps), 1)


def _short_labels(names: Iterable[str]) -> dict[str, str]:
    """Return a short label for each encoding: without parameters that vary by tensor, and at most two of them."""
    kinds = {name: name.partition(":")[0] for name in names}
    variants = Counter(kinds.values())
    brief = {name: ",".join([*name.split(",")[:2], "..."]) if len(name) > LONG else name for name in kinds}
    return {name: kind if variants[kind] > VARIANTS else brief[name] for name, kind in kinds.items()}


MOST = 4
"""Number of errors noted, and of links named in a note."""


def source_notes(file: File, dropped: Iterable[Dropped]) -> tuple[str, ...]:
    """Notes about the source for users of the target."""
    problems = (f"{problem.where}: {problem.message}" for problem in file.source.problems())
    return (*problems, *error_notes(file), *code_notes(file), *link_notes(file, dropped))


def error_notes(file: File) -> tuple[str, ...]:
    """Errors found when the source was opened; converted values may be wrong."""
    errors = [f"{problem.where}: {problem.message}" for problem in file.problems if problem.severity == "error"]
    notes = [f"the source has an error: {shorten(error, MAX_MESSAGE)}" for error in errors[:MOST]]
    if len(errors) > MOST:
        notes.append(f"the source has {len(errors) - MOST} more errors; `squish verify` lists them")
    return tuple(notes)


def code_notes(file: File) -> tuple[str, ...]:
    """Return a note about quantized codes that the source declares, and the target stores, as plain numbers."""
    apart = [problem for problem in file.problems if problem.code == ErrorCode.CODES]
    if not apart:
        return ()
    more = f"; so do {len(apart) - 1} more tensors, which `squish verify` lists" if len(apart) > 1 else ""
    return (f"{apart[0].where}: {apart[0].message}{more}",)


def link_notes(file: File, dropped: Iterable[Dropped]) -> tuple[str, ...]:
    """Return a note about assets that are links to files outside their folder."""
    absent = {item.name for item in dropped if item.kind == "asset"}
    targets = {}
    for name, part in file.original.index.assets.items():
        number = part.segments[0].file if part.segments else None
        if number is not None and file.index.files[number].name == name and name not in absent:
            target = outside_link(file.source_for(number).path)
            if target is not None and file.index.assets.get(name) is part:
                targets[name] = target
    if not targets:
        return ()
    links = ", ".join(f"{name} -> {target}" for name, target in list(targets.items())[:MOST])
    more = f" and {len(targets) - MOST} more" if len(targets) > MOST else ""
    return (f"assets are links to files outside the folder, whose content is carried: {links}{more}",)


def outside_link(path: Path | None) -> Path | None:
    """Return the target of a link that leaves its folder; else None."""
    if path is None or not path.is_symlink():
        return None
    target = path.resolve()
    return None if target.is_relative_to(path.parent.resolve()) else target
