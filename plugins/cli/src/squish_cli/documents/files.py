"""Documents of the commands that inspect a file: ls, info, plan, needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from attrs import frozen
from squish_convert.compare.diff import TensorDifference
from squish_convert.lineage import Ancestor

from squish_core.backends.chain import ChainPlugin
from squish_core.backends.offers import Cost
from squish_core.errors import Problem
from squish_core.model import Section
from squish_core.summary import StoredKind, SummaryFile

from ..card import CardErrors, CardFile


@frozen
class StoredPart:
    """A stored part of a tensor.

    Attributes
    ----------
    size
        Stored bytes.
    file, offset
        Where its bytes begin; null if they are not stored in a file.
    """

    role: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    file: str | None
    offset: int | None


@frozen
class ListedTensor:
    """A tensor.

    Attributes
    ----------
    bits
        Bits per weight.
    size
        Stored bytes.
    tied_to
        The tensor that has the same bytes.
    problem
        Why it cannot be read.
    parts
        Its stored parts, with `--long`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    codec: str
    bits: float
    size: int
    tied_to: str | None
    problem: str | None
    parts: tuple[StoredPart, ...] | None


@frozen
class Ls:
    """The tensors of a file."""

    file: str
    format: str
    tensors: tuple[ListedTensor, ...]


@frozen
class Packing:
    """How a file is compressed as a whole.

    Attributes
    ----------
    size
        Bytes on disk.
    """

    codec: str
    size: int


@frozen
class Child:
    """A part of a file with tensors of its own: their number."""

    kind: str
    tensors: int


@frozen
class FileSummary:
    """A file, from its header alone.

    Attributes
    ----------
    link
        Where the file is, if its name is a symbolic link.
    size
        Bytes of all files, uncompressed.
    tensors, parameters
        Their numbers.
    bits
        Bits per weight.
    meta
        Metadata; an array of more than 64 items is `{"length": N}`.
    assets
        Name and size of each.
    components
        Number of tensors of each component.
    lineage
        Models that it was made from, where metadata states it.
    """

    file: str
    link: str | None
    format: str
    version: str
    kind: str
    files: tuple[SummaryFile, ...]
    size: int
    packed: Packing | None
    tensors: int
    parameters: int
    bits: float
    codecs: tuple[StoredKind, ...]
    assets: Mapping[str, int]
    caches: tuple[str, ...]
    pending_caches: tuple[str, ...]
    sections: tuple[Section, ...]
    whole: tuple[str, ...]
    children: Mapping[str, Child]
    problems: tuple[Problem, ...]
    meta: Mapping[str, Any]
    components: Mapping[str, int]
    lineage: tuple[Ancestor, ...]


@frozen
class TensorStatistics:
    """The values of a tensor.

    Attributes
    ----------
    negative, positive
        Exponent k -> number of finite values with a magnitude from 2**k to 2**(k + 1).
    quantiles
        Share -> value.
    outliers
        Share of values more than 3 standard deviations from the mean.
    sampled, exact
        Number of values from which quantiles and outliers come, and whether these are all.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    codec: str
    values: int
    zeros: int
    nan: int
    infinite: int
    min: float | None
    max: float | None
    negative: Mapping[str, int]
    positive: Mapping[str, int]
    mean: float | None
    std: float | None
    rms: float | None
    quantiles: Mapping[str, float]
    outliers: float | None
    sampled: int
    absmax: float | None
    exact: bool


@frozen
class FileStatistics:
    """The values of some tensors of a file (`squish info FILE PATTERN`)."""

    file: str
    format: str
    tensors: tuple[TensorStatistics, ...]


@frozen
class MetadataValue:
    """One metadata value in full (`squish info FILE --meta KEY`)."""

    file: str
    format: str
    key: str
    value: Any


@frozen
class TensorGroup:
    """The tensors of a layer, a kind or a type: their number, parameters, stored bytes and bits per weight."""

    name: str
    tensors: int
    parameters: int
    size: int
    bits: float


@frozen
class FileGroups:
    """The sizes of tensors by layer, kind or type (`squish info FILE --by layer`)."""

    file: str
    format: str
    by: Literal["layer", "kind", "type"]
    groups: tuple[TensorGroup, ...]


Info = FileSummary | FileStatistics | MetadataValue | FileGroups


@frozen
class Browse:
    """The files that were shown."""

    file: str
    against: str | None


@frozen
class TensorColumns:
    """The tensors, a list for each column, in the order of the file.

    Attributes
    ----------
    stored_as
        Numbers of `types`, from 0.
    sizes
        Stored bytes.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    stored_as: tuple[int, ...]
    sizes: tuple[int, ...]


