"""An open model with the names, rows, settings and other files of another layout."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

from attrs import evolve, frozen

from squish_core.codes import ErrorCode
from squish_core.errors import FormatError, SquishError
from squish_core.file import File
from squish_core.formats.assets import REPLACE
from squish_core.formats.base import Options
from squish_core.formats.dropped import Dropped
from squish_core.formats.metadata import untyped
from squish_core.guard import gc_paused, guarded
from squish_core.model import Part, TensorSpec
from squish_core.plugins import catalog
from squish_core.plugins.hookspecs import FamilyInfo
from squish_core.plugins.registry import Registry
from squish_core.text import close_matches, words

from ..expressions import source_names
from ..families import CONFIG_FILE, ENGINES, GGUF, HF, MTP, TEXT, VISION, Carried, Family, Model, Rule
from ..family_choice import conflict, fitting_families
from .coverage import check_ties, cover, is_dense, is_included, sizes_at, turns_when_dense
from .names import Templates, fill, source_rules
from .tensors import Change, MappedTensors, Setting, read_vector


@frozen(eq=False)
class MappedAssets(Mapping[str, Part]):
    """Files of a mapped model; a file with unchanged content is the part of the original.

    Attributes
    ----------
    files
        The files that the family writes.
    contents, parts
        Contents and parts of the original's files.
    name
        Name of the original, for errors.
    """

    files: Mapping[str, bytes]
    contents: Mapping[str, bytes]
    parts: Mapping[str, Part]
    name: str

    def __getitem__(self, name: str) -> Part:
        with self._guard():
            data = self.files.get(name)
        if data is None:
            raise KeyError(name)
        if self.contents.get(name) == data:
            return self.parts[name]
        return Part(dtype="u8", shape=(len(data),), data=data)

    def __contains__(self, name: object) -> bool:
        with self._guard():
            return name in self.files

    def __iter__(self) -> Iterator[str]:
        with self._guard():
            return iter(list(self.files))

    def __len__(self) -> int:
        with self._guard():
            return len(self.files)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        with gc_paused(), guarded(FormatError, "mapping the model's other files", file=self.name):
            yield


_GGUF_NAME = re.compile(r"(?:blk\.\d+|token_embd|output_norm|output)\..+")
ARCHITECTURE = "general.architecture"
OTHERS = {
    "imatrix": "activation statistics, which {option:activations} takes",
    "vocab": "a vocabulary without weights",
}
"""`Index.kind` -> description, for files that no engine loads as a model."""
PROJECTOR, PROJECTOR_TYPES = "mmproj", ("clip.vision.projector_type", "clip.projector_type")
"""`Index.kind` of GGUFs with a tower of another modality, and the keys with the type of its projector."""
PROJECTORS = ("v.*", "mm.*", "a.*")
"""Tensors of other modalities in GGUF, which Ollama stores beside the text model's."""
ADAPTER_FILE, ADAPTER = "adapter_config.json", "adapter"
"""PEFT's file for an adapter, and the `general.type` of one in GGUF."""


@frozen(kw_only=True)
class Naming:
    """The family and model type that a file declares, and the layout of its names.

    `reason` says why there is no family. An `adapter` has the family of its base model. `class_name` is the class in a
    config.json without `model_type`. `error` is set if config.json cannot be read. `part`: the component of the family.
    """

    layout: str
    part: str = TEXT
    adapter: bool = False
    family: str | None = None
    model_type: str | None = None
    class_name: str | None = None
    reason: str = ""
    error: SquishError | None = None

    def crosses(self, layout: str) -> bool:
        """Whether mapping to a layout enters or leaves GGUF, which has names of its own; the others share most."""
        return (layout == GGUF) != (self.layout == GGUF)


@frozen
class ModelMap:
    """The mapping of a conversion: the source's naming and the target layout."""

    naming: Naming
    layout: str


