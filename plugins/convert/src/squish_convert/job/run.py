"""Run a conversion as a job: a scheduler runs its tasks, and the output is published when all are finished.

The journal lists finished tasks, so another run resumes with the others.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any

from attrs import asdict, astuple, evolve

from squish_core.checking.maps import path_of
from squish_core.codes import ErrorCode
from squish_core.errors import SquishError, UsageError, WriteError
from squish_core.file import File
from squish_core.formats.outgoing import Stream
from squish_core.guard import gc_paused
from squish_core.io.urls import RemoteTarget
from squish_core.plugins.registry import Registry
from squish_core.plugins.schedulers import Workers
from squish_core.plugins.sources import open_target, remote_target
from squish_core.text import counted, words

from ..activations import ActivationStatistics
from ..compare.metrics import Distance
from ..destination import check_space, space_notes
from ..execute import common_mode, execute, paths_of, size_of
from ..image import OutputFile, OutputImage, PartExtent
from ..joined import addresses
from ..mapping.apply import apply_map
from ..plan import ConversionPlan, image_if_any, shards_image
from ..report import Conversion
from ..step import ConversionObserver, Step
from ..targets import writable
from .document import dumps, job_id
from .journal import Journal, journal_path
from .options import VERIFY, Job
from .staging import RemoteStaging, Staging
from .tasks import JobPartition, Piece, PieceRange, Task
from .worker import (
    JobDescription,
    Message,
    PanelError,
    TaskResult,
    canaries,
    read_task,
    write_literals,
    write_task,
    written_digest,
)


def resumes_replanned(job: Job, target: Path | RemoteTarget) -> bool:
    """Return whether the unfinished job of a target was planned again by all codes of repacked tensors."""
    journal = Journal(journal_path(local_name(target), job.journal))
    return bool(job.resume) and journal.read() and "replanned" in journal.header["job"]


def local_name(target: Path | RemoteTarget) -> Path:
    """Return the target's path; its name in the current folder if it is at a URL."""
    return target if isinstance(target, Path) else Path(target.filename)


def execute_job(
    plan: ConversionPlan,
    source: File,
    target: Path | RemoteTarget,
    document: Mapping[str, Any],
    job: Job,
    workers: Workers,
    observer: ConversionObserver | None = None,
    activations: File | None = None,
    *,
    overwrite: bool = False,
    replanned: bool = False,
) -> Conversion:
    """Write what a plan describes, with a scheduler's processes; bytes and report equal those of `execute`.

    `document` is the plan's (`job_document`); its SHA-256 names the job. `replanned`: planned by all codes of repacked
    tensors, because those of the first panels did not suffice. If the format has no image, workers encode parts, and
    this process writes the target from them.
    """
    shards = shards_image(plan, source) if isinstance(target, Path) else None
    image = shards or image_if_any(plan, source)
    is_placed, image = image is not None, image or parts_image(plan)
    file = apply_map(source.without_caches(), plan.model_map, plan.options)
    statistics = None if activations is None else ActivationStatistics(activations, file)
    partition = JobPartition(plan, image, file, statistics)
    local = local_name(target)
    tag = job_id(document)[:16]
    staging: Staging | RemoteStaging
    if is_placed and isinstance(target, RemoteTarget):
        staging = _remote_staging(target, image, source.registry)
        tasks = partition.file_tasks(job.task_bytes)
    else:
        is_folder = writable(plan.format, source.registry).writes_folder(plan.options)
        staging = Staging(local.absolute(), tag, is_folder=is_folder, is_set=shards is not None)
        tasks = partition.tasks(job.task_bytes)
    description = JobDescription(
        id=tag,
        plan=evolve(plan, image=None),
        image=image,
        **addresses(source),
        format=source.format_spec,
        limits=source.limits,
        assets=assets_of(document),
        activations=None if activations is None else path_of(activations),
        pins=document["source"]["files"],
        lock=document["lock"],
        canaries=canaries(plan, file, statistics),
        files=tuple(staging.file(output.name) for output in image.files),
        tasks=tasks,
        overwrite=overwrite,
    )
    run = JobRun(description, partition, staging, Journal(journal_path(local, job.journal)), source.registry)
    facts = _facts(document, description.canaries, job.task_bytes, replanned=replanned)
    with run.opened(facts, job.resume, common_mode(paths_of(source)), overwrite=overwrite):
        run.work(workers, observer or ConversionObserver())
        if is_placed:
            staging.publish()
            report = plan.report()
        else:
            encoded = staged_parts(plan, partition, description.files[0])
            report = execute(plan, source, target, activations=activations, overwrite=overwrite, encoded=encoded)
    run.end()
    if is_placed:
        written = target.with_name(image.files[0].name) if shards and isinstance(target, Path) else target
        size = image.size if shards or not isinstance(target, Path) else size_of(target)
        notes = space_notes(target, plan.size, plan.estimate) if isinstance(target, Path) else ()
        report = evolve(report, target=str(written), dry_run=False, size=size, notes=(*plan.notes, *notes))
    return evolve(report, notes=(*report.notes, *staging.notes), steps=run.steps())


