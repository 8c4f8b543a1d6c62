"""Convert between formats: codes are kept, floats are touched only when asked, every tensor's exactness is stated."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from attrs import evolve

from squish_core import opening
from squish_core.analysis.metrics import Distance
from squish_core.analysis.verify import check_empty, check_part
from squish_core.conversion.activations import Activations
from squish_core.conversion.arrays import in_memory
from squish_core.conversion.assets import asset_bytes, carried_assets
from squish_core.conversion.compatible import needs_activations
from squish_core.conversion.delete_source import deletable, delete
from squish_core.conversion.notes import source_notes
from squish_core.conversion.plan import Decision, Step, ineffective_rules, note_origin
from squish_core.conversion.rename import parse_names
from squish_core.conversion.report import Conversion
from squish_core.conversion.requantize import check_requantized
from squish_core.conversion.rules import KEEP, Rule, check_patterns, expand, parse_rules
from squish_core.conversion.streams import copied, encoded, repacked, widened
from squish_core.conversion.targets import format_for, packed_by
from squish_core.errors import FormatError, SquishError, UsageError
from squish_core.file import File
from squish_core.formats.base import Container, Dropped
from squish_core.formats.outgoing import OutgoingTensor
from squish_core.guard import computing, uncollected
from squish_core.io.atomic import atomic_file, atomic_folder
from squish_core.io.digest import is_known
from squish_core.io.local import common_mode
from squish_core.io.sink import Sink
from squish_core.io.space import check_space, space_notes
from squish_core.limits import Limits
from squish_core.model import TensorSpec
from squish_core.plugins.registry import Registry
from squish_core.reader import file_problems
from squish_core.specs import parse_format

Progress = Callable[[str, int, int | None], None]


def convert(
    src: Any,
    dst: Any,
    to: str | None = None,
    encode: str | Iterable[str] | Mapping[str, str] | None = None,
    *,
    dry_run: bool = False,
    only: str | Iterable[str] | None = None,
    assets: Any = None,
    rename: str | None = None,
    activations: Any = None,
    requantize: bool = False,
    names: str | None = None,
    stats: Any = None,
    delete_source: bool = False,
    progress: Progress | None = None,
    limits: Limits | None = None,
    registry: Registry | None = None,
) -> Conversion:
    """Write `src` (a path, bytes, a File or a mapping of arrays) to `dst` in another format; atomic, in panel memory.

    `to` is `ID[:key=value,...]` (default: from dst's suffix). `encode` holds `SPEC` or `PATTERN=SPEC` rules, the
    last match wins, `keep` leaves a tensor; without a rule codes are kept and what the target cannot hold is an
    error. Caches are not read (`File.without_caches`): they are less exact than what they were made from. `only`: name
    patterns of the tensors to write. `assets`: as in `open`, for a `src` that is not open yet.
    `rename`: "hf:ARCH" or "gguf:ARCH" gives tensors the names of Hugging Face or GGUF, where the file states no other
    architecture; all patterns are about the source's. `activations`: a file of activation statistics, for encodings
    that weigh errors by them. `requantize` allows to quantize tensors whose values are quantized with loss already.
    Digests of what is read are checked. `delete_source`: verify what was written and compare it with the source, then
    delete the files that held its tensors. A file at `dst` is replaced, a folder refused. Raises SquishError; the old
    `dst` stays on failure. `names` and `stats` are deprecated aliases of `rename` and `activations`.
    """
    started = time.perf_counter()
    rename = renamed("names", names, "rename", rename)
    activations = renamed("stats", stats, "activations", activations)
    with ExitStack() as opened:
        file = src
        if isinstance(src, Mapping) and not isinstance(src, File):
            file = opened.enter_context(in_memory(src, assets=assets, registry=registry))
        elif not isinstance(src, File):
            file = opened.enter_context(opening.open(src, assets=assets, limits=limits, registry=registry))
        statistics = None
        if activations is not None:
            statistics = opened.enter_context(opening.open(activations, limits=limits, registry=registry))
        chosen = (only,) if isinstance(only, str) else tuple(only or ())
        with uncollected():
            naming = parse_names(rename, file)
            plan = ConversionPlan(file, Path(dst), to, parse_rules(encode), chosen, naming, statistics, requantize)
            report = plan.report(dry_run)
        doomed = deletable(file, Path(dst), report.steps, report.dropped) if delete_source else ()
        report = evolve(report, deleted=tuple(map(str, doomed)))
        if dry_run:
            return evolve(report, notes=(*report.notes, *space_notes(plan.target, report.size)))
        done = plan.carry_out(report, doomed, progress)
        return evolve(done, seconds=time.perf_counter() - started)


def outgoing(file: File, to: str) -> list[OutgoingTensor]:
    """Tensors of a file as the format `to` holds them, codes kept; SquishError where it cannot hold one."""
    return ConversionPlan(file, Path(), to, (), ()).outgoing()


class ConversionPlan:
    """One conversion, decided before anything is written."""

    def __init__(
        self,
        file: File,
        target: Path,
        to: str | None,
        rules: tuple[Rule, ...],
        only: tuple[str, ...],
        rename: Callable[[str], str] = str,
        stats: File | None = None,
        requantize: bool = False,
    ) -> None:
        self.file, self.target, self.known = file.without_caches(), target, file.registry
        content, self.packing = packed_by(target, self.known)
        self.format, self.options = parse_format(to or format_for(content, self.known), self.known.writing_options)
        self.container = self._writable()
        self.rules = tuple(evolve(rule, spec=expand(rule.spec, self.format, self.known)) for rule in rules)
        asked = [rule.pattern for rule in self.rules if rule.pattern is not None and rule.spec != KEEP]
        check_patterns((*only, *asked), self.file.index.tensors, self.file.name)
        self.stats = Activations(stats) if stats is not None else None
        decision = Decision(self.file, self.container, self.options, self.rules, rename, self.stats)
        with computing(FormatError, "deciding", file=str(target)):
            self.steps = [note_origin(file, step) for step in decision.decide(self._selected(only))]
        if not requantize:
            check_requantized(self.steps, file.name, self.known)
        if stats is not None and not any(map(self._weighed, self.steps)):
            raise UsageError(
                "no encoding of this conversion uses activation statistics", code="stats",
                hint="Leave out activations=.",
            )  # fmt: skip
        self.specs = [step.spec for step in self.steps]
        if len({spec.name for spec in self.specs}) != len(self.specs):
            raise FormatError("two tensors would have one name", file=self.file.name, code="names")
        self.assets, self.undeclared = carried_assets(self.file, self.format)
        self.quality: dict[str, Distance] = {}
        self.clipped: dict[str, int] = {}
        self._checked: set[str] = set()

    def report(self, dry_run: bool) -> Conversion:
        """Sizes and losses as the target format predicts them."""
        index = self.file.index
        with computing(FormatError, f"planning the {self.format} file", file=str(self.target)):
            layout = self.container.plan_file(self.specs, index.meta, self.assets, self.options)
        absent = {item.name for item in layout.dropped if item.kind == "asset"}
        dropped = [*layout.dropped, *(item for item in self.undeclared if item.where not in absent)]
        dropped += [Dropped("child", name) for name in index.children]
        dropped += [Dropped("encoding", str(encoding.codec), "of the whole model") for encoding in index.whole]
        names = [step.name for step in self.steps]
        dropped += [
            Dropped("encoding", encoding.label, where=step.name)
            for step in self.steps for encoding in index.tensors[step.name].encodings if encoding != step.origin
        ]  # fmt: skip
        dropped += [Dropped("part", role, where=name) for name in names for role in index.tensors[name].extras]
        dropped += [
            Dropped("digest", digest[:40], "of an unknown kind", where)
            for where, digest in self._digests() if not is_known(digest)
        ]  # fmt: skip
        rows = {name: (stack, row) for stack, owned in layout.stacks.items() for row, name in enumerate(owned)}
        steps = [
            evolve(step, stack=rows[step.spec.name][0], row=rows[step.spec.name][1]) if step.spec.name in rows else step
            for step in self.steps
        ]
        return Conversion(
            source=self.file.name, target=str(self.target), format=self.format, steps=tuple(steps),
            source_size=self.file.size, dropped=tuple(dropped), dry_run=dry_run,
            size=None if self.packing else layout.size,
            notes=(*layout.notes, *source_notes(self.file, layout)),
            # Habits of many models are written as rules: where there is nothing to keep, nothing is lost.
            unused=tuple(
                rule.pattern for rule in self.rules if rule.pattern and not any(map(rule.matches, index.tensors))
            ),
            ineffective=ineffective_rules(self.rules, steps),
        )  # fmt: skip

    def carry_out(self, report: Conversion, doomed: Sequence[Path], progress: Progress | None) -> Conversion:
        """Write the target, then delete what is `doomed`; the report with what was measured."""
        notes = self.write(progress, report.size)
        steps = tuple(
            evolve(step, quality=self.quality.get(step.name), clipped=self.clipped.get(step.name, 0))
            for step in report.steps
        )
        size = _size_of(self.target)
        if doomed:
            delete(self.file, doomed, self.target, self.format, steps)
        return evolve(report, steps=steps, size=size, notes=(*report.notes, *notes))

    def write(self, progress: Progress | None, size: int | None) -> list[str]:
        """Write beside the target and rename; `size` is the predicted one, headers and all. Returns notes."""
        check_space(self.target, size)
        total = size or sum(step.size for step in self.steps)
        done, current = 0, ""

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if progress:
                progress(current, done, total)

        def start(name: str) -> None:
            nonlocal current
            current = name

        assets = asset_bytes(self.file, self.assets)
        tensors = self.outgoing(start)
        # A full disk may show only when the file is closed, so that the guard is around that, too.
        with computing(FormatError, "writing", file=str(self.target)), self._atomic(advance) as sink:
            self.container.write(sink, tensors, self.file.index.meta, assets, self.options)
        return sink.notes

    def _atomic(self, advance: Callable[[int], None]) -> AbstractContextManager[Sink]:
        mode = common_mode(_paths_of(self.file))
        if self.container.writes_folder(self.options):
            return atomic_folder(self.target, advance, mode)
        return atomic_file(self.target, advance, self.known.byte_codec(self.packing) if self.packing else None, mode)

    def outgoing(self, start: Callable[[str], None] | None = None) -> list[OutgoingTensor]:
        """The tensors as the target holds them, their parts as streams; `start` is told each one's name in its turn.

        Their digests are checked on the way: what is written would vouch for wrong bytes.
        """
        self._check_files()
        tensors = []
        with uncollected():
            for step in self.steps:
                streams = self._streams(step)
                for stream in streams.values():
                    stream.before = partial(self._begin, step, start)
                tensors.append(OutgoingTensor(step.spec, streams))
        return tensors

    def _digests(self) -> Iterator[tuple[str, str]]:
        """What the source says of the bytes that are read: of tensors' parts and of whole files."""
        for step in self.steps:
            for role, part in step.origin.parts.items():
                if part.digest is not None:
                    yield f"{step.name}/{role}", part.digest
        yield from ((ref.name, ref.digest) for ref in self.file.index.files if ref.digest is not None)

    def _check_files(self) -> None:
        if all(ref.digest is None for ref in self.file.index.files):
            return
        parts = [part for step in self.steps for part in step.origin.parts.values()]
        for problem in file_problems(self.file, sorted({segment.file for part in parts for segment in part.segments})):
            if problem.severity == "error":
                raise FormatError(f"{problem.where}: {problem.message}", file=self.file.name, code=problem.code)

    def _begin(self, step: Step, start: Callable[[str], None] | None) -> None:
        if start:
            start(step.name)
        if step.name not in self._checked:
            self._checked.add(step.name)
            for role, part in step.origin.parts.items():
                check_part(self.file, step.name, role, part)
                check_empty(self.file, step.name, role, part)

    def _writable(self) -> Container:
        container = self.known.container(self.format)
        info: Any = self.known.containers[self.format].info
        if not info.can_write:
            can = ", ".join(entry.info.id for entry in self.known.find("container", can_write=True))
            raise UsageError(f"{self.format} cannot be written", code="read-only", hint=f"These can: {can}.")
        return container

    def _selected(self, only: tuple[str, ...]) -> list[TensorSpec]:
        specs = list(self.file.index.tensors.values())
        if not only:
            return specs
        return [spec for spec in specs if any(fnmatchcase(spec.name, pattern) for pattern in only)]

    def _streams(self, step: Step) -> dict[str, Any]:
        if step.action in ("copy", "widen"):
            return (copied if step.action == "copy" else widened)(self.file, step.origin, step.spec.encodings[0])
        if step.action == "repack":
            return repacked(self.file, step.name, step.spec, step.origin)
        lossy = step.exactness.kind == "bounded"
        activations = self.stats.of(step.spec) if self.stats and self._weighed(step) else None
        spec = evolve(step.spec, encodings=(evolve(step.spec.encodings[0], codec=step.codec),))
        report = partial(self._measured, step.name) if lossy else None
        return encoded(self.file, step.name, spec, step.origin, report, activations, step.overflow)

    def _measured(self, name: str, quality: Distance, clipped: int) -> None:
        self.quality[name], self.clipped[name] = quality, clipped

    def _weighed(self, step: Step) -> bool:
        return step.action == "encode" and needs_activations(step.codec, self.known)


def renamed(old: str, old_value: Any, new: str, value: Any) -> Any:
    """The value of an argument that may still be given by its old name, with a DeprecationWarning."""
    if old_value is None:
        return value
    if value is not None:
        raise SquishError(f"{old}= and {new}= are the same argument", code="usage", hint=f"Use {new}= alone.")
    warnings.warn(f"{old}= is now {new}=", DeprecationWarning, stacklevel=3)
    return old_value


def _size_of(target: Path) -> int:
    files = target.rglob("*") if target.is_dir() else [target]
    return sum(path.stat().st_size for path in files if path.is_file())


def _paths_of(file: File) -> list[Path]:
    """The files and the folder that a model lies in; none for bytes in memory."""
    place, source = file.path, file.source
    if place is None or source.packed:
        return [place] if place else []
    folder = place if source.is_dir else place.parent
    return [place, *(folder / ref.name for ref in file.index.files)]
