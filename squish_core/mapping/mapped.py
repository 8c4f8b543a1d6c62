"""An open model under the names, rows and settings of another layout."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import cast

from attrs import evolve, frozen

from squish_core.errors import FormatError, SquishError
from squish_core.families.base import GGUF, HF, Family
from squish_core.families.model import CONFIG_FILE, Model
from squish_core.file import File
from squish_core.formats.base import Dropped, Options
from squish_core.formats.metadata import plain
from squish_core.guard import guarded
from squish_core.mapping.coverage import bare, cover
from squish_core.mapping.names import leaves, read_rules
from squish_core.mapping.tensors import Change, MappedTensors, Setting
from squish_core.mapping.values import read_vector
from squish_core.model import Part
from squish_core.plugins.hookspecs import FamilyInfo

_GGUF_NAME = re.compile(r"(?:blk\.\d+|token_embd|output_norm|output)\..+")
ARCHITECTURE = "general.architecture"
ADAPTER_FILE, ADAPTER = "adapter_config.json", "adapter"
"""The file that PEFT writes beside an adapter, and the `general.type` of one in GGUF."""


@frozen(kw_only=True)
class Naming:
    """The family that a file states and the layout of its names; without a family, why it has none.

    An `adapter` has the family of its base model.
    """

    layout: str
    adapter: bool = False
    family: str | None = None
    stated: str | None = None
    reason: str = ""


@frozen
class ModelMap:
    """What a conversion does to a model's names: the naming it has, and the layout it gets."""

    naming: Naming
    layout: str


class MappedFile(File):
    """A file whose tensors, metadata and assets are those of another layout.

    Attributes
    ----------
    original
        The file whose bytes they are.
    family, naming
        The family's id, and what the original states.
    carried
        What surrounds the tensors: metadata, files, what is dropped and what the target's engine will miss.
    """

    def __init__(self, original: File, family: Family, naming: Naming, layout: str, options: Options) -> None:
        self.original, self.family, self.naming, self.layout = original, family.id, naming, layout
        gguf = naming.layout == GGUF
        with guarded(FormatError, f"mapping it as {family.id}", file=original.name):
            model = model_of(original, family, naming.layout)
            settings = family.settings(model)
            sizes = {"layers": 0, "experts": 0, **family.sizes(settings)}
            tied = [tensor.name for tensor in family.tensors if family.is_tied(settings, tensor)]
            self.coverage = cover(family, original.index.tensors, gguf, sizes, tied)
            self.carried = family.carry(model, settings, layout, options)
            setting = Setting(
                layout=layout, sizes=sizes, vectors=self.carried.vectors, constants=self.carried.constants
            )
            self.mapped = MappedTensors(original, family, self.coverage, setting)
        assets = {name: Part(dtype="u8", shape=(len(data),), data=data) for name, data in self.carried.assets.items()}
        kept = {name: part for name, part in original.index.assets.items() if name in self.carried.kept}
        index = evolve(
            original.index, tensors=self.mapped, meta=self.carried.meta, assets={**kept, **assets}, children={}
        )
        super().__init__(original.source, index, original.registry, original.limits)

    def sources(self, name: str) -> tuple[str, ...]:
        """Names of the original's tensors that a tensor is made of."""
        return self.mapped.targets[name].sources

    @property
    def dtypes(self) -> Mapping[str, str]:
        """The type that the target's engine wants of a plain tensor, of those that were looked at."""
        return self.mapped.dtypes

    def change(self, name: str) -> Change:
        """What happens to a tensor besides its name."""
        return self.mapped.changes.get(name, Change())

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """What of the original has no place in the layout."""
        tensors = self.original.index.tensors
        left = [
            Dropped("tensor", name, f"not of the text model, {tensors[name].encodings[0].stored:,} bytes")
            for name in self.coverage.left_out if tensors[name].encodings
        ]  # fmt: skip
        return (*left, *self.carried.dropped)