class MappedFile(File):
    """A file with its tensors, metadata and assets mapped to another layout.

    Attributes
    ----------
    family, naming
        The family's id, and the naming of the original.
    carried
        The mapped metadata and files, and what the target lacks; the family's unless the caller states it.
    predicting
        Patterns of the tensors that predict more tokens, which are left out.
    behind
        Patterns of the layers behind the last one, which the family maps.
    """

    def __init__(
        self,
        original: File,
        family: Family,
        naming: Naming,
        layout: str,
        options: Options,
        coded: bool | None = None,
        *,
        names: Mapping[str, str] | None = None,
        carried: Carried | None = None,
    ) -> None:
        self._original, self.family, self.naming, self.layout = original, family.id, naming, layout
        self._remainder = family.remainder
        gguf = naming.layout == GGUF
        with gc_paused(), guarded(FormatError, f"mapping it as {family.id}", file=original.name):
            model = model_of(original, family, naming.layout)
            settings = family.settings(model)
            sizes = {"layers": 0, "experts": 0, **family.sizes(settings)}
            tied = [tensor.name for tensor in family.tensors if family.is_tied(settings, tensor)]
            self.predicting = family.left_out(settings)
            left_out = (*self.predicting, *(PROJECTORS if gguf and naming.part != VISION else ()))
            absent, optional, moved = family.absent(settings), family.optional(settings), family.moved(settings)
            tensors, before = original.index.tensors, {} if gguf else moved
            self.coverage = cover(family, tensors, gguf, sizes, tied, absent, left_out, optional, before)
            self._modalities = (*family.other_modalities, *PROJECTORS)
            check_ties(original, family, self.coverage, tied)
            self.behind = family.behind(settings)
            only = self.behind if naming.part == MTP else ()
            if only:
                names_of = {each.name for own, each in self.coverage.origins.items() if is_included(own, each, only)}
                model = evolve(model, tensors={name: tensors[name] for name in tensors if name in names_of})
            self.carried = family.carry(model, settings, layout, options) if carried is None else carried
            places = {**(names or {}), **({} if layout == GGUF else {own: place for place, own in moved.items()})}
            setting = Setting(
                layout=layout,
                sizes=sizes,
                factors=family.factors(settings),
                vectors=self.carried.vectors,
                constants=self.carried.constants,
                rows=self.carried.rows,
                coded=self.carried.coded if coded is None else coded,
                left_out=self.carried.left_out,
                only=only,
                moved=places,
            )
            self.mapped = MappedTensors(original, family, self.coverage, setting)
        assets = MappedAssets(self.carried.assets, model.assets, original.index.assets, original.name)
        index = evolve(original.index, tensors=self.mapped, meta=self.carried.meta, assets=assets, children={})
        super().__init__(original.source, index, original.registry, original.limits)

    @property
    def original(self) -> File:
        return self._original

    @property
    def members(self) -> tuple[MappedFile, ...]:
        """The mapped files whose tensors these are: this one alone, unless several are joined."""
        return (self,)

    def sources(self, name: str) -> tuple[str, ...]:
        return self.mapped.targets[name].sources

    @property
    def dtypes(self) -> Mapping[str, str]:
        """As in `File`, for the specs accessed so far."""
        return self.mapped.dtypes

    def check_form(self, name: str, stored: TensorSpec) -> None:
        """As `MappedTensors.check_form`."""
        self.mapped.check_form(name, stored)

    def change(self, name: str) -> Change:
        """Return the change to a tensor apart from its name."""
        return self.mapped.changes.get(name, Change())

    @property
    def unwritten(self) -> tuple[str, ...]:
        """The source tensors of other components, which the target does not have."""
        written = {source for target in self.mapped.targets.values() for source in target.sources}
        return (*self.coverage.other_modalities, *(name for name in self.coverage.sources if name not in written))

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        tensors = self._original.index.tensors
        others = [
            Dropped("tensor", name, f"{self._modality(name)}, {tensors[name].encodings[0].stored:,} bytes")
            for name in self.unwritten
            if tensors[name].encodings
        ]
        return (*others, *self.carried.dropped)

    def _modality(self, name: str) -> str:
        """Description of a tensor outside the text model."""
        is_other = any(fnmatchcase(name, pattern) for pattern in self._modalities)
        if self.naming.part == MTP:
            return "not part of the layers behind the last one"
        return "of images or audio, not part of the text model" if is_other else self._remainder


class PassThroughFile(File):
    """A model of an unknown family: its tensors unchanged, with the other files that the target's engine expects.

    Attributes
    ----------
    carried, naming, layout
        As in `MappedFile`.
    """

    def __init__(self, original: File, family: Family, naming: Naming, layout: str, options: Options) -> None:
        self.naming, self.layout = naming, layout
        with gc_paused(), guarded(FormatError, "carrying its settings over", file=original.name):
            model = model_of(original, family, naming.layout)
            self.carried = family.carry(model, {}, layout, options)
        assets = MappedAssets(self.carried.assets, model.assets, original.index.assets, original.name)
        super().__init__(original.source, evolve(original.index, assets=assets), original.registry, original.limits)


