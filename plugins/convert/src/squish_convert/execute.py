"""Execute a plan: check the source, stream it into the target, measure the error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial, reduce
from operator import and_
from pathlib import Path

from attrs import evolve

from squish_core.codes import ErrorCode
from squish_core.errors import FormatError
from squish_core.file import File, file_problems
from squish_core.formats.composite import CompositeContainer
from squish_core.formats.outgoing import OutgoingTensor, Stream
from squish_core.guard import computing, gc_paused
from squish_core.io.atomic import atomic_file, atomic_folder
from squish_core.io.sink import Sink
from squish_core.io.urls import RemoteTarget
from squish_core.log import log

from .activations import ActivationStatistics
from .companions import asset_bytes, outgoing_companions, target_assets
from .compare.metrics import Distance
from .destination import atomic_siblings, check_space, remote_sink, space_notes
from .mapping.apply import apply_map
from .model_map import stored_parts
from .plan import ConversionPlan, uses_activations
from .report import Conversion
from .step import ConversionObserver, Step
from .streams import Places, streams_of
from .targets import writable
from .verified_reader import VerifiedReader


def execute(
    plan: ConversionPlan,
    source: File,
    target: Path | RemoteTarget,
    observer: ConversionObserver | None = None,
    *,
    activations: File | None = None,
    overwrite: bool = False,
    encoded: Mapping[str, dict[str, Stream]] | None = None,
) -> Conversion:
    """Write what a plan describes; atomic.

    Parameters
    ----------
    plan
        The result of `plan_conversion`, in this process or another.
    source
        The planned file, open.
    target
        Path to write, or a target at a URL. A file is replaced, a folder is refused.
    observer
        Notified of each tensor, the bytes written, and the error of lossy encodings.
    activations
        The activation statistics used for planning.
    overwrite
        Replace existing files at the URL.
    encoded
        Parts that are already encoded, by the tensor's name in the source and the role.

    Returns
    -------
    Conversion
        The report, with measured errors and times.

    Raises
    ------
    FormatError
        The source is not the planned one (code `changed`), or is damaged. An existing target stays.

    Examples
    --------
    >>> from pathlib import Path
    >>> from squish_convert.api import plan_conversion
    >>> _ = squish.save("ones.safetensors", {"w": np.ones((2, 64), "f4")})
    >>> with squish.open("ones.safetensors") as file:
    ...     plan = plan_conversion(file, Path("ones.gguf"))
    ...     report = execute(plan, file, Path("ones.gguf"))
    >>> report.size == plan.size
    True
    """
    space: tuple[str, ...] = ()
    if isinstance(target, Path):
        check_space(target, plan.size)
        space = space_notes(target, plan.size, plan.estimate)
    measurements = _Measurements(observer or ConversionObserver())
    reader = VerifiedReader(source.without_caches())
    source = apply_map(reader.file, plan.model_map, plan.options)
    companions = outgoing_companions(source.original, plan.children, plan.whole)
    assets = asset_bytes(source, target_assets(source, plan.format)[0])
    has_places = plan.image is not None and any(_has_several_parts(step) for step in plan.steps)
    places = plan.image.places if plan.image is not None and has_places else None
    tensors = _outgoing(plan, source, reader, measurements, activations, encoded or {}, places)
    # A full disk may show only when the file is closed, so the guard covers closing, too.
    sinks = _sink(plan, source, target, measurements, overwrite)
    with computing(FormatError, "writing", file=str(target)), sinks as sink, reader:
        container = writable(plan.format, source.registry)
        composite_arguments = (companions,) if isinstance(container, CompositeContainer) else ()
        meta = {**source.index.meta, **plan.recorded}
        container.write(sink, tensors, meta, assets, plan.options, *composite_arguments)
    shards = sink.siblings if not sink.tell() else ()
    written = shards[0] if shards else target
    return evolve(
        plan.report(),
        target=str(written),
        dry_run=False,
        size=size_of(written, *(sink.siblings[1:] if shards else sink.siblings)),
        notes=(*plan.notes, *space, *sink.notes),
        steps=tuple(map(measurements.completed, plan.steps)),
    )


def outgoing_tensors(
    plan: ConversionPlan,
    source: File,
    observer: ConversionObserver | None = None,
    activations: File | None = None,
) -> list[OutgoingTensor]:
    """Return the tensors for the target, their parts as streams.

    The source is checked for damage that a copy would propagate. Digests are verified while reading, so that
    corruption is never re-signed.
    """
    reader = VerifiedReader(source.without_caches(), hash_while_reading=False)
    file = apply_map(reader.file, plan.model_map, plan.options)
    return _outgoing(plan, file, reader, observer or ConversionObserver(), activations, {})


def _outgoing(
    plan: ConversionPlan,
    file: File,
    reader: VerifiedReader,
    observer: ConversionObserver,
    activations: File | None,
    encoded: Mapping[str, dict[str, Stream]],
    places: Places | None = None,
) -> list[OutgoingTensor]:
    check_source(plan, file)
    reader.begin(file, [step for step in plan.steps if step.name not in encoded])
    statistics = None if activations is None else ActivationStatistics(activations, file)
    tensors = []
    with gc_paused():
        for step in plan.steps:
            if step.name in encoded:
                tensors.append(OutgoingTensor(step.spec, encoded[step.name]))
                continue
            log("converting %s: %s, %s to %s %s", step.name, step.action, step.source, step.target, step.note)
            magnitudes = statistics.of(step.spec) if statistics and uses_activations(step, file.registry) else None
            before = partial(_begin, file, step, reader, observer)
            tensors.append(OutgoingTensor(step.spec, streams_of(file, step, before, observer, magnitudes, places)))
    return tensors


class _Measurements(ConversionObserver):
    """Forwards to another observer and records each tensor's encoding error."""

    def __init__(self, observer: ConversionObserver) -> None:
        self._qualities: dict[str, tuple[Distance, int]] = {}
        self._observer = observer

    def tensor_started(self, name: str) -> None:
        self._observer.tensor_started(name)

    def bytes_written(self, count: int) -> None:
        self._observer.bytes_written(count)

    def quality(self, name: str, distance: Distance, clipped: int) -> None:
        self._qualities[name] = distance, clipped
        self._observer.quality(name, distance, clipped)

    def completed(self, step: Step) -> Step:
        """Return the step with its measurements."""
        if step.name not in self._qualities:
            return step
        quality, clipped = self._qualities[step.name]
        return evolve(step, quality=quality, clipped=clipped)


