"""A conversion as a job: its tasks run by a scheduler, its output published when all are done."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from attrs import asdict, astuple, evolve, frozen

from squish_core.analysis.metrics import Distance
from squish_core.codes import ErrorCode
from squish_core.conversion.activations import Activations
from squish_core.conversion.canaries import canaries
from squish_core.conversion.execute import paths_of, size_of
from squish_core.conversion.image import PartExtent, output_image
from squish_core.conversion.job import dumps, job_id
from squish_core.conversion.journal import Journal, journal_path
from squish_core.conversion.observer import ConversionObserver
from squish_core.conversion.plan import ConversionPlan
from squish_core.conversion.report import Conversion
from squish_core.conversion.step import Step
from squish_core.conversion.tasks import TASK_BYTES, JobLayout, Task
from squish_core.conversion.worker import Answer, Job, Message, PanelError, write_task
from squish_core.errors import SquishError, UsageError, WriteError
from squish_core.file import File
from squish_core.io.paths import common_mode
from squish_core.io.space import check_space, space_notes
from squish_core.io.staging import Staging
from squish_core.mapping.mapped import apply_map
from squish_core.plugins.registry import Registry
from squish_core.plugins.schedulers import Workers, scheduler_named
from squish_core.text import parse_bytes

SAMPLE = 16
"""Finished tasks whose bytes `resume=True` reads again."""
VERIFY = "verify"


@frozen(kw_only=True)
class JobOptions:
    """How a job runs; nothing in it changes a byte of the target."""

    workers: Workers
    task_bytes: int
    resume: bool | str
    journal: Any

    @classmethod
    def parse(
        cls, scheduler: str | None, task_bytes: int | str | None, resume: bool | str, journal: Any, registry: Registry
    ) -> JobOptions | None:
        """The options that `convert` takes; None without a scheduler."""
        if scheduler is None:
            for name, value in (("task_bytes", task_bytes), ("resume", resume), ("journal", journal)):
                if value:
                    raise UsageError(f"{name}= needs scheduler=", code=ErrorCode.USAGE, hint="Add scheduler='local'.")
            return None
        if resume not in (False, True, VERIFY):
            raise UsageError("invalid resume=", expected="True or 'verify'", found=repr(resume), code=ErrorCode.USAGE)
        nbytes = TASK_BYTES if task_bytes is None else parse_bytes(str(task_bytes))
        if not nbytes:
            raise UsageError(
                "invalid task_bytes=", expected="a size such as 256MiB", found=repr(task_bytes), code=ErrorCode.USAGE
            )
        return cls(
            workers=scheduler_named(scheduler, registry), task_bytes=nbytes, resume=resume, journal=journal,
        )  # fmt: skip


def execute_job(
    plan: ConversionPlan,
    source: File,
    target: Path,
    document: Mapping[str, Any],
    options: JobOptions,
    observer: ConversionObserver | None = None,
    activations: File | None = None,
) -> Conversion:
    """Write what a plan describes, by the processes of a scheduler; the bytes and the report are those of `execute`.

    `document` is the plan's (`job_document`); its SHA-256 names the job.
    """
    space = space_notes(target, plan.size, plan.estimate)
    image = output_image(plan, source)
    file = apply_map(source.without_caches(), plan.model_map, plan.options)
    statistics = None if activations is None else Activations(activations)
    layout = JobLayout(plan, image, file, statistics)
    container = source.registry.container(plan.format)
    is_folder = container.writes_folder(plan.options)
    staging = Staging(target.absolute(), job_id(document)[:16], is_folder=is_folder)
    job = Job(
        plan=plan, image=image, source=address_of(source), format=source.format, limits=source.limits,
        assets=assets_of(document), activations=None if activations is None else address_of(activations),
        pins=document["source"]["files"],
        lock=document["lock"], canaries=canaries(plan, file, statistics),
        files=tuple(str(staging.file(output.name)) for output in image.files), tasks=layout.tasks(options.task_bytes),
    )  # fmt: skip
    run = _Run(job, layout, staging, Journal(journal_path(target, options.journal)))
    with run.opened(_facts(document, job, options), options.resume, common_mode(paths_of(source))):
        run.work(options.workers, observer or ConversionObserver())
        staging.publish()
    run.end()
    return evolve(
        plan.report(), target=str(target), dry_run=False, size=size_of(target),
        notes=(*plan.notes, *space, *staging.notes), steps=run.steps(),
    )  # fmt: skip


def address_of(file: File) -> str:
    """The path or URL by which another process opens a file; UsageError if there is none."""
    if file.path is not None:
        return str(file.path.absolute())
    if "://" in file.name:
        return file.name
    raise UsageError(
        "a job needs a source that other processes can open", found=file.name, expected="a path or a URL",
        code=ErrorCode.USAGE, hint="Save the arrays to a file first, or leave out scheduler=.",
    )  # fmt: skip


def assets_of(document: Mapping[str, Any]) -> str | None:
    """The folder of `assets=`, for another process."""
    assets = document["arguments"].get("assets")
    return assets and str(Path(assets).absolute())


class _Run:
    """One run of a job by this client."""

    def __init__(self, job: Job, layout: JobLayout, staging: Staging, journal: Journal) -> None:
        self.job, self.layout, self.staging, self.journal = job, layout, staging, journal
        self._sizes = {output.name: output.size for output in job.image.files}

    @contextmanager
    def opened(self, facts: Mapping[str, Any], resume: bool | str, mode: int | None) -> Iterator[None]:
        """Stage the output, or go on with that of an earlier run. What a failed run has finished stays."""
        self.staging.check_target()
        resumes = self._resumes(facts, resume)
        try:
            if not resumes:
                self.staging.create(self._sizes, mode)
                self.journal.start(facts)
            self._write_literals()
            yield
        except BaseException as error:
            self.journal.close()
            if not self.journal.entries:
                self.end()
            elif isinstance(error, SquishError):
                again = f"{len(self.journal.entries)} of {len(self.job.tasks)} tasks are done: go on with resume=True."
                error.hint = f"{error.hint} {again}" if error.hint else again
            self.staging.close()
            raise

    def work(self, workers: Workers, observer: ConversionObserver) -> None:
        """Run the tasks that are not done."""
        data = pickle.dumps(self.job, protocol=5)
        self.staging.job.write_bytes(data)
        digest = sha256(data).hexdigest()
        for entry in self.journal.entries.values():
            observer.bytes_written(entry["bytes"])
        open_tasks = [task for task in self.job.tasks if task.number not in self.journal.entries]
        messages = [Message(str(self.staging.job), digest, task.number) for task in open_tasks]
        with closing(workers.map(write_task, messages, task_memory(self.job.plan))) as answers:
            for number, answer in answers:
                self.journal.append(self._entry(open_tasks[number], answer))
                observer.tensor_started(self.job.plan.steps[open_tasks[number].pieces[0].step].name)
                observer.bytes_written(answer.nbytes)

    def steps(self) -> tuple[Step, ...]:
        """The steps with their measured errors, added in the order of their panels."""
        errors: dict[int, list[PanelError]] = {}
        for entry in self.journal.entries.values():
            for fields in entry["errors"]:
                error = PanelError(*fields)
                errors.setdefault(error.step, []).append(error)
        return tuple(_measured(step, errors.get(number, ())) for number, step in enumerate(self.job.plan.steps))

    def end(self) -> None:
        """Remove the journal, then what is left beside the target."""
        self.journal.remove()
        self.staging.remove()

    def _resumes(self, facts: Mapping[str, Any], resume: bool | str) -> bool:
        """Whether an earlier run is there to go on with; its finished tasks are checked."""
        if not self.journal.exists:
            check_space(self.staging.target, self.job.plan.size)
            return False
        self.journal.read()
        if self.staging.path.is_dir():
            try:
                self.staging.lock()
            except WriteError as error:
                raise evolve_hint(error, f"It belongs to {self.journal.owner()}.") from None
        if not resume:
            raise UsageError(
                "a journal of an unfinished job is there", file=str(self.journal.path), code="journal",
                found=f"{len(self.journal.entries)} finished tasks, started by {self.journal.owner()}",
                hint="Go on with resume=True, or remove it to start anew.",
            )  # fmt: skip
        self.journal.check(facts)
        if not self.staging.path.is_dir():
            self.staging.notes.append("the temporary of the unfinished job was gone, so it was started anew")
            self.journal.remove()
            self.journal.entries.clear()
            return False
        self.staging.check_sizes(self._sizes)
        self._drop_damaged(every=resume == VERIFY)
        self.journal.resume()
        return True

    def _drop_damaged(self, *, every: bool) -> None:
        """Forget tasks whose bytes are no longer those they wrote: of a sample, or of all if one of these is."""
        numbers = sorted(self.journal.entries)
        sample = numbers if every else numbers[:: max(len(numbers) // SAMPLE, 1)]
        damaged = [number for number in sample if not self._is_intact(number)]
        if damaged and not every:
            damaged = [number for number in numbers if not self._is_intact(number)]
        for number in damaged:
            del self.journal.entries[number]
        if damaged:
            self.staging.notes.append(f"{len(damaged)} finished tasks were damaged, and done again")

    def _is_intact(self, number: int) -> bool:
        digests = list[bytes]()
        for piece in self.job.tasks[number].pieces:
            for place in self.layout.ranges(piece):
                digest, rest = sha256(), place.stop - place.start
                with open(self.job.files[place.file], "rb") as file:
                    file.seek(place.offset)
                    while rest and (chunk := file.read(min(rest, 1 << 22))):
                        digest.update(chunk)
                        rest -= len(chunk)
                digests.append(digest.digest())
        return sha256(b"".join(digests)).hexdigest() == self.journal.entries[number]["sha256"]

    def _write_literals(self) -> None:
        """Write headers, padding and assets; durable on return."""
        for output, path in zip(self.job.image.files, self.job.files):
            with open(path, "r+b") as file:
                for extent, offset in zip(output.extents, output.starts):
                    if not isinstance(extent, PartExtent):
                        file.seek(offset)
                        file.write(extent)
                file.flush()
                os.fsync(file.fileno())

    def _entry(self, task: Task, answer: Answer) -> dict[str, Any]:
        """The line of a finished task."""
        runs = list[list[Any]]()
        for place in sorted(
            (place for piece in task.pieces for place in self.layout.ranges(piece)),
            key=lambda place: (place.file, place.offset),
        ):
            name, stop = self.job.image.files[place.file].name, place.offset + place.stop - place.start
            if runs and runs[-1][0] == name and runs[-1][2] == place.offset:
                runs[-1][2] = stop
            else:
                runs.append([name, place.offset, stop])
        facts = asdict(answer, recurse=False)
        facts["errors"] = [list(astuple(error)) for error in answer.errors]
        return {**facts, "bytes": facts.pop("nbytes"), "output": runs}


def task_memory(plan: ConversionPlan) -> int:
    """Bytes that a worker takes for a task, at most: what a process imports, a part held in memory, some panels."""
    largest = max((part.nbytes for step in plan.steps for part in step.origin.parts.values()), default=0)
    return (264 << 20) + min(largest, 256 << 20)


def evolve_hint(error: WriteError, more: str) -> WriteError:
    """The error with a longer hint."""
    error.hint = f"{error.hint} {more}"
    return error


def _measured(step: Step, errors: Any) -> Step:
    if not errors:
        return step
    total = Distance()
    for error in sorted(errors, key=lambda error: error.start):
        total.take(error.max_error, error.error, error.power, error.norm)
    return evolve(step, quality=total, clipped=sum(error.clipped for error in errors))


def _facts(document: Mapping[str, Any], job: Job, options: JobOptions) -> dict[str, Any]:
    """What a job is, for its journal: long lists as their SHA-256."""
    short = {key: value for key, value in document.items() if key not in ("tensors", "image")}
    digests = {key: sha256(dumps({key: document[key]})).hexdigest() for key in ("tensors", "image")}
    return {**short, **digests, "canaries": job.canaries, "task_bytes": options.task_bytes}
