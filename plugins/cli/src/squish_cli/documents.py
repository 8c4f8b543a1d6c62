"""What `--json` prints: a class for each command of this distribution, named like it, with the keys of its document.

The commands print plain data; these classes describe it, and `squish schema` derives JSON Schema from them. Nothing
else imports this module, because classes take time to build. The tests compare every document with its class. A change
of a class needs a new number of the schema (`docs/json.md`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from attrs import frozen
from squish_convert.compare.diff import TensorDifference
from squish_convert.components import LeftOut
from squish_convert.step import RuleEffect

from squish_core.backends.chain import ChainPlugin
from squish_core.backends.offers import Cost
from squish_core.errors import Problem
from squish_core.formats.dropped import Dropped
from squish_core.model import Section
from squish_core.summary import StoredKind, SummaryFile

from .benchmark import MachineRates, Measurement
from .diagnosis import BackendState, Machine, PluginState, Threads


@frozen
class Suggestion:
    """An encoding that would work instead.

    Attributes
    ----------
    codes
        The codes that the target cannot store.
    encode
        What `--encode` takes, one rule each.
    bits
        Bits per weight.
    snr
        Signal-to-noise ratio in dB; null if it is measured while writing.
    """

    codes: str
    encode: tuple[str, ...]
    bits: float
    snr: float | None


@frozen
class ErrorFields:
    """An error.

    Attributes
    ----------
    type
        Its class in Python.
    message
        What is wrong, without the place.
    text
        What the command prints without `--json`.
    file, tensor, part, offset
        Where.
    expected, found
        The values.
    code
        Its code; `docs/errors.md` lists all.
    hint
        The next step.
    suggestions
        Encodings that would work instead, the best first.
    """

    type: str
    message: str
    text: str
    file: str | None
    tensor: str | None
    part: str | None
    offset: int | None
    expected: Any
    found: Any
    code: str | None
    hint: str | None
    suggestions: tuple[Suggestion, ...]


@frozen
class Error:
    """The command could not run; exit code 2."""

    error: ErrorFields


@frozen
class Progress:
    """Progress of a command, with `--json-lines`.

    Attributes
    ----------
    activity
        What the command is doing: verifying, writing, comparing.
    file
        The file, if the command has several.
    name
        The current tensor; null at the start.
    done, total
        Amounts; the total is null if it is not known.
    """

    activity: str
    file: str | None
    name: str | None
    done: int
    total: int | None
    unit: Literal["bytes", "tokens"]


@frozen
class Task:
    """A finished task of a job, with `--json-lines` and `--scheduler`.

    Attributes
    ----------
    read, written
        Bytes of the source and of the target.
    """

    worker: str
    read: int
    written: int
    seconds: float


@frozen
class Text:
    """A piece of the text that `squish run --json-lines` generates."""

    text: str


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


@frozen
class TensorStatistics:
    """The values of a tensor.

    Attributes
    ----------
    negative, positive
        Exponent k -> number of finite values with a magnitude from 2**k to 2**(k + 1).
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
    absmax: float | None


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


Info = FileSummary | FileStatistics | MetadataValue


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
class VerifiedFile:
    """The findings in one file.

    Attributes
    ----------
    ok
        Whether there are no errors; with `--strict`, no warnings either.
    tensors, decoded, digests, unverified
        Numbers of tensors, of decoded ones, of digests, and of those that could not be checked.
    error
        Why the file could not be checked.
    """

    ok: bool
    file: str
    format: str | None
    tensors: int
    deep: bool
    decoded: int
    digests: int
    unverified: int
    problems: tuple[Problem, ...]
    not_checked: tuple[str, ...]
    strict: bool
    error: ErrorFields | None


@frozen
class Verify:
    """The findings in each file."""

    files: tuple[VerifiedFile, ...]


