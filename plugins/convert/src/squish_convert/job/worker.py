"""The worker's side of a job: check that it encodes like the client, then write and measure ranges of the files.

A canary is a fixed panel that client and worker both encode: if the bytes differ, the worker may not join the job.
"""

from __future__ import annotations

import os
import pickle
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import lru_cache, partial
from hashlib import sha256
from itertools import chain, islice, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from squish_core import dtypes, opening
from squish_core.codecs.regions import Region, full, stored_panels
from squish_core.codes import ErrorCode
from squish_core.errors import CodecError, FormatError, SquishError, WriteError
from squish_core.file import File
from squish_core.guard import computing, gc_paused
from squish_core.io.source import Source
from squish_core.io.system import BINARY, write_at
from squish_core.limits import Limits
from squish_core.plugins.registry import Registry, registry
from squish_core.plugins.sources import open_target, remote_target

from ..activations import ActivationStatistics, open_activations
from ..compare.metrics import Distance
from ..execute import check_source
from ..image import OutputFile, OutputImage
from ..joined import open_parts
from ..lock import differences, plugin_lock, source_pins
from ..mapping.apply import apply_map
from ..panels import ALL_PANELS, EncodedPanels
from ..plan import ConversionPlan
from ..step import ConversionObserver, Step
from ..streams import part_bytes, streams_of
from ..verified_reader import VerifiedReader
from ..virtual import panels_of, stored_range
from .staging import upload
from .tasks import JobPartition, Piece, PieceRange, Task, steps_of

if TYPE_CHECKING:
    import numpy as np


class RangeWriter:
    """Writes ranges of output files, and hashes them."""

    def __init__(self, paths: Mapping[int, str] | Sequence[str]) -> None:
        self._paths, self._open, self.nbytes = paths, dict[int, int](), 0
        self._state: dict[PieceRange, tuple[int, Any]] = {}

    def __enter__(self) -> RangeWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        for fd in self._open.values():
            os.close(fd)

    def write_all(self, piece_range: PieceRange, chunks: Iterable[Any]) -> None:
        """Write a whole range."""
        for chunk in chunks:
            self.write(piece_range, memoryview(chunk).cast("B"))
        self.finish([piece_range])

    def write(self, piece_range: PieceRange, data: memoryview) -> None:
        """Append to a range."""
        position, digest = self._state.get(piece_range) or (0, sha256())
        end = position + data.nbytes
        if end > piece_range.nbytes:
            raise self._size_error(piece_range, end)
        digest.update(data)
        path = self._paths[piece_range.file]
        try:
            if piece_range.file not in self._open:
                self._open[piece_range.file] = os.open(path, os.O_WRONLY | BINARY)
            write_at(self._open[piece_range.file], data, piece_range.offset + position)
        except OSError as error:
            raise unwritable_by_worker(path, error) from None
        self._state[piece_range] = end, digest

    def finish(self, piece_ranges: Iterable[PieceRange]) -> None:
        """Raise CodecError unless the ranges are full."""
        for piece_range in piece_ranges:
            position, _ = self._state.get(piece_range) or (0, None)
            if position != piece_range.nbytes:
                raise self._size_error(piece_range, position)
            self.nbytes += position

    def sync(self) -> None:
        """Make everything written durable."""
        for number, fd in self._open.items():
            try:
                os.fsync(fd)
            except OSError as error:
                raise unwritable_by_worker(self._paths[number], error) from None

    def digest(self) -> str:
        """SHA-256 of the digests of all ranges."""
        return sha256(b"".join(digest.digest() for _, digest in self._state.values())).hexdigest()

    def _size_error(self, piece_range: PieceRange, position: int) -> CodecError:
        return CodecError(
            "a part has another size than planned",
            part=piece_range.role,
            code="size",
            expected=piece_range.nbytes,
            found=position,
        )


def write_literals(path: str, output: OutputFile) -> None:
    """Write headers, padding and assets of an output file; durable on return."""
    try:
        with open(path, "r+b") as file:
            for extent, offset in zip(output.extents, output.starts):
                if isinstance(extent, bytes):
                    file.seek(offset)
                    file.write(extent)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise unwritable_by_worker(path, error) from None


def worker_name() -> str:
    """Return the name of this worker in errors and journals: its host and process.

    Returns
    -------
    str
        `HOST:PROCESS`.

    Examples
    --------
    >>> worker_name().rpartition(":")[2].isdecimal()
    True
    """
    return f"{socket.gethostname()}:{os.getpid()}"


