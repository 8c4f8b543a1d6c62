"""Apply the map of a conversion to its source, whose components may be in several files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve, field, frozen

from squish_core.codes import ErrorCode
from squish_core.errors import FormatError, SquishError, UsageError
from squish_core.file import File
from squish_core.formats.base import Options
from squish_core.formats.dropped import Dropped
from squish_core.guard import guarded
from squish_core.model import Index, Part, TensorSpec
from squish_core.plugins.hookspecs import FamilyInfo
from squish_core.text import words

from ..families import ENGINES, GGUF, HF, TEXT, Carried, Family
from .mapped import (
    MappedFile,
    ModelMap,
    Naming,
    PassThroughFile,
    family_of,
    map_file,
    model_of,
    naming_of,
    pass_through_family,
)
from .tensors import Change

JOINED = "joined"
"""Key in `Index.attrs` of a file that was joined from several."""


@frozen(kw_only=True)
class Joined:
    """The files of a joined one: names by component, and the indexes of those with a family of their own."""

    names: Mapping[str, str]
    indexes: Mapping[str, Index] = field(factory=dict, repr=False)


def joined_of(file: File) -> Joined | None:
    """Return what a file was joined from; None for a single file."""
    return file.index.attrs.get(JOINED)


def apply_map(file: File, model_map: ModelMap | None, options: Options) -> File:
    """Map a file, unless there is no map or the file is mapped already."""
    if model_map is None or isinstance(file, MappedFile | PassThroughFile):
        return file
    naming, layout, joined = model_map.naming, model_map.layout, joined_of(file)
    if pass_through_family(file, naming, layout) == naming.family:
        return PassThroughFile(file, family_of(file, naming), naming, layout, options)
    try:
        if joined is not None and joined.indexes:
            return JoinedModel(file, joined, naming, layout, options)
        return map_file(file, layout, options, naming)
    except SquishError as error:
        if joined is not None and error.tensor in file.index.tensors:
            error.file = _file_with(file, joined, str(error.tensor))
        raise


def _file_with(file: File, joined: Joined, tensor: str) -> str:
    """The name of the file that contains a tensor."""
    parts = [part for each in file.index.tensors[tensor].encodings for part in each.parts.values() if part.segments]
    folder = file.index.files[parts[0].segments[0].file].name.partition("/")[0] if parts else TEXT
    return joined.names[folder]


class _Component(File):
    """The file of one component of a joined one."""

    def __init__(self, whole: File, index: Index, name: str) -> None:
        super().__init__(whole.source, index, whole.registry, whole.limits)
        self._name = name

    @property
    def name(self) -> str:
        return self._name


class _Union(Mapping[str, TensorSpec]):
    """The tensors of several mappings, which share no name."""

    def __init__(self, members: Sequence[Mapping[str, TensorSpec]]) -> None:
        self._members = {name: member for member in members for name in member}

    def __getitem__(self, name: str) -> TensorSpec:
        return self._members[name][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


class JoinedModel(MappedFile):
    """Text layers and other components, under the names and with the settings of the whole checkpoint."""

    def __init__(self, original: File, joined: Joined, naming: Naming, layout: str, options: Options) -> None:
        names, assets = dict[str, str](), dict[str, Part]()
        others = list[tuple[File, Family, Naming, Mapping[str, str]]]()
        text_file = text_of(original, joined)
        text_layers = family_of(text_file, naming)
        for part, index in joined.indexes.items():
            other = _Component(original, index, joined.names[part])
            info = text_family(text_file, other)
            naming = evolve(naming, family=info.id)
            own = naming_of(other)
            family, text = family_of(other, own), family_of(text_file, naming)
            with guarded(FormatError, f"joining it with {text_file.name}", file=other.name):
                whole = family.beside(model_of(other, family, GGUF), text, model_of(text_file, text, GGUF))
            names |= whole.text_names
            text_layers = whole.text or text
            assets |= {name: Part(dtype="u8", shape=(len(data),), data=data) for name, data in whole.assets.items()}
            others.append((other, family, own, whole.own_names))
        index = evolve(text_file.index, assets={**text_file.index.assets, **assets})
        text_file = _Component(original, index, text_file.name)
        main = MappedFile(text_file, text_layers, naming, layout, options, names=names)
        carried = Carried(vectors=main.carried.vectors)
        more = [
            MappedFile(other, family, own, layout, options, names=places, carried=carried)
            for other, family, own, places in others
        ]
        self._original, self._all = original, (main, *more)
        self._members = {name: each for each in self._all for name in each}
        self.family, self.naming, self.layout, self.carried = main.family, naming, layout, main.carried
        self.predicting, self.behind, self.coverage = main.predicting, main.behind, main.coverage
        tensors = _Union([each.mapped for each in self._all])
        File.__init__(self, original.source, evolve(main.index, tensors=tensors), original.registry, original.limits)

    @property
    def members(self) -> tuple[MappedFile, ...]:
        return self._all

    def sources(self, name: str) -> tuple[str, ...]:
        return self._members[name].sources(name)

    @property
    def dtypes(self) -> Mapping[str, str]:
        return {name: dtype for each in self._all for name, dtype in each.dtypes.items()}

    def check_form(self, name: str, stored: TensorSpec) -> None:
        self._members[name].check_form(name, stored)

    def change(self, name: str) -> Change:
        return self._members[name].change(name)

    @property
    def unwritten(self) -> tuple[str, ...]:
        return tuple(name for each in self._all for name in each.unwritten)

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        return tuple(item for each in self._all for item in each.dropped)


def text_of(file: File, joined: Joined) -> File:
    """Return the text layers of a joined file."""
    others = {name for index in joined.indexes.values() for name in index.tensors}
    tensors = {name: spec for name, spec in file.index.tensors.items() if name not in others}
    attrs = {key: value for key, value in file.index.attrs.items() if key != JOINED}
    return _Component(file, evolve(file.index, tensors=tensors, attrs=attrs), joined.names[TEXT])


def text_family(file: File, other: File) -> FamilyInfo:
    """Return the family of the text layers of models that have another file's component.

    The file's own for a model type without a family; FormatError if those of all types have other GGUFs.
    """
    naming, own, registry = naming_of(file), naming_of(other), file.registry
    assert naming.family is not None
    assert own.family is not None
    types = {*registry.families[own.family].info.model_types}
    infos = [entry.info for entry in registry.families.values() if entry.info.part == TEXT and not entry.info.layouts]
    kind = type(registry.implementation("family", naming.family))
    for info in infos:
        is_read = info.architecture in ("", naming.model_type) and not types.isdisjoint(info.model_types)
        if is_read and issubclass(type(registry.implementation("family", info.id)), kind):
            return info
    if types.difference(*(info.model_types for info in infos)):
        return registry.families[naming.family].info
    raise FormatError(
        f"is the component of another model than {file.name}",
        file=other.name,
        part=own.model_type,
        code=ErrorCode.CONTRADICTION,
        expected=f"one beside {naming.model_type}",
        found=f"that of {', '.join(sorted(types))}",
        hint="Name the two files of one model.",
    )


def check_joined(joined: Joined, layout: str | None, *, keeps_names: bool) -> None:
    """Raise UsageError for a target that cannot have all components of a joined file."""
    if joined.indexes and (layout != HF or keeps_names):
        part = next(iter(joined.indexes))
        raise UsageError(
            f"{ENGINES[layout]} reads no {part} component in one file with the text layers"
            if layout in ENGINES and layout != HF
            else f"the {part} component is joined with the text layers only under Hugging Face's names",
            file=joined.names[part],
            code=ErrorCode.USAGE,
            expected=words("{option:to=hf}"),
            hint="Leave {option:part} out; each of the two files is converted by itself.",
        )
