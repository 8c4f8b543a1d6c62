"""Documents of the commands that read tensors: verify, diff, convert, cp, bench."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen
from squish_convert.compare.diff import TensorDifference
from squish_convert.components import LeftOut
from squish_convert.lineage import Ancestor
from squish_convert.step import RuleEffect

from squish_core.errors import Problem
from squish_core.formats.dropped import Dropped

from ..benchmark import MachineRates, Measurement
from .events import ErrorFields


@frozen
class VerifiedFile:
    """The findings in one file.

    Attributes
    ----------
    ok
        Whether there are no errors; with `--strict`, no warnings either.
    tensors, decoded, digests, unverified
        Numbers of tensors, of decoded ones, of digests, and of those that could not be checked.
    lineage
        Models that it was made from, where metadata states it.
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
    lineage: tuple[Ancestor, ...]
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


Cp = Merge = Convert


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