def _begin(file: File, step: Step, reader: VerifiedReader, observer: ConversionObserver) -> None:
    observer.tensor_started(step.name)
    reader.check(file, step)


def check_source(plan: ConversionPlan, file: File) -> None:
    """Raise FormatError unless every encoding in the plan has the same place in undamaged files."""
    for step in plan.steps:
        spec = file.index.tensors.get(step.name)
        if spec is None or step.origin not in spec.encodings:
            raise FormatError(
                "is not the source that was planned",
                file=file.name,
                tensor=step.name,
                code=ErrorCode.CHANGED,
                expected=step.source,
                found=str(spec.encodings[0].codec) if spec and spec.encodings else "nothing",
                hint="Plan the conversion again.",
            )
    if all(ref.digest is None for ref in file.index.files):
        return
    parts = [part for step in plan.steps for _, _, part in stored_parts(file, step)]
    for problem in file_problems(file, sorted({segment.file for part in parts for segment in part.segments})):
        if problem.severity == "error":
            raise FormatError(f"{problem.where}: {problem.message}", file=file.name, code=problem.code)


def _has_several_parts(step: Step) -> bool:
    """Return whether a step computes several parts together."""
    return step.is_computed and len(step.spec.encodings[0].parts) > 1


def _sink(
    plan: ConversionPlan,
    source: File,
    target: Path | RemoteTarget,
    observer: ConversionObserver,
    overwrite: bool,
) -> AbstractContextManager[Sink]:
    registry, mode = source.registry, common_mode(paths_of(source))
    container = writable(plan.format, registry)
    is_folder = container.writes_folder(plan.options)
    packing = registry.byte_codec(plan.packing) if plan.packing else None
    if isinstance(target, RemoteTarget):
        return remote_sink(
            target,
            observer.bytes_written,
            is_folder=is_folder,
            packing=packing,
            revises=plan.image is None or plan.image.revises,
            size=plan.size,
            overwrite=overwrite,
        )
    if is_folder:
        return atomic_folder(target, observer.bytes_written, mode)
    if container.writes_beside(plan.options):
        return atomic_siblings(target, observer.bytes_written, mode)
    return atomic_file(target, observer.bytes_written, packing, mode)


def size_of(target: Path | RemoteTarget, *siblings: Path) -> int:
    """Size of the file, or of all files of the folder."""
    if isinstance(target, RemoteTarget):
        return sum(target.written.values())
    files = target.rglob("*") if target.is_dir() else [target, *siblings]
    return sum(path.stat().st_size for path in files if path.is_file())


def common_mode(paths: Iterable[Path]) -> int | None:
    """Read and write permissions that all files and folders in `paths` grant; None if none exists."""
    modes = []
    for path in paths:
        with suppress(OSError):
            modes.append(path.stat().st_mode)
    return reduce(and_, modes, 0o666) if modes else None


def paths_of(file: File) -> list[Path]:
    """Return the model's files and their folder; empty for bytes in memory."""
    path, source = file.path, file.source
    if path is None or source.packed:
        return [path] if path else []
    folder = path if source.is_dir else path.parent
    return [path, *(folder / ref.name for ref in file.index.files)]
