"""`convert` and `save`: codes are repacked, values change only on request, exactness is reported per tensor."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from squish_core import opening
from squish_core.checking.check import ProgressCallback, SourceReader
from squish_core.codes import ErrorCode
from squish_core.errors import CodecError, FileAccessError, UsageError
from squish_core.file import File
from squish_core.formats.outgoing import OutgoingTensor
from squish_core.io.atomic import check_target
from squish_core.io.urls import RemoteTarget
from squish_core.limits import Limits
from squish_core.plugins.registry import Registry
from squish_core.plugins.registry import registry as installed
from squish_core.plugins.sources import remote_target, scheme_of

from .activations import open_activations
from .arrays import in_memory
from .delete_source import deletable, delete
from .destination import space_notes
from .execute import execute, outgoing_tensors
from .job.document import ARGUMENTS, JobFile, document_arguments, job_document
from .job.options import Job
from .joined import open_parts
from .plan import ConversionPlan, plan_conversion, plan_mapped
from .planning_data import end_planning, undecided_notes
from .recipe import open_recipe
from .report import Conversion
from .rules import Encode
from .step import ConversionObserver
from .targets import writable

if TYPE_CHECKING:
    from squish_core.plugins.schedulers import Workers


RULES = ("to", "encode", "only", "rename", "part")
"""Arguments that planning takes unchanged."""


@frozen(kw_only=True, eq=False)
class Inputs:
    """The open source and activation statistics, the target, and the rules for planning."""

    file: File
    activations: File | None
    target: Path | RemoteTarget
    rules: Mapping[str, Any]

    def plan(self, source: File, *, first_panels: bool) -> tuple[ConversionPlan, File]:
        """As `plan_mapped`; `source` is the file, or a wrapper that caches what it reads."""
        path = self.target if isinstance(self.target, Path) else Path(self.target.filename)
        plan, model = plan_mapped(source, path, activations=self.activations, first_panels=first_panels, **self.rules)
        if isinstance(self.target, RemoteTarget):
            _check_remote(plan, source, self.target)
        return evolve(plan, target=str(self.target)), model


def _check_remote(plan: ConversionPlan, source: File, target: RemoteTarget) -> None:
    """Raise UsageError if files would be written beside a file at a URL: only those of folders appear in order."""
    is_folder = writable(plan.format, source.registry).writes_folder(plan.options)
    if not is_folder and plan.image is not None and len(plan.image.files) > 1:
        raise UsageError(
            "files beside a file are not written at a URL",
            file=str(target),
            found=", ".join(each.name for each in plan.image.files[:3]),
            code=ErrorCode.FOLDER,
            hint="Write local files and upload them, or choose a format that writes a folder.",
        )


def open_inputs(
    arguments: Mapping[str, Any], stack: ExitStack, *, limits: Limits | None, registry: Registry | None
) -> Inputs:
    """Open the files that the arguments of `convert` name; `stack` closes them."""
    src, dst = arguments["src"], arguments["dst"]
    if src is None or dst is None:
        raise UsageError(
            "convert needs a source and a target",
            code=ErrorCode.USAGE,
            hint="Name both, or {option:plan=FILE} with an existing plan.",
        )
    file, activations = src, None
    if isinstance(src, Mapping) and not isinstance(src, File):
        file = stack.enter_context(in_memory(src, assets=arguments["assets"], registry=registry))
    elif not isinstance(src, File):
        file = stack.enter_context(opening.open(src, assets=arguments["assets"], limits=limits, registry=registry))
    if arguments["activations"] is not None:
        activations = stack.enter_context(open_activations(arguments["activations"], limits=limits, registry=registry))
    rules = {name: arguments[name] for name in RULES}
    if isinstance(rules["part"], Mapping):
        file = open_parts(file, rules["part"], stack, limits, registry) if rules["part"] else file
        rules["part"] = None
    target: Path | RemoteTarget = Path(dst)
    if scheme_of(dst):
        target = stack.enter_context(closing(remote_target(dst, file.registry)))
    if rules["only"] is not None and not isinstance(rules["only"], str):
        rules["only"] = tuple(rules["only"])
    rules["requantize"] = bool(arguments["requantize"])
    if arguments["recipe"] is not None:
        rules["recipe"] = open_recipe(arguments["recipe"], stack, limits=limits, registry=registry)
    return Inputs(file=file, activations=activations, target=target, rules=rules)


def convert(
    src: Any = None,
    dst: Any = None,
    to: str | None = None,
    encode: Encode | None = None,
    *,
    dry_run: bool = False,
    only: str | Iterable[str] | None = None,
    assets: Any = None,
    rename: str | None = None,
    part: str | Mapping[str, Any] | None = None,
    activations: Any = None,
    requantize: bool = False,
    recipe: Any = None,
    delete_source: bool = False,
    overwrite: bool = False,
    plan: Any = None,
    job: Job | str | None = None,
    progress: ProgressCallback | None = None,
    limits: Limits | None = None,
    registry: Registry | None = None,
) -> Conversion:
    """Write a model in another format, atomically and with one panel in memory. Codes are kept unless `encode` is set.

    Parameters
    ----------
    src
        A path, bytes, an open `File` or a mapping of arrays. Its cache tiers are not read.
    dst
        Target path, or a URL that a plugin writes to (`s3://bucket/model.gguf`). A file is
        replaced, a folder is refused, and a failure leaves both unchanged. At a URL, nothing may exist unless
        `overwrite` is set.
    to
        Format and write options, `ID[:key=value,...]`; by default the format of `dst`'s suffix.
    encode
        `SPEC` or `PATTERN=SPEC` rules, {pattern: SPEC}, or a function from a `TensorSpec` to SPEC or None. The last
        match wins; `keep` leaves a tensor unchanged.
    dry_run
        Report what would happen without writing.
    only
        Name patterns of the tensors to write.
    assets
        As in `open`, unless `src` is an open file.
    rename
        By default, a model of a known family gets the names, rows and settings that the target's engine expects.
        "keep" changes none of them; "hf" or "gguf" selects a layout if the target prescribes none ("hf:FAMILY" if the
        file does not declare its family). Patterns match names of the source and of the target.
    part
        Write this component of the model ("vision", "mtp") instead of its text layers. With a file for each component,
        such as {"vision": "mmproj.gguf"}, these are joined with the source, a GGUF of the text layers.
    activations
        A file with activation statistics (llama.cpp's imatrix), for encoders that weight errors by them; of several
        in a list, sums and counts are added.
    requantize
        Allow quantizing tensors that are already quantized with loss.
    recipe
        A TOML file with rules (`encode = [...]`), or a file of weights, a path or an open `File`: the type of each of
        its tensors is copied for the same tensor, under whatever name. Rules of `encode` override it.
    delete_source
        Verify the target, compare it with the source, then delete the files with the source's tensors.
    overwrite
        Replace existing files at the URL `dst`.
    progress
        Called with the tensor's name, the bytes written and the total bytes. If it has a method
        `task_finished(worker, read, written, seconds)`, that is called for each task of a job.
    plan
        A JSON file. If it does not exist, the plan is written to it, then executed (with `dry_run`: only written). If
        it exists, the plan in it is executed: `src` and `dst` may be omitted, and any difference is an error. It is
        never overwritten.
    job
        Run the conversion as tasks in other processes: `Job("local:8", resume=True)`, or a scheduler alone ("local:2").
        The bytes and the report stay the same.
    limits, registry
        As in `open`.

    Returns
    -------
    Conversion
        The step of each tensor (sizes in bytes, exactness, error), and everything that was dropped.

    Raises
    ------
    SquishError
        The source is damaged, the target cannot store a tensor, or a rule matches nothing.

    Examples
    --------
    >>> squish.convert("model.safetensors", "small.gguf", encode={"blk.*.ffn_up.*": "q8_0"}).steps[1].target
    'ggml.q8_0'
    """
    started = time.perf_counter()
    job = job if job is None or isinstance(job, Job) else Job(job)
    workers = None if job is None else _workers(job, registry or installed())
    arguments = dict(
        zip(ARGUMENTS, (src, dst, to, encode, only, assets, rename, part, activations, requantize, recipe))
    )
    plan_file = None if plan is None else JobFile(Path(plan), arguments)
    arguments = arguments if plan_file is None else plan_file.arguments
    with ExitStack() as stack:
        inputs = open_inputs(arguments, stack, limits=limits, registry=registry)
        file, target = inputs.file, inputs.target
        reader, before = SourceReader(file), file.source.traffic()
        source = file if delete_source else reader.file
        replanned = job is not None and _was_replanned(job, target)
        reads_all = delete_source or plan_file is not None or replanned
        first_panels = not reads_all and (not dry_run or file.source.is_remote)
        decided, model = inputs.plan(source, first_panels=first_panels)
        undecided = undecided_notes(decided.steps) if dry_run and first_panels else ()
        decided = evolve(decided, notes=(*decided.notes, *end_planning(reader), *undecided))
        if plan_file is not None:
            plan_file.compare_or_write(decided, file)
        to_delete = _deletable(decided, model, inputs) if delete_source else ()
        if dry_run:
            report = _preview(decided, model, target)
        else:
            execution = partial(
                _execute,
                inputs=inputs,
                job=job,
                workers=workers,
                arguments=arguments,
                progress=progress,
                overwrite=overwrite,
            )
            try:
                report = execution(decided, model, replanned=replanned)
            except CodecError as error:
                if error.code != ErrorCode.REPLAN or not first_panels:
                    raise
                # the codes of a later panel do not fit
                report = execution(*inputs.plan(source, first_panels=False), replanned=True)
            if to_delete and isinstance(target, Path):
                delete(
                    model, to_delete, Path(report.target), decided.format, report.steps, decided.children, decided.whole
                )
            report = evolve(report, seconds=time.perf_counter() - started)
        if job is None and before and (after := file.source.traffic()):
            report = evolve(report, notes=(*report.notes, str(after - before)))
        return evolve(report, deleted=tuple(map(str, to_delete)))


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Any],
    *,
    format: str | None = None,  # noqa: A002
    encode: Encode | None = None,
    metadata: Mapping[str, Any] | None = None,
    assets: str | os.PathLike[str] | Mapping[str, bytes] | None = None,
    registry: Registry | None = None,
) -> Conversion:
    """Write arrays to a file, atomically.

    Parameters
    ----------
    path
        Target path. A file is replaced, but a folder is refused.
    tensors
        Name -> array: NumPy, or anything with `__array__` or DLPack on the CPU (a torch tensor).
    format
        `ID[:option=value,...]`; taken from the suffix of `path` by default.
    encode
        `SPEC`, {pattern: SPEC} or a function from a `TensorSpec` to SPEC or None, as in `convert`; by default arrays
        are stored unencoded.
    metadata
        Key -> text, number, bool or list of them.
    assets
        Files beside the weights (config, tokenizer): a folder, or {name: bytes}.
    registry
        The plugins to write with; those installed by default.

    Returns
    -------
    Conversion
        What happened to each tensor, with sizes and exactness.

    Raises
    ------
    UsageError
        An argument is invalid.
    TensorError
        The format cannot hold one of the arrays.
    WriteError
        The target cannot be written.

    Examples
    --------
    >>> report = squish.save("ones.gguf", {"w": np.ones((2, 64), "f4")}, encode="q8_0")
    >>> report.steps[0].target
    'ggml.q8_0'
    """
    with in_memory(tensors, metadata, assets, registry) as file:
        return convert(file, path, format, encode, registry=file.registry)


def outgoing(file: File, to: str) -> list[OutgoingTensor]:
    """Return the tensors of a file as another format stores them, without encoding.

    Parameters
    ----------
    file
        An open file.
    to
        The format and its options, `ID[:key=value,...]`.

    Returns
    -------
    list of OutgoingTensor
        In file order; each reads its parts when asked.

    Raises
    ------
    SquishError
        The format cannot store a tensor.

    Examples
    --------
    >>> with squish.open("model.gguf") as file:
    ...     [tensor.spec.name for tensor in outgoing(file, "gguf")][0]
    'token_embd.weight'
    """
    return outgoing_tensors(plan_conversion(file, Path(), to), file)


def _workers(job: Job, registry: Registry) -> Workers:
    """Return the scheduler of a job; only jobs import schedulers."""
    from squish_core.plugins.schedulers import scheduler_named

    return scheduler_named(job.scheduler, registry)


def _was_replanned(job: Job, target: Path | RemoteTarget) -> bool:
    from .job.run import resumes_replanned

    return resumes_replanned(job, target)


def _deletable(plan: ConversionPlan, model: File, inputs: Inputs) -> tuple[Path, ...]:
    """Return the files with the source's tensors, to delete once the target is written."""
    if not isinstance(inputs.target, Path):
        raise UsageError(
            "the source is deleted only if the target is a local file",
            found=str(inputs.target),
            code="delete",
            hint="Convert it without deleting, and delete it yourself.",
        )
    return deletable(model if plan.model_map else inputs.file, inputs.target, plan.steps, plan.dropped)


def _preview(plan: ConversionPlan, model: File, target: Path | RemoteTarget) -> Conversion:
    """Return the report of a dry run, with notes on the target's path and on the space that it needs."""
    report = plan.report()
    if isinstance(target, RemoteTarget):
        return report
    notes = space_notes(target, report.size, plan.estimate)
    try:
        check_target(target, is_folder=writable(plan.format, model.registry).writes_folder(plan.options))
    except FileAccessError as error:
        notes = (f"the conversion itself would be refused: {error}", *notes)
    return evolve(report, notes=(*report.notes, *notes))


def _execute(
    plan: ConversionPlan,
    model: File,
    *,
    inputs: Inputs,
    job: Job | None,
    workers: Workers | None,
    replanned: bool,
    arguments: Mapping[str, Any],
    progress: ProgressCallback | None,
    overwrite: bool,
) -> Conversion:
    """Write the target in this process, or as a job in others."""
    observer = _ProgressObserver(progress, plan.size or plan.estimate) if progress else None
    if job is None or workers is None:
        return execute(plan, model, inputs.target, observer, activations=inputs.activations, overwrite=overwrite)
    from .job.run import execute_job

    document = job_document(plan, inputs.file, document_arguments(arguments))
    return execute_job(
        plan,
        model,
        inputs.target,
        document,
        job,
        workers,
        observer,
        inputs.activations,
        overwrite=overwrite,
        replanned=replanned,
    )


class _ProgressObserver(ConversionObserver):
    """Calls a progress function with the tensor, the bytes written and the total bytes."""

    def __init__(self, progress: ProgressCallback, total: int) -> None:
        self._progress, self._total, self._written, self._tensor = progress, total, 0, ""

    def tensor_started(self, name: str) -> None:
        self._tensor = name

    def bytes_written(self, count: int) -> None:
        self._written += count
        self._progress(self._tensor, self._written, self._total)

    def task_finished(self, worker: str, read: int, written: int, seconds: float) -> None:
        if report := getattr(self._progress, "task_finished", None):
            report(worker, read, written, seconds)
