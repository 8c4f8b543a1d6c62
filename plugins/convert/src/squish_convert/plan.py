"""The plan of a conversion: its target, and the step of each tensor, decided before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from squish_core.codecs.allocator import ModelFacts
from squish_core.codes import ErrorCode
from squish_core.errors import FormatError, UsageError
from squish_core.file import File
from squish_core.formats.assets import LazyAssets
from squish_core.formats.composite import Companions, CompositeContainer
from squish_core.formats.dropped import Dropped, dropped_assets
from squish_core.formats.write_plan import WritePlan
from squish_core.guard import computing, gc_paused
from squish_core.io.digest import is_supported
from squish_core.model import DENSE, Part, TensorSpec
from squish_core.plugins.registry import Registry
from squish_core.specs import parse_format
from squish_core.text import counted

from .activations import ActivationStatistics, recorded_metadata
from .companions import asset_bytes, inner_losses, split_companions, target_assets, written_companions
from .compatible import check_requantize, needs_activations
from .components import LeftOut, check_part, left_out
from .decision import Decision, SizeOf
from .image import HINT, OutputImage, UnreadAsset, lay_out
from .mapping.apply import apply_map, check_joined, joined_of
from .mapping.mapped import MappedFile, ModelMap, map_notes
from .model_map import (
    KEEP,
    all_names,
    check_complete,
    check_dense,
    choose_map,
    mapped_step,
    select,
    selection_notes,
    stored_parts,
    with_sources,
)
from .recipe import Recipe, rules_like
from .report import Conversion, source_notes
from .rules import (
    Encode,
    EncodeRule,
    check_patterns,
    expand,
    ineffective_rules,
    note_origin,
    overridden_rules,
    parse_rules,
    required_patterns,
    size_notes,
    with_preset,
)
from .step import RuleEffect, Step
from .targets import format_for, packed_by, writable


@frozen(kw_only=True)
class ConversionPlan:
    """A conversion as plain data: picklable, without open files or functions.

    Attributes
    ----------
    source, source_size
        Name and size of the source, in bytes.
    target
        Planned path.
    format, options
        Target format and write options.
    packing
        Byte codec that compresses the file, or None.
    rules
        Rules of `encode=`, short names expanded.
    steps
        The step of each tensor, in source order.
    metadata, assets, children, whole
        Keys, names and codecs to carry over; `execute` reads their values from the source.
    dropped
        What the format cannot store.
    left_out
        Components of the model that are not written.
    image
        Layout of the target's bytes; None if it depends on tensor data, as with compression.
    notes, unused, ineffective
        As in the report (`Conversion`).
    model_map
        Mapping of the model's names, rows and settings; None if they stay the same.
    recorded
        Metadata of the conversion itself: the activation statistics.
    """

    source: str
    source_size: int
    target: str
    format: str
    options: Mapping[str, str]
    packing: str | None
    rules: tuple[EncodeRule, ...]
    steps: tuple[Step, ...] = field(repr=False)
    metadata: tuple[str, ...] = field(repr=False)
    assets: tuple[str, ...]
    children: tuple[str, ...]
    whole: tuple[str, ...]
    dropped: tuple[Dropped, ...]
    left_out: tuple[LeftOut, ...] = ()
    image: OutputImage | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    ineffective: tuple[RuleEffect, ...] = ()
    model_map: ModelMap | None = None
    recorded: Mapping[str, Any] = field(factory=dict, repr=False)

    @property
    def size(self) -> int | None:
        """Size of the target in bytes; None if it is unknown until it is written."""
        return None if self.image is None else self.image.size

    @property
    def estimate(self) -> int:
        """Planned size of the tensors in bytes, without headers and before compression."""
        return sum(step.size for step in self.steps)

    def report(self) -> Conversion:
        """Return the plan as the report of a dry run."""
        return Conversion(
            source=self.source,
            target=self.target,
            format=self.format,
            steps=self.steps,
            source_size=self.source_size,
            size=self.size,
            dropped=self.dropped,
            left_out=self.left_out,
            notes=self.notes,
            unused=self.unused,
            ineffective=self.ineffective,
            dry_run=True,
        )


def plan_conversion(
    source: File,
    target: Path,
    to: str | None = None,
    encode: Encode | None = None,
    *,
    only: str | Iterable[str] | None = None,
    rename: str | None = None,
    part: str | None = None,
    activations: File | None = None,
    requantize: bool = False,
) -> ConversionPlan:
    """Decide what a conversion does with each tensor, without writing anything.

    Reads headers, and only the data that decisions need (`planning_data`): codes to repack, values of encodings
    with parameters for the whole tensor, values that an allocator measures.

    Parameters
    ----------
    source
        An open file.
    target
        Path to write; its suffix gives the format unless `to` does.
    to, encode, only, rename, part, requantize
        As in `convert`.
    activations
        An open file of activation statistics.

    Returns
    -------
    ConversionPlan
        The input of `execute`.

    Raises
    ------
    UsageError
        An argument is invalid, or the conversion needs permission (`requantize`).
    TensorError
        The format cannot hold a tensor.

    Examples
    --------
    >>> from pathlib import Path
    >>> _ = squish.save("ones.safetensors", {"w": np.ones((2, 64), "f4")})
    >>> with squish.open("ones.safetensors") as file:
    ...     plan = plan_conversion(file, Path("ones.gguf"), encode="q8_0")
    >>> [(step.name, step.action, step.target) for step in plan.steps]
    [('w', 'encode', 'ggml.q8_0')]
    """
    return plan_mapped(
        source, target, to, encode, only=only, rename=rename, part=part, activations=activations, requantize=requantize
    )[0]


def plan_mapped(
    source: File,
    target: Path,
    to: str | None = None,
    encode: Encode | None = None,
    *,
    only: str | Iterable[str] | None = None,
    rename: str | None = None,
    part: str | None = None,
    activations: File | None = None,
    requantize: bool = False,
    recipe: Recipe | None = None,
    first_panels: bool = False,
) -> tuple[ConversionPlan, File]:
    """Return the plan of `plan_conversion`, and the source under the names and settings of the plan.

    `recipe`: rules that come before those of `encode`, or a file whose types are copied. `first_panels`: check only the
    first panel of each tensor for codes that fit, so that no other byte is read twice.
    """
    with gc_paused():
        planner = _Planner(source, target, to, activations, first_panels)
        rules = parse_rules(encode, source.without_caches().index.tensors)
        if isinstance(recipe, tuple):
            recipe, rules = None, (*parse_rules(recipe, {}), *rules)
        patterns = (only,) if isinstance(only, str) else tuple(only or ())
        return planner.plan(rules, patterns, rename, check_part(part), requantize, recipe), planner.file


@gc_paused()
def output_image(plan: ConversionPlan, source: File) -> OutputImage:
    """Lay out a target without writing it.

    Parameters
    ----------
    plan
        The result of `plan_conversion`.
    source
        The planned file, open. Metadata and assets are read from it, but no tensor.

    Returns
    -------
    OutputImage
        Every byte of the target, as literal bytes or as part of a tensor.

    Raises
    ------
    UsageError
        The format has no image (code `image`): bytes outside the tensors depend on tensor data.

    Examples
    --------
    >>> from pathlib import Path
    >>> from squish_convert.api import plan_conversion
    >>> _ = squish.save("ones.safetensors", {"w": np.ones((2, 64), "f4")})
    >>> with squish.open("ones.safetensors") as file:
    ...     image = output_image(plan_conversion(file, Path("ones.gguf"), encode="q8_0"), file)
    >>> image.files[0].extents[1]
    PartExtent(tensor='w', role='data', nbytes=136)
    """
    image = image_if_any(plan, source)
    if image is None:
        what = f"a file that is compressed as a whole ({plan.packing})" if plan.packing else plan.format
        raise UsageError(
            f"{what} cannot be laid out before it is written: its bytes depend on those of the tensors",
            file=plan.target,
            code=ErrorCode.IMAGE,
            hint=HINT,
        )
    return image


def image_if_any(plan: ConversionPlan, source: File) -> OutputImage | None:
    """Return the image with all bytes outside the tensors; None if they depend on tensor data or on files beside it."""
    image = plan.image
    if image is not None and not image.is_final and not plan.children and not plan.whole:
        # Large assets are read now.
        source = apply_map(source.without_caches(), plan.model_map, plan.options)
        container = writable(plan.format, source.registry)
        meta = {**source.index.meta, **plan.recorded}
        assets = asset_bytes(source, target_assets(source, plan.format)[0])
        image = lay_out(container, [step.spec for step in plan.steps], meta, assets, plan.options)
    is_beside = writable(plan.format, source.registry).writes_beside(plan.options)
    return None if image is None or not image.is_final or is_beside else image


def shards_image(plan: ConversionPlan, source: File) -> OutputImage | None:
    """Return the image of a set of shards, of which the target is but the name; None for other targets."""
    image = plan.image
    if image is None or not image.is_final or not writable(plan.format, source.registry).writes_beside(plan.options):
        return None
    return None if image.files[0].size else evolve(image, files=image.files[1:])


@frozen
class _Contents:
    """The contents of a target: steps with their rows, and companions; also what is dropped, and the format's notes."""

    steps: tuple[Step, ...]
    companions: Companions
    dropped: tuple[Dropped, ...]
    notes: tuple[str, ...]