def parts_image(plan: ConversionPlan) -> OutputImage:
    """One file with the parts of all encoded or repacked tensors, in order."""
    extents = tuple(
        PartExtent(step.spec.name, role, part.nbytes)
        for step in plan.steps
        if step.is_computed
        for role, part in step.spec.encodings[0].parts.items()
    )
    starts = tuple(accumulate((extent.nbytes for extent in extents), initial=0))
    return OutputImage((OutputFile("", extents, starts),))


def staged_parts(plan: ConversionPlan, partition: JobPartition, path: str) -> dict[str, dict[str, Stream]]:
    """Return the parts in the file of `parts_image`, by the tensor's name in the source and the role."""
    streams: dict[str, dict[str, Stream]] = {}
    for number, step in enumerate(plan.steps):
        if step.is_computed:
            ranges = {range_.role: range_ for range_ in partition.ranges(Piece(number))}
            streams[step.name] = {
                role: Stream(part, partial(_chunks, path, ranges[role].offset if role in ranges else 0, part.nbytes))
                for role, part in step.spec.encodings[0].parts.items()
            }
    return streams


def _chunks(path: str, offset: int, length: int) -> Iterator[bytes]:
    with open(path, "rb") as file:
        file.seek(offset)
        while length and (data := file.read(min(length, 4 << 20))):
            length -= len(data)
            yield data


def _remote_staging(target: RemoteTarget, image: OutputImage, registry: Registry) -> RemoteStaging:
    literals = {
        output.name: b"".join(extent for extent in output.extents if isinstance(extent, bytes))
        for output in image.files
        if not any(isinstance(extent, PartExtent) for extent in output.extents)
    }
    return RemoteStaging(
        target, literals, partial(remote_target, registry=registry), partial(open_target, registry=registry)
    )


def assets_of(document: Mapping[str, Any]) -> str | None:
    """Return the folder of `assets=`, for another process."""
    assets = document["arguments"].get("assets")
    return assets and str(Path(assets).absolute())


def _facts(
    document: Mapping[str, Any], canary_digests: Mapping[str, str], task_bytes: int, *, replanned: bool
) -> dict[str, Any]:
    """Return the description of a job for its journal, with long lists replaced by their SHA-256."""
    short = {key: value for key, value in document.items() if key not in ("tensors", "image")}
    digests = {key: sha256(dumps({key: document[key]})).hexdigest() for key in ("tensors", "image")}
    again = {"replanned": True} if replanned else {}
    return {**short, **digests, "canaries": canary_digests, "task_bytes": task_bytes, **again}


SAMPLE = 16
"""Maximum number of finished tasks whose bytes `resume=True` reads before it starts."""
SAMPLE_BYTES = 256 << 20
"""Approximate maximum of these bytes."""


