"""A conversion as a job: a scheduler runs its tasks, and the output is published when all are done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any

from attrs import evolve

from squish_core.checking.maps import path_of
from squish_core.file import File
from squish_core.formats.outgoing import Stream
from squish_core.io.paths import common_mode
from squish_core.io.remote_target import RemoteTarget
from squish_core.plugins.registry import Registry
from squish_core.plugins.schedulers import Workers
from squish_core.plugins.sources import open_target, remote_target

from ..activations import Activations
from ..execute import execute, paths_of, size_of
from ..image import OutputFile, OutputImage, PartExtent
from ..mapping.mapped import apply_map
from ..plan import ConversionPlan, image_if_any, writable
from ..report import Conversion
from ..space import space_notes
from ..step import ConversionObserver
from .canaries import canaries
from .document import dumps, job_id
from .journal import Journal, journal_path
from .options import Job
from .remote_staging import RemoteStaging
from .run import JobRun
from .staging import Staging
from .tasks import JobLayout, Piece
from .worker import JobDescription


def resumes_replanned(job: Job, target: Path | RemoteTarget) -> bool:
    """Whether the unfinished job of a target was planned again, by all codes of tensors that are repacked."""
    journal = Journal(journal_path(local_name(target), job.journal))
    return bool(job.resume) and journal.read() and "replanned" in journal.header["job"]


def local_name(target: Path | RemoteTarget) -> Path:
    """The target's path; its name in the current folder if it is at a URL."""
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

    `document` is the plan's (`job_document`); its SHA-256 names the job. `replanned`: planned by all codes of tensors
    that are repacked, because those of the first panels did not suffice. Where the format has no image, workers make
    the encoded parts, and this process writes the target of them.
    """
    image = image_if_any(plan, source)
    is_placed, image = image is not None, image or parts_image(plan)
    file = apply_map(source.without_caches(), plan.model_map, plan.options)
    statistics = None if activations is None else Activations(activations, file)
    layout = JobLayout(plan, image, file, statistics)
    local = local_name(target)
    tag = job_id(document)[:16]
    staging: Staging | RemoteStaging
    if is_placed and isinstance(target, RemoteTarget):
        staging = _remote_staging(target, image, source.registry)
        tasks = layout.file_tasks(job.task_bytes)
    else:
        is_folder = writable(plan.format, source.registry).writes_folder(plan.options)
        staging = Staging(local.absolute(), tag, is_folder=is_folder)
        tasks = layout.tasks(job.task_bytes)
    description = JobDescription(
        id=tag, plan=evolve(plan, image=None), image=image, source=path_of(source),
        format=source.format_spec, limits=source.limits,
        assets=assets_of(document), activations=None if activations is None else path_of(activations),
        pins=document["source"]["files"], lock=document["lock"], canaries=canaries(plan, file, statistics),
        files=tuple(staging.file(output.name) for output in image.files), tasks=tasks, overwrite=overwrite,
    )  # fmt: skip
    run = JobRun(description, layout, staging, Journal(journal_path(local, job.journal)), source.registry)
    facts = _facts(document, description.canaries, job.task_bytes, replanned=replanned)
    with run.opened(facts, job.resume, common_mode(paths_of(source)), overwrite=overwrite):
        run.work(workers, observer or ConversionObserver())
        if is_placed:
            staging.publish()
            report = plan.report()
        else:
            encoded = staged_parts(plan, layout, description.files[0])
            report = execute(plan, source, target, activations=activations, overwrite=overwrite, encoded=encoded)
    run.end()
    if is_placed:
        size = size_of(target) if isinstance(target, Path) else image.size
        notes = space_notes(target, plan.size, plan.estimate) if isinstance(target, Path) else ()
        report = evolve(report, target=str(target), dry_run=False, size=size, notes=(*plan.notes, *notes))
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


def staged_parts(plan: ConversionPlan, layout: JobLayout, path: str) -> dict[str, dict[str, Stream]]:
    """The parts in the file of `parts_image`, by the tensor's name in the source and the role."""
    streams: dict[str, dict[str, Stream]] = {}
    for number, step in enumerate(plan.steps):
        if step.is_computed:
            ranges = {range_.role: range_ for range_ in layout.ranges(Piece(number))}
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
    """The folder of `assets=`, for another process."""
    assets = document["arguments"].get("assets")
    return assets and str(Path(assets).absolute())


def _facts(
    document: Mapping[str, Any], canary_digests: Mapping[str, str], task_bytes: int, *, replanned: bool
) -> dict[str, Any]:
    """The description of a job for its journal: long lists as their SHA-256."""
    short = {key: value for key, value in document.items() if key not in ("tensors", "image")}
    digests = {key: sha256(dumps({key: document[key]})).hexdigest() for key in ("tensors", "image")}
    again = {"replanned": True} if replanned else {}
    return {**short, **digests, "canaries": canary_digests, "task_bytes": task_bytes, **again}
