"""Documents of the commands about this installation: lists of plugins, matrix, doctor, cache, new-plugin, schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from squish_core.backends.chain import ChainPlugin

from ..diagnosis import BackendState, Machine, PluginState, Threads
from ..explain import Explanation
from ..settings import Configuration, State


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
class InstalledPlugins:
    """The plugins, and all their conflicts."""

    plugins: tuple[ListedPlugin, ...]
    conflicts: tuple[str, ...]


@frozen
class AvailablePlugin:
    """A plugin of the directory.

    Attributes
    ----------
    state
        installed or available.
    provides
        Kinds and ids.
    """

    package: str
    state: str
    description: str
    provides: tuple[str, ...]
    repository: str


@frozen
class AvailablePlugins:
    """The plugins of the directory (`squish plugins --available`)."""

    available: tuple[AvailablePlugin, ...]


Plugins = InstalledPlugins | AvailablePlugins


@frozen
class NewPlugin:
    """The folder of a new plugin, and the files in it."""

    target: str
    files: tuple[str, ...]


@frozen
class Install:
    """The command that installs packages.

    Attributes
    ----------
    commands
        Its parts, which are run one after the other, as lists of words.
    executed
        Whether they were run.
    """

    packages: tuple[str, ...]
    command: str
    commands: tuple[tuple[str, ...], ...]
    executed: bool


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
    configuration: Configuration
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


@frozen
class Explain:
    """What a word means; without one, the kinds of words.

    Attributes
    ----------
    kinds
        Kind -> its words, if no word was asked for.
    """

    word: str | None
    kinds: Mapping[str, tuple[str, ...]]
    explanations: tuple[Explanation, ...]


ConfigList = Configuration
ConfigGet = State


@frozen
class ConfigSet:
    """A setting that was written into a file; its value is None if it was removed."""

    file: str
    name: str
    value: str | None


ConfigUnset = ConfigSet