def unwritable_by_worker(path: str, error: OSError) -> WriteError:
    """Return the error for an output file that this process cannot write."""
    return WriteError(
        f"cannot be written by the worker {worker_name()}",
        file=path,
        found=error.strerror,
        code="unwritable",
        hint="Workers write into the folder of the target, which must be shared, writable and large enough, or, if the "
        "target is at a URL, into their temporary folders (TMPDIR).",
    )


BUDGET = 1 << 16
"""Approximate bytes of values in a canary panel."""


def canaries(plan: ConversionPlan, file: File, statistics: ActivationStatistics | None) -> dict[str, str]:
    """Codec id -> SHA-256 of a fixed panel, encoded like its first tensor."""
    encoded = [step for step in reversed(plan.steps) if step.action == "encode" and step.spec.elements]
    steps = {step.encoding_codec.id: step for step in encoded}
    return {name: _digest(file, steps[name], statistics) for name in sorted(steps)}


def _digest(file: File, step: Step, statistics: ActivationStatistics | None) -> str:
    panels = panels_of(file, step, statistics)
    assert isinstance(panels, EncodedPanels)
    grain = panels.encoder.grain
    region = next(stored_panels(step.spec.shape, grain, 4, budget=BUDGET), full(step.spec.shape))
    values = _values(region, dtypes.to_numpy(file.bind(file.index.tensors[step.name], step.origin).dtype))
    digest = sha256()
    try:
        with panels.guard():
            parts = panels.encoder.encode(region, values)
    except CodecError as error:  # a lossless codec may not represent the values
        return f"error {error.code}"
    for role in sorted(parts):
        digest.update(part_bytes(parts[role]))
    return digest.hexdigest()


def _values(region: Region, dtype: np.dtype) -> np.ndarray:
    """Values between -1 and 1 from a multiplicative hash: the same on every machine and with every NumPy."""
    import numpy as np

    shape = tuple(part.stop - part.start for part in region)
    hashes = np.arange(1, dtypes.count(shape) + 1, dtype=np.uint64) * np.uint64(2654435761) % np.uint64(1 << 32)
    return (hashes.astype(np.float64) / 2**31 - 1).astype(np.float32).astype(dtype).reshape(shape)


PIECE_MEMORY = 1 << 20
"""Bytes of parts that a worker keeps in memory for some panels of a tensor."""
RELEASED = 16
"""Number of panels after which a worker releases pages of the source."""
RETRIES = 3
"""Number of retries of a task after a source could not be reached."""


@frozen(kw_only=True)
class JobDescription:
    """Everything that workers need, as plain data.

    `id`: the beginning of the SHA-256 of the plan's document. `source`, `activations`: addresses. `pins`: what
    identifies the source's files. `lock`: versions and encoders. `files`: paths or URLs of the output files. `parts`:
    addresses of files of other components.
    `overwrite`: replace files at URLs.
    """

    id: str = ""
    plan: ConversionPlan
    image: OutputImage
    source: str
    format: str
    assets: str | None
    activations: str | None
    limits: Limits
    pins: list[dict[str, Any]]
    lock: dict[str, Any]
    canaries: dict[str, str]
    files: tuple[str, ...]
    tasks: tuple[Task, ...]
    parts: Mapping[str, str] = field(factory=dict)
    overwrite: bool = False


@frozen
class Message:
    """The message to a worker: a task's number, and the path and SHA-256 of the description of its job."""

    job: str
    sha256: str
    task: int


@frozen
class PanelError:
    """Error sums of a step: of one panel, or of all panels of a tensor."""

    step: int
    start: int
    max_error: float
    error: float
    power: float
    norm: float
    clipped: int


@frozen(kw_only=True)
class TaskResult:
    """The result of a task: `sha256` covers the digests of all ranges, in order; `read` counts stored bytes."""

    task: int
    read: int
    nbytes: int
    sha256: str
    errors: tuple[PanelError, ...]
    worker: str
    seconds: float


def write_task(message: Message) -> TaskResult:
    """Write one task; each process opens the job once. Raises the errors of a serial conversion."""
    for attempt in range(RETRIES + 1):
        try:
            return opened_job(message.job, message.sha256).write(message.task)
        except SquishError as error:
            if error.code != ErrorCode.UNREACHABLE or attempt == RETRIES:
                raise
            time.sleep(min(2**attempt, 10))
    raise AssertionError