def naming_of(file: File) -> Naming:
    """The family that a file states, by its metadata or its config, and the layout of its names."""
    gguf = any(_GGUF_NAME.fullmatch(name) for name in file.index.tensors)
    layout = GGUF if gguf else HF
    adapter = ADAPTER_FILE in file.index.assets or file.index.kind == ADAPTER
    if file.index.kind != "model" and not adapter:
        return Naming(layout=layout, reason=f"it is no model but {file.index.kind}")
    try:
        by_keys = gguf and not adapter  # an adapter states no sizes: those of its base model are in its config
        facts = _gguf_facts(file) if by_keys else _config_facts(file)
    except SquishError as error:
        reason = f"its {CONFIG_FILE} cannot be read: {error.message}"
        return Naming(layout=layout, adapter=adapter, reason=reason)
    if facts is None:
        reason = f"it has no {ARCHITECTURE if by_keys else 'model_type in a ' + CONFIG_FILE}"
        return Naming(layout=layout, adapter=adapter, reason=reason)
    stated, experts = facts
    infos = [cast(FamilyInfo, entry.info) for entry in file.registry.families.values()]
    if by_keys:
        alike = [info for info in infos if info.architecture == stated]
        fitting = alike if len(alike) == 1 else [info for info in alike if info.experts == experts]
    else:
        fitting = [info for info in infos if stated in info.model_types]
    if not fitting:
        known = ", ".join(sorted(info.id for info in infos)) or "none is installed"
        reason = f"the family {stated!r} is unknown ({known})"
        return Naming(layout=layout, adapter=adapter, stated=stated, reason=reason)
    return Naming(layout=layout, adapter=adapter, family=fitting[0].id, stated=stated)


def lacking(file: File, naming: Naming) -> list[str]:
    """The tensors of the family that no layer of a file has: it is a part of a model, if there are any.

    One that another takes the place of (the head of a model with tied embeddings) is not among them.
    """
    family = family_of(file, naming)
    rules = read_rules(family, naming.layout == GGUF)
    matches = [rules.find(bare(family, name)) for name in file.index.tensors]
    present = {leaf for match in matches if match is not None for leaf in leaves(match[0].of)}
    required = (tensor.name for tensor in family.tensors if tensor.required and tensor.tied_to is None)
    return [name for name in required if name not in present]


def map_file(file: File, layout: str, options: Options, naming: Naming) -> MappedFile:
    """A file under the names and settings of a layout; SquishError where the family's rules do not cover it."""
    return MappedFile(file, family_of(file, naming), naming, layout, options)


def family_of(file: File, naming: Naming) -> Family:
    """The family that a naming names; FormatError where adapters of it are not mapped."""
    assert naming.family is not None
    family = file.registry.family(naming.family)
    adapters = family.adapter() if naming.adapter else family
    if adapters is None:
        raise FormatError(f"adapters of the family {family.id} are not mapped", file=file.name, code="names")
    return adapters


def mapped(file: File, model_map: ModelMap | None, options: Options) -> File:
    """A file as a map gives it; the same without a map, and where it is mapped already."""
    if model_map is None or isinstance(file, MappedFile):
        return file
    return map_file(file, model_map.layout, options, model_map.naming)


def _gguf_facts(file: File) -> tuple[str, bool] | None:
    meta = file.index.meta
    if ARCHITECTURE not in meta:
        return None
    stated = str(plain(meta[ARCHITECTURE]))
    experts = plain(meta.get(f"{stated}.expert_count", 0))
    return stated, isinstance(experts, int) and experts > 0


def _config_facts(file: File) -> tuple[str, bool] | None:
    if CONFIG_FILE not in file.index.assets:
        return None
    model = Model(
        name=file.name, layout=HF, meta={}, assets={CONFIG_FILE: bytes(file.assets[CONFIG_FILE].raw)}, tensors={},
        vectors={}, limits=file.limits,
    )  # fmt: skip
    stated = model.config().get("model_type")
    return (stated, False) if isinstance(stated, str) else None


def model_of(file: File, family: Family, layout: str) -> Model:
    """What a family sees of a file."""
    assets = {name: bytes(buffer.raw) for name, buffer in file.assets.items()}
    tensors = file.index.tensors
    constants = [name for name in tensors if any(fnmatchcase(name, pattern) for pattern in family.constants)]
    return Model(
        name=file.name, layout=layout, meta=file.index.meta, assets=assets, tensors=tensors,
        vectors={name: read_vector(file, tensors[name]) for name in constants}, limits=file.limits,
    )  # fmt: skip