def naming_of(file: File, part: str = TEXT) -> Naming:
    """Return the family of a file, from its metadata or config, and the layout of its names; `part`: of a component."""
    is_tower = file.index.kind == PROJECTOR
    gguf = is_tower or _has_gguf_names(file.index.tensors)
    layout, part = GGUF if gguf else HF, VISION if is_tower else part
    adapter = ADAPTER_FILE in file.index.assets or file.index.kind == ADAPTER
    if file.index.kind not in ("model", PROJECTOR) and not adapter:
        kind = OTHERS.get(file.index.kind, file.index.kind)
        return Naming(layout=layout, reason=words(f"it is not a model but {kind}"))
    by_keys = gguf and not adapter  # an adapter states no sizes: those of its base model are in its config
    class_name = None
    try:
        if by_keys:
            facts = _gguf_facts(file)
        else:
            facts, class_name = _config_facts(file)
    except SquishError as error:
        reason = f"its {CONFIG_FILE} cannot be read: {error.message}"
        return Naming(layout=layout, adapter=adapter, reason=reason, error=error.within(hint=REPLACE))
    if facts is None:
        reason = f"it has no {ARCHITECTURE if by_keys else 'model_type in a ' + CONFIG_FILE}"
        return Naming(layout=layout, adapter=adapter, class_name=class_name, reason=reason)
    model_type = facts
    of_family = TEXT if part == MTP else part  # the family of the text layers has those behind them, too
    infos = [info for info in _infos(file.registry) if not info.layouts and info.part == of_family]
    if by_keys:
        fitting = fitting_families(infos, model_type, file.index.meta, file.index.tensors)
    else:
        fitting = _of_config([info for info in infos if model_type in info.model_types], file)
    if not fitting:
        near = close_matches(model_type, sorted({name for info in infos for name in (info.id, *info.model_types)}))
        others = f"none of {len(infos)} has a similar name" if infos else "none is installed"
        reason = f"the family {model_type!r} is unknown ({', '.join(near) or others})"
        if part != TEXT:
            reason = f"Squish maps no {part} component of {model_type!r}"
        return Naming(layout=layout, adapter=adapter, part=part, model_type=model_type, reason=reason)
    if len(fitting) > 1:
        several = conflict(model_type, fitting)
        return Naming(layout=layout, adapter=adapter, model_type=model_type, reason=several.message, error=several)
    return Naming(layout=layout, adapter=adapter, part=part, family=fitting[0].id, model_type=model_type)


def _has_gguf_names(names: Collection[str]) -> bool:
    """Return whether tensors have GGUF's names; InternLM 2 calls its head `output`, too."""
    gguf = any(_GGUF_NAME.fullmatch(name) for name in names if not name.startswith("output."))
    is_hf = any(name.startswith("model.") for name in names)
    return gguf or (not is_hf and any(_GGUF_NAME.fullmatch(name) for name in names))


def _of_config(infos: list[FamilyInfo], file: File) -> list[FamilyInfo]:
    """Return the families of one model type that a config.json fits."""
    if sum(info.by_config for info in infos) < 2:
        return infos
    config = _config_of(file)
    own = file.registry.implementation
    return [info for info in infos if not info.by_config or own("family", info.id).fits(config)]


def missing_tensors(file: File, naming: Naming) -> list[str]:
    """Required tensors of the family that no layer of a file has; if there are any, the file is only part of a model.

    Tensors that may be tied, such as the head, are not listed.
    """
    family = family_of(file, naming)
    rules = source_rules(family, naming.layout == GGUF)
    matches = [match for name in file.index.tensors for match in rules.find_all(family.own_name(name))]
    present = {leaf for rule, _ in matches for leaf in source_names(rule.of)}
    required = (tensor.name for tensor in family.tensors if tensor.required and tensor.tied_to is None)
    missing = [name for name in required if name not in present and name not in family.extras]
    try:
        absent = _absent_templates(file, family, naming, missing) if missing else set()
    except SquishError:
        if all("{n}" in name for name in missing):  # no part of a model: its settings are wrong
            raise
        absent = set()
    return [name for name in missing if name not in absent]


def foreign_tensors(file: File, naming: Naming) -> list[str]:
    """Tensors of a file that are neither part of the family nor left out by conversions."""
    family = family_of(file, naming)
    rules = source_rules(family, naming.layout == GGUF)
    others = (*family.leftovers, *family.other_modalities, *family.constants)
    return [
        name
        for name in file.index.tensors
        if rules.find(family.own_name(name)) is None and not any(fnmatchcase(name, each) for each in others)
    ]


def _absent_templates(file: File, family: Family, naming: Naming, templates: Sequence[str]) -> set[str]:
    """Return the templates of tensors that no layer has, according to the settings; SquishError if these are wrong."""
    with guarded(FormatError, f"reading its settings as {family.id}", file=file.name):
        settings = family.settings(model_of(file, family, naming.layout))
        layers = range(sizes_at({"layers": 0, **family.sizes(settings)}, {})["layers"])
        absent = {*family.absent(settings), *family.optional(settings)}
    numbers = [{"n": layer, "e": 0} for layer in layers]
    return {
        template
        for template in templates
        if (numbers or "{n}" not in template) and all(fill(template, number) in absent for number in numbers or [{}])
    }


