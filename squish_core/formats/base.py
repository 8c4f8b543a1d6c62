"""Interfaces of file formats: `Container` reads and writes one, `Refinement` reads meaning into another's Index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from attrs import field, frozen
from attrs.validators import deep_iterable, instance_of

from squish_core.codes import ErrorCode
from squish_core.errors import FormatError
from squish_core.io.source import Source
from squish_core.limits import Limits
from squish_core.model import CodecSpec, Encoding, Index, Part, Refusal, TensorSpec
from squish_core.renamed import Renamed

if TYPE_CHECKING:
    from squish_core.formats.outgoing import OutgoingTensor
    from squish_core.io.sink import Sink

Options = Mapping[str, str]


@frozen
class Dropped:
    """Something of the source that the target has no place for.

    `name` is its key, role or file name; `where` is the tensor, part or file that it belongs to, if it belongs to one.
    """

    kind: Literal["metadata", "asset", "attribute", "part", "digest", "child", "encoding", "declaration"]
    name: str
    reason: str = ""
    where: str = ""

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        return f"{where}{self.kind} {self.name}{f' ({self.reason})' if self.reason else ''}"


def dropped_assets(names: Iterable[str], reason: str = "") -> tuple[Dropped, ...]:
    """Assets that have no place."""
    return tuple(Dropped("asset", name, reason) for name in names)


def dropped_metadata(keys: Iterable[str], reason: str = "") -> tuple[Dropped, ...]:
    """Metadata that has no place."""
    return tuple(Dropped("metadata", key, reason) for key in keys)


@frozen(kw_only=True)
class WritePlan:
    """What writing would give: total bytes (None: not known before compression), what has no place, sentences about
    the file that its user should read, and tensors that are written as one: its name, and theirs in the order of its
    rows."""

    size: int | None
    dropped: tuple[Dropped, ...] = field(default=(), validator=deep_iterable(instance_of(Dropped)))
    notes: tuple[str, ...] = ()
    stacks: Mapping[str, Sequence[str]] = field(factory=dict)


class Container(Renamed):
    """A file format: a function from bytes to an Index, and back."""

    renamed: ClassVar[Mapping[str, str]] = {"layout": "plan_file", "recipes": "encodings_for"}
    id: str = ""

    def read_index(self, source: Source, limits: Limits) -> Index:
        """Index of a file; reads the header only and checks everything its format demands."""
        raise NotImplementedError

    def sniff(self, source: Source) -> bool:
        """Whether a file with this format's signature is this format; reads at most 64 KiB.

        Asked only where the declaration has `sniffs`."""
        return True

    def encodings_for(self, **features: Any) -> tuple[Encoding | Refusal, ...]:
        """What a combination of the declared `features` means, ranked; no file needed.

        A way that one feature names and another rules out is a `Refusal`, so that the chain can say why.
        """
        raise FormatError("this format names no encodings by features; ask with a file", code="features")

    def accepts(self, spec: TensorSpec, encoding: Encoding, options: Options) -> Encoding | Refusal:
        """How this format would hold a tensor that is encoded so: parts with dtype and shape but no segments."""
        return Refusal(why="this format is read-only here", code="read-only")

    def choose(self, specs: Sequence[TensorSpec], wanted: CodecSpec, options: Options) -> Mapping[str, CodecSpec]:
        """What a rule for all tensors (`encode=` without a pattern) means for each, by the format's own habits.

        Tensors that it does not name are kept as they are, and so are those that the codec cannot take.
        """
        return {spec.name: wanted for spec in specs}

    def plan_file(
        self,
        specs: Sequence[TensorSpec],
        meta: Mapping[str, Any],
        assets: Mapping[str, Part],
        options: Options,
    ) -> WritePlan:
        """Predict the size of the file and what cannot be carried. Each spec has exactly one encoding."""
        raise FormatError("this format is read-only here", code="read-only")

    def write(
        self,
        sink: Sink,
        tensors: Sequence[OutgoingTensor],
        meta: Mapping[str, Any],
        assets: Mapping[str, bytes],
        options: Options,
    ) -> None:
        """Write a whole file in one pass."""
        raise FormatError("this format is read-only here", code="read-only")

    def writes_folder(self, options: Options) -> bool:
        """Whether these options make a folder of files rather than one file."""
        return False

    def verify(self, index: Index, source: Source, limits: Limits) -> Sequence[Any]:
        """Further Problems that only a look at the data shows; the core already checks bounds, digests, decoding."""
        return ()


def single_value(feature: str, value: Any) -> Any:
    """The one value of a feature of which a tensor has one; FormatError when several are given."""
    if isinstance(value, (set, frozenset, list, tuple)):
        if len(value) != 1:
            raise FormatError(f"a tensor has one {feature}", found=", ".join(sorted(value)), code="feature")
        (value,) = value
    return value


class Refinement(Container):
    """A format stored inside another one: it turns the other's Index into a richer one."""

    def refine(self, index: Index, source: Source, limits: Limits, options: Options) -> Index | None:
        """The refined Index, or None when the file does not declare this format.

        `options` are those of opening (`ContainerInfo.reading`), as `format="id:key=value"` gives them.
        """
        raise NotImplementedError

    def read_index(self, source: Source, limits: Limits) -> Index:
        raise FormatError("a refinement reads an Index, not bytes", code=ErrorCode.PLUGIN_BUG)