@frozen
class Diff:
    """The differences between two files.

    Attributes
    ----------
    a, b
        The files.
    meta, assets
        Keys and names that differ, and how.
    mapped
        How `b` was mapped to the names of `a`; empty if it was not.
    """

    same: bool
    a: str
    b: str
    tensors: tuple[TensorDifference, ...]
    meta: tuple[str, ...]
    assets: tuple[str, ...]
    mapped: str


@frozen
class Quality:
    """Errors of encoded values; `snr` in dB."""

    snr: float
    nmse: float
    max_error: float
    cosine: float


@frozen
class ConvertedTensor:
    """What is done with a tensor.

    Attributes
    ----------
    written, row
        The target's tensor that holds it, and the row of it if it is stacked.
    source, target
        How it is stored in either.
    source_size, size
        Stored bytes in either.
    bits
        Bits per weight in the target.
    quality
        The error of a lossy encoding.
    """

    name: str
    written: str
    row: int | None
    action: str
    source: str
    target: str
    size: int
    bits: float
    note: str
    overflow: str
    clipped: int
    source_size: int
    exactness: str
    quality: Quality | None


@frozen
class Convert:
    """What a conversion wrote.

    Attributes
    ----------
    source, target
        The files.
    format
        The target's.
    source_size, size
        Bytes of either; null if the size of the target is not known before it is written.
    unused, ineffective
        Rules that match nothing, and those that left most of their bytes unchanged.
    dropped, left_out
        What the target cannot store, and components that are not written.
    deleted
        Files of the source, on request.
    """

    source: str
    target: str
    format: str
    source_size: int
    size: int | None
    dry_run: bool
    seconds: float
    clipped: int
    dropped: tuple[Dropped, ...]
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    unused: tuple[str, ...]
    ineffective: tuple[RuleEffect, ...]
    quality: Quality | None
    deleted: tuple[str, ...]
    tensors: tuple[ConvertedTensor, ...]


Cp = Convert


@frozen
class MatrixAnswer:
    """What runs a combination on a backend."""

    backend: str
    mode: str
    encoding: str
    codec: str
    ops: tuple[str, ...]
    exact: bool
    because: str
    plugins: tuple[ChainPlugin, ...]


@frozen
class MatrixError:
    """Why nothing runs a combination."""

    error: str
    code: str | None
    hint: str | None


@frozen
class MatrixRow:
    """A combination of features, and the answer of each backend."""

    features: Mapping[str, tuple[str, ...]]
    answers: Mapping[str, MatrixAnswer | MatrixError]


@frozen
class Matrix:
    """What runs each combination of a format's features; the backend "any" is the choice among all."""

    format: str
    backends: tuple[str, ...]
    rows: tuple[MatrixRow, ...]


@frozen
class Bench:
    """Measurements, and the limits of the machine.

    Attributes
    ----------
    units
        Name of a figure -> its unit.
    """

    units: Mapping[str, str]
    limits: MachineRates
    rows: tuple[Measurement, ...]


@frozen
class ListedFormat:
    """A file format.

    Attributes
    ----------
    refines
        The format whose files it reads.
    aliases
        Short names for `--encode`.
    features, bits, synonyms
        What `squish plan --feature` takes: values, their bits in a word of flags, other names.
    options, reading
        Options of `--to` and of `--format`, with their descriptions.
    """

    id: str
    title: str
    factory: str
    suffixes: tuple[str, ...]
    refines: str | None
    can_write: bool
    views: bool
    features: Mapping[str, tuple[str, ...]]
    bits: Mapping[str, Mapping[str, int]]
    synonyms: Mapping[str, Mapping[str, str]]
    options: Mapping[str, str]
    reading: Mapping[str, str]
    aliases: Mapping[str, str]
    codecs: tuple[str, ...]
    sniffs: bool
    facts: Mapping[str, str]
    package: str
    version: str


@frozen
class Formats:
    """The file formats.

    Attributes
    ----------
    missing
        Package -> ids, of packages that are not installed.
    """

    formats: tuple[ListedFormat, ...]
    missing: Mapping[str, tuple[str, ...]]