class JobRun:
    """One run of a job by this client."""

    def __init__(
        self,
        job: JobDescription,
        partition: JobPartition,
        staging: Staging | RemoteStaging,
        journal: Journal,
        registry: Registry,
    ) -> None:
        self.job, self.partition, self.staging, self.journal = job, partition, staging, journal
        self._registry, self._is_local = registry, isinstance(staging, Staging)
        self._unread = set[int]()
        self._sizes = {output.name: output.size for output in job.image.files}

    @contextmanager
    def opened(
        self, facts: Mapping[str, Any], resume: bool | str, mode: int | None, *, overwrite: bool
    ) -> Iterator[None]:
        """Stage the output, or continue that of an earlier run. Finished tasks of a failed run are kept."""
        try:
            resumes = self._resumes(facts, resume)
            self.staging.check_target(overwrite=overwrite, resume=resumes)
        except BaseException:
            self.journal.close()
            self.staging.close()
            raise
        if not resumes:
            self._start(facts, mode)
        try:
            if isinstance(self.staging, Staging) and not self.staging.is_published:
                for output, path in zip(self.job.image.files, self.job.files):
                    write_literals(path, output)
            yield
        except BaseException as error:
            self.journal.close()
            if not self.journal.entries or getattr(error, "code", None) == ErrorCode.REPLAN:
                self.end()
            else:
                tasks = counted(len(self.job.tasks), "task")
                again = words(f"{len(self.journal.entries):,} of {tasks} done: go on with {{option:resume=True}}.")
                if isinstance(error, SquishError):
                    error.hint = f"{error.hint} {again}" if error.hint else again
                else:  # an interrupt
                    error.add_note(again)
            self.staging.close()
            raise

    def _start(self, facts: Mapping[str, Any], mode: int | None) -> None:
        """Create the output and the journal, or neither; those of another client stay."""
        self.staging.create(self._sizes, mode)
        try:
            self.journal.start(facts)
        except BaseException:
            self.staging.remove()
            raise

    def work(self, workers: Workers, observer: ConversionObserver) -> None:
        """Run the unfinished tasks, then check the tasks of earlier runs that have not been checked."""
        with gc_paused():
            data = pickle.dumps(self.job, protocol=5)
        address, digest = self.staging.store_job(data), sha256(data).hexdigest()
        messages = {task.number: Message(address, digest, task.number) for task in self.job.tasks}
        for entry in self.journal.entries.values():
            observer.bytes_written(entry["bytes"])
        unread = sorted(self._unread)
        self._write([messages[number] for number in messages if number not in self.journal.entries], workers, observer)
        if unread:
            with closing(workers.map(read_task, [messages[number] for number in unread])) as digests:
                contents = {unread[index]: digest for index, digest in digests}
            damaged = [number for number in unread if contents[number] != self.journal.entries[number]["sha256"]]
            self._forget(damaged)
            self._write([messages[number] for number in damaged], workers, observer)

    def _write(self, messages: Sequence[Message], workers: Workers, observer: ConversionObserver) -> None:
        """Run tasks, and record each when it is finished."""
        if not messages:
            return
        with closing(workers.map(write_task, messages, task_memory(self.job.plan))) as results:
            for index, result in results:
                task = self.job.tasks[messages[index].task]
                self.journal.append(self._entry(task, result))
                observer.task_finished(result.worker, result.read, result.nbytes, result.seconds)
                observer.tensor_started(self.job.plan.steps[task.pieces[0].step].name)
                observer.bytes_written(result.nbytes)

    def steps(self) -> tuple[Step, ...]:
        """Return the steps with their measured errors, added in the order of their panels."""
        errors: dict[int, list[PanelError]] = {}
        for entry in self.journal.entries.values():
            for fields in entry["errors"]:
                error = PanelError(*fields)
                errors.setdefault(error.step, []).append(error)
        return tuple(_measured(step, errors.get(number, ())) for number, step in enumerate(self.job.plan.steps))

    def end(self) -> None:
        """Remove the journal, then leftovers beside the target."""
        self.journal.remove()
        self.staging.remove()

    def _resumes(self, facts: Mapping[str, Any], resume: bool | str) -> bool:
        """Return whether to resume an earlier run; checks its finished tasks."""
        if not self.journal.read():
            if isinstance(self.staging, Staging):
                check_space(self.staging.target, self.job.image.size)
            return False
        try:
            self.staging.lock()
        except WriteError as error:
            raise _with_hint(error, f"It belongs to {self.journal.owner()}.") from None
        if not resume:
            raise UsageError(
                "a journal of an unfinished job is there",
                file=str(self.journal.path),
                code="journal",
                found=f"{len(self.journal.entries)} finished tasks, started by {self.journal.owner()}",
                hint="Go on with {option:resume=True}, or remove it to start anew.",
            )
        self.journal.check(facts, len(self.job.tasks), len(self.job.plan.steps))
        if self._is_published(every=resume == VERIFY):
            self.journal.resume()
            return True
        if not self.staging.exists:
            self.staging.notes.append("the temporary of the unfinished job was gone, so it was started anew")
            self.end()
            self.journal.entries.clear()
            return False
        self.staging.take_back(self._sizes)
        self._drop_damaged(every=resume == VERIFY)
        self.journal.resume()
        return True

    def _is_published(self, *, every: bool) -> bool:
        """Return whether the target is the output of all tasks, by reading a sample of them."""
        if not isinstance(self.staging, Staging) or not self.staging.is_published:
            return False
        if len(self.journal.entries) < len(self.job.tasks):
            return False
        files = [str(self.staging.published(output.name)) for output in self.job.image.files]
        return all(self._is_intact(number, files) for number in self._sample(every=every))

    def _sample(self, *, every: bool) -> list[int]:
        """Finished tasks to read: all, or some.

        At a URL, a file is whole or absent, and reading a sample would fetch gigabytes.
        """
        numbers = sorted(self.journal.entries)
        if every or not numbers:
            return numbers
        if not self._is_local:
            return []
        mean = sum(entry["bytes"] for entry in self.journal.entries.values()) // len(numbers)
        count = max(min(SAMPLE, SAMPLE_BYTES // max(mean, 1)), 1)
        return numbers[:: -(-len(numbers) // count)]

    def _drop_damaged(self, *, every: bool) -> None:
        """Drop tasks whose bytes have changed: check a sample, and all tasks if one of the sample has changed."""
        numbers, sample, files = sorted(self.journal.entries), self._sample(every=every), self.job.files
        damaged = [number for number in sample if not self._is_intact(number, files)]
        if damaged and not every:
            sample, damaged = numbers, [number for number in numbers if not self._is_intact(number, files)]
        self._forget(damaged)
        self._unread = set(numbers).difference(sample) if self._is_local else set()

    def _forget(self, damaged: Sequence[int]) -> None:
        """Drop the entries of damaged tasks, so that these run again."""
        for number in damaged:
            del self.journal.entries[number]
        if damaged:
            self.staging.notes.append(f"{len(damaged)} finished tasks were damaged, and done again")

    def _is_intact(self, number: int, files: Sequence[str]) -> bool:
        digest = written_digest(self.partition, files, self.job.tasks[number], self._registry)
        return digest == self.journal.entries[number]["sha256"]

    def _ranges(self, task: Task) -> Iterator[PieceRange]:
        return (range_ for piece in task.pieces for range_ in self.partition.ranges(piece))

    def _entry(self, task: Task, result: TaskResult) -> dict[str, Any]:
        """Return the journal entry of a finished task."""
        runs = list[list[Any]]()
        for range_ in sorted(self._ranges(task), key=lambda range_: (range_.file, range_.offset)):
            name, stop = self.job.image.files[range_.file].name, range_.offset + range_.nbytes
            if runs and runs[-1][0] == name and runs[-1][2] == range_.offset:
                runs[-1][2] = stop
            else:
                runs.append([name, range_.offset, stop])
        facts = asdict(result, recurse=False)
        facts["errors"] = [list(astuple(error)) for error in result.errors]
        return {**facts, "bytes": facts.pop("nbytes"), "output": runs}


def task_memory(plan: ConversionPlan) -> int:
    """Upper bound of a worker's memory for a task: imports, a part in memory, some panels."""
    largest = max((part.nbytes for step in plan.steps for part in step.origin.parts.values()), default=0)
    return (264 << 20) + min(largest, 256 << 20)


def _with_hint(error: WriteError, more: str) -> WriteError:
    """Return the error with more text in its hint."""
    error.hint = f"{error.hint} {more}"
    return error


def _measured(step: Step, errors: Any) -> Step:
    if not errors:
        return step
    total = Distance()
    for error in sorted(errors, key=lambda error: error.start):
        total.take(error.max_error, error.error, error.power, error.norm)
    return evolve(step, quality=total, clipped=sum(error.clipped for error in errors))