def map_file(file: File, layout: str, options: Options, naming: Naming, *, coded: bool | None = None) -> MappedFile:
    """Map a file to the names and settings of a layout; SquishError if the family's rules do not cover it.

    `coded` overrides `Carried.coded`.
    """
    return MappedFile(file, family_of(file, naming), naming, layout, options, coded)


def stores_codes(file: File, family: Family) -> bool:
    """Return whether a file stores codes of a tensor that its layout transposes if dense."""
    rules = turning_rules(family)
    return bool(rules) and any(
        rules.find(name) is not None and not is_dense(spec) for name, spec in file.index.tensors.items()
    )


def turning_rules(family: Family) -> Templates[Rule]:
    """Return the rules for tensors that Hugging Face transposes if dense, by name."""
    return Templates.of((rule.name, rule) for rule in family.names.get(HF, ()) if turns_when_dense(rule.of))


def family_of(file: File, naming: Naming) -> Family:
    """Return the family in a naming; FormatError if its adapters are not mapped."""
    assert naming.family is not None
    family = file.registry.implementation("family", naming.family)
    adapters = family.adapter() if naming.adapter else family
    if adapters is None:
        raise FormatError(f"adapters of the family {family.id} are not mapped", file=file.name, code="names")
    return adapters


def map_notes(file: File) -> tuple[str, ...]:
    """Notes for the report: the family, and what the target's engine will miss."""
    if not isinstance(file, MappedFile | PassThroughFile):
        return ()
    missing = [f"{ENGINES[file.layout]} will lack {item}" for item in file.carried.missing]
    if isinstance(file, PassThroughFile):
        return (f"{file.naming.model_type} is carried over, not checked", *file.carried.notes, *missing)
    return (f"mapped as {file.family} from {file.naming.layout} to {file.layout} names", *file.carried.notes, *missing)


def pass_through_family(file: File, naming: Naming, layout: str) -> str | None:
    """Return the family that passes models of this type through to a layout, if there is one."""
    infos = (info for info in _infos(file.registry) if layout in info.layouts)
    return next((info.id for info in infos if naming.model_type in info.model_types), None)


def family_hint(registry: Registry) -> str:
    """Return why the families of this repository are missing, or how to install them; else an empty text."""
    packages = {name: str(facts["dist"]) for name, facts in catalog.table()["family"].items()}
    for broken in registry.broken:
        if broken.dist in packages.values():
            return f"{broken.dist} is broken: {broken.reason}"
    absent = {package for name, package in packages.items() if name not in registry.families}
    return f"Install the families of models with `{catalog.install_command(*sorted(absent))}`" if absent else ""


def _infos(registry: Registry) -> list[FamilyInfo]:
    return [entry.info for entry in registry.families.values()]


def _gguf_facts(file: File) -> str | None:
    """Return the architecture of a GGUF, or a projector's type."""
    names = PROJECTOR_TYPES if file.index.kind == PROJECTOR else (ARCHITECTURE,)
    meta = file.index.meta
    return next((str(untyped(meta[name])) for name in names if name in meta), None)


def _config_facts(file: File) -> tuple[str | None, str | None]:
    """Return the model type in config.json; without one, the class that config.json names."""
    if CONFIG_FILE not in file.index.assets:
        return None, None
    config = _config_of(file)
    model_type = config.get("model_type")
    if isinstance(model_type, str):
        return model_type, None
    if model_type is None:
        classes = config.get("architectures")
        first = classes[0] if isinstance(classes, list) and classes else None
        return None, first if isinstance(first, str) else None
    raise FormatError(
        "is not the name of a model type",
        part=f"{CONFIG_FILE} model_type",
        code=ErrorCode.CONFIG,
        expected="text such as 'llama'",
        found=f"{type(model_type).__name__} {str(model_type)[:60]}",
    )


def _config_of(file: File) -> dict[str, Any]:
    assets = {CONFIG_FILE: bytes(file.assets[CONFIG_FILE].raw)}
    model = Model(name=file.name, layout=HF, meta={}, assets=assets, tensors={}, vectors={}, limits=file.limits)
    return model.config()


def model_of(file: File, family: Family, layout: str) -> Model:
    """Return a family's view of a file."""
    assets = {name: bytes(buffer.raw) for name, buffer in file.assets.items()}
    tensors = file.index.tensors
    constants = [name for name in tensors if any(fnmatchcase(name, pattern) for pattern in family.constants)]
    return Model(
        name=file.name,
        layout=layout,
        meta=file.index.meta,
        assets=assets,
        tensors=tensors,
        vectors={name: read_vector(file, tensors[name]) for name in constants},
        limits=file.limits,
        rows=lambda name, numbers: file[name][[*numbers]],
    )