class _Planner:
    """Source, target format and registry of one plan."""

    def __init__(
        self, source: File, target: Path, to: str | None, activations: File | None, first_panels: bool
    ) -> None:
        self._first_panels = first_panels
        self.source, self.file, self.registry, self.target = source, source.without_caches(), source.registry, target
        content, self.packing = packed_by(target, self.registry)
        format_spec = to or format_for(content, self.registry)
        self.format, options = parse_format(format_spec, self.registry.writing_options)
        self.container = writable(self.format, self.registry)
        self.options = self.container.options_for(self.file.source, self.file.index, options)
        if self.packing is not None:
            self._check_single_file(content)
        self._activations = activations
        self.statistics: ActivationStatistics | None = None
        self.recorded: Mapping[str, Any] = {}
        self.assets: Mapping[str, Part] = {}
        self._model_map: ModelMap | None = None

    def _check_single_file(self, content: Path) -> None:
        """Raise UsageError if the name has a suffix of compressed files, but the format writes several files."""
        reasons = {
            "its weights are in a file beside it": self.container.writes_beside,
            "it is a folder": self.container.writes_folder,
        }
        for reason, applies in reasons.items():
            if applies(self.options):
                raise UsageError(
                    f"{self.format} is not compressed as a whole: {reason}",
                    code="format",
                    expected=content.name,
                    found=self.target.name,
                    hint="Leave the last suffix out.",
                )

    def plan(
        self,
        rules: tuple[EncodeRule, ...],
        only: tuple[str, ...],
        rename: str | None,
        part: str,
        requantize: bool,
        recipe: File | None,
    ) -> ConversionPlan:
        """Return the plan under these rules."""
        notes = self._map(rename, part)
        rules = self._expanded_rules(rules, only)
        specs = select(self.file, only)
        if recipe is not None:
            copied, absent = rules_like(self.file, recipe, [spec.name for spec in specs])
            rules, notes = (*copied, *rules), (*notes, *absent)
        self.assets, undeclared = target_assets(self.file, self.format)
        with computing(FormatError, "deciding", file=str(self.target)):
            omitted = self.container.omitted([spec.name for spec in specs], self.assets, self.options)

        def size_of(steps: list[Step]) -> int | None:
            image = self._image(self._contents(steps, omitted, undeclared))
            return None if image is None else image.size

        steps = self._decide(rules, [spec for spec in specs if spec.name not in omitted], requantize, size_of)
        contents = self._contents(steps, omitted, undeclared)
        notes += selection_notes(self.file, self.container.naming(self.options), len(specs))
        notes += (*contents.notes, *source_notes(self.file, contents.dropped), *overridden_rules(rules, steps))
        # Rules are often shared by many models, so a `keep` rule may match nothing.
        names = self.file.index.tensors
        unused = (rule.pattern for rule in rules if rule.pattern and not any(map(rule.matches, names)))
        return ConversionPlan(
            source=self.file.name,
            source_size=self.file.size,
            target=str(self.target),
            format=self.format,
            options=dict(self.options),
            packing=self.packing,
            rules=rules,
            steps=contents.steps,
            metadata=_written_names(self.file.index.meta, contents.dropped, "metadata"),
            assets=_written_names(self.assets, contents.dropped, "asset"),
            children=tuple(contents.companions.children),
            whole=tuple(str(encoding.codec) for encoding in contents.companions.whole),
            dropped=contents.dropped,
            left_out=left_out(self.file),
            image=self._image(contents),
            notes=(*notes, *size_notes(rules, steps), *self._statistics_notes(steps)),
            unused=tuple(unused),
            ineffective=ineffective_rules(rules, steps),
            model_map=self._model_map,
            recorded=self.recorded,
        )

    @property
    def _mapped(self) -> MappedFile | None:
        """The file, if it is mapped."""
        return self.file if isinstance(self.file, MappedFile) else None

    def _map(self, rename: str | None, part: str) -> tuple[str, ...]:
        """Map the file to the names, rows and settings that the target's engine expects; returns notes."""
        if (joined := joined_of(self.file)) is not None:
            layout = rename.partition(":")[0] if rename not in (None, KEEP) else self.container.naming(self.options)
            check_joined(joined, layout, keeps_names=rename == KEEP)
        self._model_map, notes = choose_map(self.file, self.container, self.options, rename, part)
        self.file = apply_map(self.file, self._model_map, self.options)
        if rename is None and self._mapped is not None:
            check_complete(self._mapped)
        return (*map_notes(self.file), *notes)

    def _expanded_rules(self, rules: tuple[EncodeRule, ...], only: tuple[str, ...]) -> tuple[EncodeRule, ...]:
        """Return the rules for this model and format, with presets and short names expanded."""
        model = ModelFacts(tuple(self.file.index.tensors), self.file.metadata)
        rules = with_preset(rules, self.container, model)
        rules = tuple(evolve(rule, spec=expand(rule.spec, self.format, self.registry)) for rule in rules)
        check_patterns((*only, *required_patterns(rules)), all_names(self.file), self.file.name)
        return with_sources(rules, self.file)

    def _decide(
        self, rules: tuple[EncodeRule, ...], specs: list[TensorSpec], requantize: bool, size_of: SizeOf
    ) -> list[Step]:
        """Return the step of each tensor; `size_of` gives the bytes of a target with other steps."""
        if self._activations is not None:
            self.statistics = ActivationStatistics(self._activations, self.file)
            self.recorded = recorded_metadata(self.statistics, self.container.statistics_prefix)
        decision = Decision(
            self.file,
            self.container,
            self.options,
            rules,
            self.statistics,
            first_panels=self._first_panels,
            size_of=lambda steps: size_of(self._mapped_steps(steps)),
        )
        with computing(FormatError, "deciding", file=str(self.target)):
            steps = self._mapped_steps(decision.decide(specs))
        check_dense(self.file, steps)
        self._check(steps, [step for step in steps if not requantize and step.name not in decision.nearest])
        return steps

    def _mapped_steps(self, steps: Sequence[Step]) -> list[Step]:
        """Return the steps with notes on their origin, or as steps of the mapped file."""
        if (mapped := self._mapped) is None:
            return [note_origin(self.source, step) for step in steps]
        return [mapped_step(mapped, step) for step in steps]

    def _contents(self, steps: Sequence[Step], omitted: Mapping[str, str], undeclared: Sequence[Dropped]) -> _Contents:
        """Return the contents of the target, and what is dropped."""
        complete = len(steps) == len(self.file)
        companions, abandoned = split_companions(self.source.without_caches(), self.container, complete)
        written = self._write_plan(steps, companions)
        children, whole = written_companions(companions, written.dropped)
        absent = {item.name for item in written.dropped if item.kind == "asset"}
        dropped = (
            *self.file.dropped,
            *(Dropped("tensor", name, reason) for name, reason in omitted.items()),
            *dropped_assets(self.file.index.ignored, "not read"),
            *written.dropped,
            *(item for item in undeclared if item.where not in absent),
            *abandoned,
            *inner_losses(self.source, children),
            *self._always_dropped(steps),
        )
        carried = Companions(
            children={name: companions.children[name] for name in children},
            whole=tuple(encoding for encoding in companions.whole if str(encoding.codec) in whole),
        )
        return _Contents(tuple(_with_rows(steps, written)), carried, dropped, written.notes)

    def _image(self, contents: _Contents) -> OutputImage | None:
        """Return the layout of the target's bytes; None if it depends on tensor data."""

        def read(name: str) -> bytes:
            part = self.assets[name]
            return UnreadAsset(part.nbytes) if part.data is None else bytes(part.data)

        specs = [step.spec for step in contents.steps]
        meta = {**self.file.index.meta, **self.recorded}
        with computing(FormatError, f"planning the {self.format} file", file=str(self.target)):
            image = lay_out(
                self.container,
                specs,
                meta,
                LazyAssets(self.assets, read),
                self.options,
                contents.companions,
                self.target.name,
            )
        return None if self.packing else image

    def _check(self, steps: Sequence[Step], without_permission: Sequence[Step]) -> None:
        """Check all steps; those in `without_permission` must not re-quantize."""
        check_requantize(without_permission, self.source.name, self.registry)
        if self.statistics is not None and not any(
            uses_activations(step, self.registry) or self.statistics.are_zero(step.spec) for step in steps
        ):
            raise UsageError(
                "no encoding of this conversion uses activation statistics",
                code="imatrix",
                hint="Leave out {option:activations}, or use an encoder that weighs errors by them "
                "(q4_k:search=activations).",
            )
        if len({step.spec.name for step in steps}) != len(steps):
            raise FormatError("two tensors would have one name", file=self.file.name, code="names")

    def _statistics_notes(self, steps: Sequence[Step]) -> Iterator[str]:
        """Notes on which tensors the statistics weigh, and which experts had no input while they were collected."""
        if self.statistics is None:
            return
        encoded = [step for step in steps if step.action == "encode" and step.codec.id != DENSE.id]
        weighed = [step for step in encoded if uses_activations(step, self.registry)]
        others = [step.spec for step in encoded if step not in weighed]
        zero = [spec.name for spec in others if self.statistics.are_zero(spec)]
        without = f"; without: {_listed([spec.name for spec in others])}" if others else ""
        yield f"activation statistics weigh {len(weighed):,} of {counted(len(encoded), 'encoded tensor')}{without}"
        if zero:
            yield f"activation statistics that are all zero, ignored: {_listed(zero)}"
        for spec in (step.spec for step in weighed):
            if unseen := self.statistics.unseen(spec):
                yield (
                    f"{spec.name}: by the activation statistics, {len(unseen):,} of {counted(spec.shape[0], 'expert')} "
                    f"had no input ({_listed(list(map(str, unseen)))}); all their columns count alike"
                )

    def _write_plan(self, steps: Sequence[Step], companions: Companions) -> WritePlan:
        meta, specs = {**self.file.index.meta, **self.recorded}, [step.spec for step in steps]
        with computing(FormatError, f"planning the {self.format} file", file=str(self.target)):
            if isinstance(self.container, CompositeContainer):
                return self.container.plan_file(specs, meta, self.assets, self.options, companions)
            return self.container.plan_file(specs, meta, self.assets, self.options)

    def _always_dropped(self, steps: Sequence[Step]) -> Iterator[Dropped]:
        """What no format stores, in addition to what this one drops."""
        index = self.file.index
        if (graph := self.source.index.graph) and self.format != index.format:
            yield Dropped("graph", graph, f"{self.format} stores weights alone")
        specs = [index.tensors[step.name] for step in steps]
        for step, spec in zip(steps, specs):
            others = [encoding for encoding in spec.encodings if encoding != step.origin]
            yield from (Dropped("encoding", encoding.label, where=step.name) for encoding in others)
        yield from (Dropped("part", role, where=spec.name) for spec in specs for role in spec.extras)
        for step in steps:
            for name, role, part in stored_parts(self.file, step):
                if part.digest is not None:
                    yield from _unknown_digest(f"{name}/{role}", part.digest)
        for ref in index.files:
            yield from _unknown_digest(ref.name, ref.digest)


def uses_activations(step: Step, registry: Registry) -> bool:
    """Return whether a step encodes with activation statistics."""
    return step.action == "encode" and needs_activations(step.encoding_codec, registry)


def _listed(names: Sequence[str]) -> str:
    """Names, at most eight."""
    more = f" and {len(names) - 8:,} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


def _unknown_digest(where: str, digest: str | None) -> Iterator[Dropped]:
    if digest is not None and not is_supported(digest):
        yield Dropped("digest", digest[:40], "unknown algorithm", where)


def _written_names(names: Iterable[str], dropped: Iterable[Dropped], kind: str) -> tuple[str, ...]:
    absent = {item.name for item in dropped if item.kind == kind}
    return tuple(name for name in names if name not in absent)


def _with_rows(steps: Sequence[Step], write_plan: WritePlan) -> list[Step]:
    """Return the steps, each with its row if the target stacks tensors."""
    rows = {name: (stack, row) for stack, names in write_plan.stacks.items() for row, name in enumerate(names)}
    return [
        evolve(step, stack=rows[step.spec.name][0], row=rows[step.spec.name][1]) if step.spec.name in rows else step
        for step in steps
    ]