def read_task(message: Message) -> str | None:
    """The digest of a task's bytes from an earlier run, as in its result; None if they are gone or incomplete."""
    job = opened_job(message.job, message.sha256)
    return written_digest(job.partition, job.job.files, job.job.tasks[message.task], job.file.registry)


def written_digest(partition: JobPartition, files: Sequence[str], task: Task, registry: Registry) -> str | None:
    """Return the digest of a task's bytes in the output files; None if they cannot be read."""
    digests = list[bytes]()
    with ExitStack() as stack:
        sources: dict[int, Source] = {}
        for piece_range in chain.from_iterable(map(partition.ranges, task.pieces)):
            try:
                if piece_range.file not in sources:
                    source = open_target(files[piece_range.file], registry)
                    sources[piece_range.file] = stack.enter_context(closing(source))
                digest, stop = sha256(), piece_range.offset + piece_range.nbytes
                for start in range(piece_range.offset, stop, 1 << 22):
                    digest.update(sources[piece_range.file].read(start, min(1 << 22, stop - start)))
            except FormatError:
                return None
            digests.append(digest.digest())
    return sha256(b"".join(digests)).hexdigest()


@lru_cache(maxsize=1)
def opened_job(path: str, digest: str) -> OpenJob:
    """Open and check the job that a file describes; other bytes than the client's are never unpickled."""
    try:
        with closing(open_target(path, registry())) as source:
            data = source.read(0, source.size)
    except SquishError as error:
        raise _refusal(
            "cannot read the job",
            "readable",
            error.message,
            ErrorCode.MISSING,
            file=path,
            hint="Give all workers the folder of the target, shared and at the same path.",
        ) from None
    if sha256(data).hexdigest() != digest:
        raise _refusal("finds another job", digest, sha256(data).hexdigest(), ErrorCode.CHANGED, file=path)
    with gc_paused():
        return OpenJob(pickle.loads(data))