@frozen
class PlannedGroup:
    """Tensors that run alike: their number, and their bytes in memory."""

    backend: str
    mode: str
    codec: str
    why: str
    tensors: int
    size: int


@frozen
class RefusedBackend:
    """Why a backend does not run some of the tensors, and what to install."""

    backend: str
    why: str
    install: str | None


@frozen
class MissingPart:
    """What the model lacks, and why it is needed."""

    name: str
    why: str


@frozen
class ErrorCell:
    """The largest error of a kind of tensors in a layer."""

    layer: str
    kind: str
    nmse: float | None


@frozen
class ComparedFiles:
    """How the second file differs: states of the tensors, errors by layer and kind, and the largest errors."""

    same: bool
    states: Mapping[str, int]
    cells: tuple[ErrorCell, ...]
    tensors: tuple[TensorDifference, ...]


@frozen
class Outliers:
    """A tensor whose largest value is many standard deviations.

    Attributes
    ----------
    absmax
        The largest magnitude.
    outliers
        Share of values more than 3 standard deviations from the mean.
    nan, infinite
        Numbers of values.
    """

    name: str
    mean: float | None
    std: float | None
    absmax: float | None
    outliers: float | None
    nan: int
    infinite: int


@frozen
class Report:
    """A page about a file, which holds this document too.

    Attributes
    ----------
    against
        The second file.
    target
        The page; empty in the page itself.
    magnitudes, scales
        Exponent k -> number of values, or of stored scales, with a magnitude from 2**k to 2**(k + 1), with `--values`.
    unread
        Tensors whose values could not be read.
    outliers
        The tensors whose largest values are the most standard deviations, with `--values`.
    """

    file: str
    against: str | None
    target: str
    summary: FileSummary
    layers: tuple[TensorGroup, ...]
    kinds: tuple[TensorGroup, ...]
    types: tuple[TensorGroup, ...]
    tensors: TensorColumns
    plan: tuple[PlannedGroup, ...]
    refused: tuple[RefusedBackend, ...]
    problems: tuple[Problem, ...]
    missing: tuple[MissingPart, ...]
    difference: ComparedFiles | None
    magnitudes: Mapping[str, int]
    scales: Mapping[str, int]
    unread: tuple[MissingPart, ...]
    outliers: tuple[Outliers, ...]


@frozen
class OfferFields:
    """A way to run a tensor.

    Attributes
    ----------
    cost
        Bytes; null without a file.
    facts
        What else the backend knows of the tensor.
    """

    backend: str
    mode: str
    codec: str
    encoding: str
    ops: tuple[str, ...]
    storage: str
    exact: bool
    cost: Cost | None
    facts: Mapping[str, Any]


@frozen
class RefusalFields:
    """Why a backend does not run a tensor.

    Attributes
    ----------
    install
        The command that installs what is missing.
    """

    backend: str | None
    codec: str | None
    code: str | None
    why: str
    install: str | None


@frozen
class ChainFields:
    """How a tensor runs, and why.

    Attributes
    ----------
    name
        The tensor; the file for a whole model.
    plugins
        What the choice uses, from the file to the backend.
    """

    name: str
    format: str
    policy: str
    chosen: OfferFields
    because: str
    plugins: tuple[ChainPlugin, ...]
    install: str
    others: tuple[OfferFields, ...]
    refused: tuple[RefusalFields, ...]


@frozen
class NoChain:
    """Why nothing here runs a tensor."""

    name: str
    error: str
    code: str | None
    hint: str | None


@frozen
class FilePlan:
    """How the tensors of a file run.

    Attributes
    ----------
    whole
        What runs the whole model; null for files without an encoding of it.
    pending_caches
        What the first load builds.
    """

    file: str
    mode: str
    whole: ChainFields | NoChain | None
    tensors: tuple[ChainFields | NoChain, ...]
    pending_caches: tuple[str, ...]


Plan = FilePlan | ChainFields


@frozen
class NeededPlugin:
    """A plugin that a file needs; `version` is null if it is not installed, `package` if no known one has it."""

    role: str
    id: str
    package: str | None
    version: str | None
    state: Literal["installed", "missing", "broken"]


@frozen
class Needs:
    """The plugins that a file needs.

    Attributes
    ----------
    install
        The command that installs what is missing.
    """

    file: str
    ok: bool
    plugins: tuple[NeededPlugin, ...]
    install: str | None


@frozen
class Card:
    """The description of a file for its model card.

    Attributes
    ----------
    errors
        Of each kind of storage, against `base`.
    command
        What makes such a file.
    """

    file: str
    format: str
    base: str | None
    files: tuple[CardFile, ...]
    errors: tuple[CardErrors, ...]
    command: str | None
    markdown: str
