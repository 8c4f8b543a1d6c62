"""Converts tensors of a directory to arrays in a temporary folder: in batches, or as one job."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import Any

from attrs import frozen
from squish_convert.api import Conversion, Job, convert

from squish_core.api import ErrorCode, File, FormatError

from ..read.manifest import MANIFEST

BATCH = 256 << 20
"""Size of a batch in bytes of float16 values, which an interrupted build may lose."""
TEMPORARY = ".squish-build-"
Progress = Callable[[str, int, int | None], None]
Arrays = dict[str, Path]
"""Suffix -> file of an array."""


@frozen
class Workspace:
    """The folder for the unfinished arrays of a build, and the job that writes them; None for this process."""

    folder: Path
    job: Job | None = None


def converted(
    own: File, rules: Mapping[str, str], progress: Progress | None, workspace: Workspace, target: str = "npydir"
) -> Iterator[tuple[str, Arrays]]:
    """Yield each tensor with its arrays in a temporary folder; tensors beyond float16's range are stored as float32."""
    if rules and workspace.job is not None:
        yield from _by_job(own, rules, progress, workspace, target)
        return
    sizes = {name: 2 * own.index.tensors[name].elements for name in rules}
    done, total = 0, sum(sizes.values())
    for batch in _batches(sizes):
        with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=own.name) as temporary:
            output = Path(temporary) / "output"
            beyond = saturated(_convert(own, output, target, {name: rules[name] for name in batch}))
            for name, arrays in _arrays(output):
                if name not in beyond:
                    yield name, arrays
                done += sizes[name]
                if progress:
                    progress(name, done, total)
            yield from converted(own, beyond, None, workspace, target)


def _by_job(
    own: File, rules: Mapping[str, str], progress: Progress | None, workspace: Workspace, target: str
) -> Iterator[tuple[str, Arrays]]:
    """Like `converted`, once all arrays are complete: the directory must not change while workers read it."""
    outputs = create_folder(workspace.folder) / "arrays", workspace.folder / "f32"
    beyond: dict[str, str] = {}
    try:
        for output, each in zip(outputs, (rules, beyond)):
            if output.exists():  # the build ended while arrays were moved
                shutil.rmtree(output)
            if each:
                beyond |= saturated(_convert(own, output, target, each, progress=progress, job=workspace.job))
    except BaseException:
        with suppress(OSError):  # unfinished arrays stay for `resume`
            workspace.folder.rmdir()
        raise
    yield from ((name, arrays) for name, arrays in _arrays(outputs[0]) if name not in beyond)
    if beyond:
        yield from _arrays(outputs[1])
    shutil.rmtree(workspace.folder)


def _convert(own: File, output: Path, target: str, rules: Mapping[str, str], **arguments: Any) -> Conversion:
    patterns = {escape(name): rule for name, rule in rules.items()}
    return convert(own, output, target, patterns, only=list(patterns), requantize=True, **arguments)


def _arrays(output: Path) -> Iterator[tuple[str, Arrays]]:
    """Yield each tensor of a directory with its arrays."""
    arrays: dict[str, Arrays] = {}
    for path in (output / "tensors").glob("*.npy"):
        key, _, suffix = path.stem.rpartition("__")
        arrays.setdefault(key, {})[suffix] = path
    for name, key in json.loads((output / MANIFEST).read_text("utf-8")).items():
        yield name, arrays[key]


def saturated(report: Conversion) -> dict[str, str]:
    """Return the tensors beyond float16's range, with the rule for them."""
    return {step.name: "f32" for step in report.steps if step.clipped}


def create_folder(place: Path) -> Path:
    """Create the folder to write to if it is missing; FormatError for a link."""
    if place.is_symlink():
        raise FormatError("cannot write: the target is a symbolic link", file=str(place), code=ErrorCode.FILE_KIND)
    place.mkdir(exist_ok=True)
    return place


def remove_leftovers(folder: Path, workspace: Workspace) -> None:
    """Remove leftovers of killed builds, except for an unfinished job that this build may continue."""
    for left in folder.glob(f"{TEMPORARY}*"):
        if workspace.job is None or left != workspace.folder:
            shutil.rmtree(left)


def _batches(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Yield names in order, in batches with at most `BATCH` output bytes, at least one name each."""
    batch, pending = list[str](), 0
    for name, size in sizes.items():
        if batch and pending + size > BATCH:
            yield batch
            batch, pending = [], 0
        batch.append(name)
        pending += size
    if batch:
        yield batch