class OpenJob:
    """A job with its source open in this process."""

    def __init__(self, job: JobDescription) -> None:
        self.job = job
        with ExitStack() as stack:
            source = opening.open(job.source, assets=job.assets, limits=job.limits)
            if source.format_spec != job.format:
                source = opening.open(job.source, job.format, assets=job.assets, limits=job.limits)
            stack.callback(source.close)
            if job.parts:
                source = open_parts(source, job.parts, stack, job.limits, None)
            self.file = apply_map(source.without_caches(), job.plan.model_map, job.plan.options)
            statistics = None
            if job.activations is not None:
                opened = stack.enter_context(open_activations(job.activations, limits=job.limits))
                statistics = ActivationStatistics(opened, self.file)
            self.statistics, self._source = statistics, source
            self._check(source)
            stack.pop_all()
        self.partition = JobPartition(job.plan, job.image, self.file, statistics)

    def write(self, number: int) -> TaskResult:
        """Write and sync the ranges of a task, or write whole files and upload them."""
        task = self.job.tasks[number]
        if not task.files:
            return self._write_pieces(task, self.job.files)
        try:
            return self._write_files(task)
        except SquishError:
            raise
        except OSError as error:
            raise unwritable_by_worker(gettempdir(), error) from None

    def _write_files(self, task: Task) -> TaskResult:
        with TemporaryDirectory(prefix="squish-") as folder:
            paths = {file: str(Path(folder, str(number))) for number, file in enumerate(task.files)}
            for file, path in paths.items():
                output = self.job.image.files[file]
                Path(path).touch()
                os.truncate(path, output.size)
                write_literals(path, output)
            result = self._write_pieces(task, paths)
            for file, path in paths.items():
                self._upload(path, file)
        return result

    def _upload(self, path: str, file: int) -> None:
        url, plugins = self.job.files[file], self.file.registry
        with closing(remote_target(url, plugins)) as target:
            target.job = self.job.id
            upload(Path(path), target, "", partial(open_target, url, plugins), overwrite=self.job.overwrite)

    def _write_pieces(self, task: Task, paths: Mapping[int, str] | Sequence[str]) -> TaskResult:
        started = time.perf_counter()
        reader = VerifiedReader(self.file)
        steps = steps_of(self.job.plan, task)
        reader.begin(reader.file, [step for step, piece in zip(steps, task.pieces) if piece.stop is None])
        writer, errors = RangeWriter(paths), list[PanelError]()
        with writer:
            with reader:
                for piece, step in zip(task.pieces, steps):
                    if piece.start == 0:
                        reader.check(reader.file, step)
                    errors += self._write(reader.file, piece, step, writer)
                    self._release_pages(step)
            writer.sync()
        return TaskResult(
            task=task.number,
            read=sum(map(self._stored_bytes, task.pieces)),
            nbytes=writer.nbytes,
            sha256=writer.digest(),
            errors=tuple(errors),
            worker=worker_name(),
            seconds=time.perf_counter() - started,
        )

    def _stored_bytes(self, piece: Piece) -> int:
        """Stored bytes of a piece: its share of the tensor's bytes, by what is written."""
        step = self.job.plan.steps[piece.step]
        stored = sum(part.nbytes for part in step.origin.parts.values())
        if piece.stop is None:
            return stored
        written = sum(piece_range.nbytes for piece_range in self.partition.ranges(piece))
        return stored * written // max(step.size, 1)

    def _write(self, file: File, piece: Piece, step: Step, writer: RangeWriter) -> Iterable[PanelError]:
        ranges = {piece_range.role: piece_range for piece_range in self.partition.ranges(piece)}
        if step.is_computed:
            return self._encode(file, piece, step, ranges, writer)
        streams = streams_of(file, step, lambda: None, ConversionObserver()) if piece.stop is None else {}
        for role, piece_range in ranges.items():
            start, stop = piece_range.start, piece_range.stop
            chunks = streams[role].chunks() if streams else stored_range(file, step, role, start, stop)
            writer.write_all(piece_range, chunks)
        return ()

    def _release_pages(self, step: Step) -> None:
        """Release pages of mapped files: clusters count them as memory of the worker, and kill it for too many."""
        files = {segment.file for part in step.origin.parts.values() for segment in part.segments}
        for number in files:
            self._source.source_for(number).release_pages()

    def _encode(
        self, file: File, piece: Piece, step: Step, ranges: dict[str, PieceRange], writer: RangeWriter
    ) -> Iterator[PanelError]:
        panels = panels_of(file, step, self.statistics, memory=PIECE_MEMORY if piece.stop else ALL_PANELS)
        regions = islice(panels.regions(), piece.start, piece.stop)
        total, clipped = Distance(), 0
        with computing(CodecError, "encoding", file=file.name, tensor=step.name):
            for number, (parts, distance, count) in enumerate(panels.measured(regions), piece.start):
                for role, piece_range in ranges.items():
                    writer.write(piece_range, part_bytes(parts[role]))
                if distance is not None and piece.stop is not None:
                    yield _error(piece.step, number, distance, count)
                elif distance is not None:
                    total.merge(distance)
                    clipped += count
                if number % RELEASED == 0:
                    self._release_pages(step)
        if step.is_lossy and piece.stop is None:
            yield _error(piece.step, 0, total, clipped)
        writer.finish(ranges.values())

    def _check(self, source: File) -> None:
        """Refuse a different source, different plugins, or encoders that produce different bytes."""
        check_source(self.job.plan, self.file)
        for stored, current in zip_longest(self.job.pins, source_pins(source)):
            if stored != current:
                raise _refusal("finds another source", stored, current, ErrorCode.CHANGED, file=source.name)
        lock = plugin_lock(self.job.plan, source)
        for key, values in self.job.lock.items():
            for name, stored, current in sorted(differences(values, lock[key])):
                raise _refusal(f"has other plugins: {name}", stored, current, "lock")
        current_canaries = canaries(self.job.plan, self.file, self.statistics)
        for name, digest in self.job.canaries.items():
            if current_canaries.get(name) != digest:
                encoder = lock["encoders"].get(name)
                version = lock["versions"].get(encoder)
                raise _refusal(
                    f"encodes {name} to other bytes ({encoder} {version})", digest, current_canaries.get(name), "canary"
                )


def _error(step: int, start: int, distance: Distance, clipped: int) -> PanelError:
    return PanelError(step, start, distance.max_error, distance.error, distance.power, distance.norm, clipped)


def _refusal(fault: str, expected: Any, found: Any, code: str, file: str | None = None, hint: str = "") -> SquishError:
    return SquishError(
        f"the worker {worker_name()} {fault}",
        file=file,
        expected=expected,
        found=found,
        code=code,
        hint=hint or "Give all workers the same files, distributions and versions as the client.",
    )