@frozen
class ListedCodec:
    """A codec.

    Attributes
    ----------
    kind
        tensor, bytes or whole.
    needs
        Codecs that decoding needs.
    aliases
        Short names for `--encode`.
    """

    id: str
    title: str
    factory: str
    kind: str
    lossless: bool
    needs: tuple[str, ...]
    aliases: Mapping[str, str]
    suffix: str
    package: str
    version: str


@frozen
class ListedAllocator:
    """An allocator, which chooses an encoding for each tensor."""

    id: str
    title: str
    factory: str
    package: str
    version: str


@frozen
class Codecs:
    """The codecs.

    Attributes
    ----------
    missing
        Package -> ids, of packages that are not installed.
    """

    codecs: tuple[ListedCodec, ...]
    missing: Mapping[str, tuple[str, ...]]
    allocators: tuple[ListedAllocator, ...]


@frozen
class ListedBackend:
    """A backend.

    Attributes
    ----------
    preference
        The higher wins among otherwise equal offers.
    unverified
        The hardware on which it has never run.
    """

    id: str
    title: str
    factory: str
    preference: int
    unverified: str
    package: str
    version: str


@frozen
class Backends:
    """The backends.

    Attributes
    ----------
    missing
        Package -> ids, of packages that are not installed.
    """

    backends: tuple[ListedBackend, ...]
    missing: Mapping[str, tuple[str, ...]]


@frozen
class ListedPlugin:
    """A plugin.

    Attributes
    ----------
    reason
        Why it is broken.
    brings
        The ids that it provides, by kind.
    conflicts
        Ids that others provide, too.
    """

    package: str
    version: str
    ok: bool
    reason: str | None
    brings: Mapping[str, tuple[str, ...]]
    conflicts: tuple[str, ...]


@frozen
class Plugins:
    """The plugins, and all their conflicts."""

    plugins: tuple[ListedPlugin, ...]
    conflicts: tuple[str, ...]


@frozen
class NewPlugin:
    """The folder of a new plugin, and the files in it."""

    target: str
    files: tuple[str, ...]


@frozen
class Temporary:
    """A temporary file that a write left behind.

    Attributes
    ----------
    target
        What was being written.
    size
        Bytes.
    age
        Seconds.
    error
        Why it could not be removed.
    """

    file: str
    target: str
    size: int
    age: float
    state: str
    error: str | None


@frozen
class TornAppend:
    """A file with bytes of an interrupted edit after its end: their number."""

    file: str
    size: int


@frozen
class Leftovers:
    """What interrupted writes left in a folder (`squish doctor FOLDER`)."""

    ok: bool
    folder: str
    temporaries: tuple[Temporary, ...]
    torn_appends: tuple[TornAppend, ...]


@frozen
class Diagnosis:
    """The installation.

    Attributes
    ----------
    versions
        Package -> version; null if it is not installed.
    settings, conflict
        SQUISH_PLUGINS, and why it is invalid.
    missing
        Package -> ids by kind, of packages that are not installed.
    """

    ok: bool
    versions: Mapping[str, str | None]
    machine: Machine
    threads: Threads
    settings: str | None
    conflict: str | None
    conflicts: tuple[str, ...]
    plugins: tuple[PluginState, ...]
    backends: tuple[BackendState, ...]
    missing: Mapping[str, Mapping[str, tuple[str, ...]]]


Doctor = Diagnosis | Leftovers


@frozen
class CachedFolder:
    """A cached folder; its size in bytes."""

    kind: str
    key: str
    size: int
    folder: str


@frozen
class CacheList:
    """The cache: its folder, its limit and size in bytes, and what it holds, the least recently used first."""

    folder: str
    limit: int
    size: int
    entries: tuple[CachedFolder, ...]


@frozen
class CacheClear:
    """The keys of the removed folders, and their size in bytes."""

    removed: tuple[str, ...]
    size: int


@frozen
class Schema:
    """JSON Schema of documents, by name."""

    schemas: Mapping[str, Mapping[str, Any]]
