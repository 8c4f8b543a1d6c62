"""Builds a cache tier from a directory's files: tensor by tensor, resumable, sentinel last."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from glob import escape
from pathlib import Path
from types import MappingProxyType

import numpy as np
from attrs import evolve, field, frozen
from squish_convert.api import Job, convert, locked_file

from squish_core.api import (
    ErrorCode,
    File,
    FormatError,
    Params,
    SquishError,
    TensorSpec,
    WriteError,
    atomic_file,
    parse_spec,
    sync_files,
)
from squish_core.api import open as open_model

from ..features import INT3_FAMILIES, MLX_GROUPS
from ..read.awq import INDEX
from ..read.dialects import PANELS
from ..read.manifest import MANIFEST, PLACE
from ..write.replace import IN_PLACE, delete_eights, delete_tier, refresh_listing
from . import panels, seal
from .arrays import TEMPORARY, Progress, Workspace, converted, create_folder, remove_leftovers, saturated
from .choice import family_of
from .read import LABELS, SUFFIX, TIERS
from .resources import check_resources

GROUPS = (32, 16, 8, 4)
"""Columns per scale of asymmetric 4-bit arrays as in Squish, with at least two groups per row."""
SYMMETRIC_GROUPS = (128, 64, *GROUPS)
"""Columns per scale of symmetric 4-bit arrays: half of INT8's bytes with 128. Source: Squish architecture document."""
NO_PARAMS: Params = MappingProxyType({})
Gate = Callable[[Path, str, str], Mapping[str, float]]
"""Measures a tier, by folder, name and label, and raises an error to refuse it."""
Builder = Callable[[File, Path, Progress | None, Workspace], "Built"]


@frozen(kw_only=True)
class Built:
    """Result of a build: the numbers of new and existing tensors, the size of the tier in bytes, for 4-bit arrays the
    savings relative to the INT8 ones in percent, and what its gate measured."""

    tier: str
    built: int
    reused: int
    size: int
    savings_pct: float | None = None
    measured: Mapping[str, float] = field(factory=dict)


def build(
    path: str | Path,
    tier: str,
    progress: Progress | None = None,
    *,
    delete_source: bool = False,
    gate: Gate | None = None,
    job: Job | str | None = None,
) -> Built:
    """Build a cache tier of a npy directory.

    An existing tier is not built again, an interrupted build is completed. The directory's own files do not change,
    except for `delete_source`.

    Parameters
    ----------
    path
        The directory.
    tier
        finalized, mlx, 4bit, 3bit, panels; or 4-bit arrays beside the INT8 ones: int4 (q4 and s4, symmetric in groups
        of 128, half of INT8's bytes) or int4a (q4a, s4a and z4a, asymmetric in groups of 32: closer, 0.71 of INT8's).
        `int4a:group_size=128,scales=f16` sets the columns per scale (0: whole rows; by default fewer if the group does
        not divide the rows) and the dtype of scales and biases (by default f32, which Squish itself reads).
    progress
        Called with the tensor's name, the bytes so far, and the total.
    delete_source
        Only for int4 and int4a: delete the INT8 arrays after comparing all values.
    gate
        Compares the model of the tier with its source and raises if they differ too much. A tier that fails is removed
        before it gets its sentinel; an existing one stays.
    job
        Build it as a job, as in `convert`: in other processes, and resumable.

    Returns
    -------
    Built
        The numbers of new and of existing tensors, the size of the tier, and the measurements of the gate.

    Raises
    ------
    FormatError
        The tier or an option is unknown, or the directory cannot be read or has no tensors for this tier.
    LimitError
        Memory or disk space is insufficient.
    WriteError
        Another build is running in this directory (code `locked`).
    """
    spec = parse_spec(tier)
    tier, params = spec.id, spec.params
    if tier not in BUILDERS:
        raise FormatError("unknown tier", expected=", ".join(BUILDERS), found=tier, code="tier")
    unknown = [name for name in params if tier not in IN_PLACE or name not in ("group_size", "scales")]
    if unknown or spec.inner is not None:
        raise FormatError(
            f"unknown option of the tier {tier}",
            found=", ".join(unknown),
            code=ErrorCode.OPTION,
            expected="group_size and scales" if tier in IN_PLACE else "no options",
        )
    if delete_source and tier not in IN_PLACE:
        raise FormatError(
            f"--delete-source is not possible for the tier {tier}, which is a cache",
            file=str(path),
            code="delete",
            hint="Only int4 and int4a replace arrays. For another directory, use `squish convert --delete-source`.",
        )
    job = Job(job) if isinstance(job, str) else job
    workspace = Workspace(Path(path) / f"{TEMPORARY}{tier}", job)
    make = partial(_int4, params=params, symmetric=tier == "int4") if params else BUILDERS[tier][2]
    try:
        with _only_build(Path(path)):
            result = _build(path, tier, make, progress, gate, workspace)
            if delete_source:
                delete_eights(Path(path))
                _seal(Path(path))
            if tier in IN_PLACE:
                refresh_listing(Path(path))
    except SquishError:
        raise
    except OSError as error:
        raise FormatError(f"cannot build the tier {tier}: {error}", file=str(path), code="os") from error
    return result


@contextmanager
def _only_build(folder: Path) -> Iterator[None]:
    """Refuse a second build in a directory, which would remove the temporary files of the first."""
    index = next((path for name in (MANIFEST, INDEX) if (path := folder / name).is_file()), None)
    if index is None:  # opening it reports what is missing
        yield
        return
    with ExitStack() as stack:
        try:
            stack.enter_context(locked_file(index.resolve(), seconds=0))
        except WriteError:
            raise WriteError(
                "another build of a cache tier is running in this directory",
                file=str(folder),
                code="locked",
                hint="Try again when it is done.",
            ) from None
        yield


def _build(
    path: str | Path, tier: str, make: Builder, progress: Progress | None, gate: Gate | None, workspace: Workspace
) -> Built:
    folder = Path(path)
    sentinel, share, _ = BUILDERS[tier]
    in_place = (IN_PLACE.get(tier, tier), "")
    label, needs = next(((each.label, each.needs) for each in TIERS if each.sentinel == sentinel), in_place)
    with open_model(folder, "npydir") as file:
        own = _own(file)
        if (folder / sentinel).exists():
            _seal(folder)
            measured = gate(folder, tier, label) if gate else {}
            return Built(tier=tier, built=0, reused=len(own), size=0, measured=measured)
        if tier == "3bit" and gate is None:
            _check_family(file)
        remove_leftovers(folder, workspace)
        weights = sum(spec.elements for spec in own.index.tensors.values())
        check_resources(folder, 0 if workspace.job and workspace.job.resume else weights * share // 8)
        result = make(own, folder, progress, workspace)
    try:
        measured = gate(folder, tier, label) if gate else {}
    except BaseException:
        delete_tier(folder, label, needs)
        raise
    _touch(folder / sentinel)
    _seal(folder)
    return evolve(result, tier=tier, measured=measured)


def _check_family(file: File) -> None:
    """Refuse three bits for a family that the architecture document does not list, unless a gate measures them."""
    family = family_of(file.index, file.source, file.limits)
    if not (family or "").startswith(INT3_FAMILIES):
        raise FormatError(
            "the tier 3bit is for families that tolerate three bits",
            file=file.name,
            code="gate",
            expected=f"a model_type of {', '.join(INT3_FAMILIES)} in config.json",
            found=repr(family) if family else "no model_type",
            hint="Build 4bit, or measure it on a text of yours: --gate TEXT.",
        )


def _own(file: File) -> File:
    """Open the model without its tiers, the source of a build."""
    own = file.without_caches()
    lost = [name for name, spec in own.index.tensors.items() if not spec.encodings or spec.encodings[0].label in LABELS]
    if lost:
        raise FormatError(
            "unreadable tensors: their own files are missing or damaged",
            file=file.name,
            found=", ".join(lost[:3]),
            code="partial",
            hint="Tiers can only be built from complete directories.",
        )
    return File(file.source, evolve(own.index, children={}, assets={}), file.registry, file.limits)


def _finalized(own: File, folder: Path, progress: Progress | None, workspace: Workspace) -> Built:
    """Build a float16 array per tensor."""
    place = create_folder(folder / "finalized")
    targets = {name: place / f"{panels.key(own, spec)}.npy" for name, spec in own.index.tensors.items()}
    rules = {
        name: F16 if _is_float(own.index.tensors[name]) else "keep"
        for name, target in targets.items()
        if not target.exists()
    }
    for name, arrays in converted(own, rules, progress, workspace):
        os.replace(arrays["pt"], targets[name])
    size = sum(target.stat().st_size for target in targets.values())
    return Built(tier="", built=len(rules), reused=len(own) - len(rules), size=size)


def _int4(
    own: File,
    folder: Path,
    progress: Progress | None,
    workspace: Workspace,
    params: Params = NO_PARAMS,
    *,
    symmetric: bool,
) -> Built:
    """Build 4-bit files next to INT8 ones, in Squish's groups; odd widths are skipped."""
    eights = {
        name: encoding
        for name, spec in own.index.tensors.items()
        for encoding in spec.encodings[:1]
        if encoding.label == "int8" and spec.shape and spec.shape[-1] % 2 == 0
    }
    fours = sum(spec.encodings[0].label in IN_PLACE.values() for spec in own.index.tensors.values())
    if not eights and not fours:
        raise FormatError(
            "no INT8 tensors to convert",
            file=own.name,
            code="tier",
            hint="Convert the model with `squish convert ... --encode int8`.",
        )
    create_folder(folder / PLACE)
    rules, size, before, after = {}, 0, 0, 0
    for name, encoding in eights.items():
        group = params.get("group_size", _group(own[name].shape[-1], symmetric))
        rules[name] = f"affine:bits=4,group_size={group},{'zero=7' if symmetric else 'offset=bias'}"
        before += sum(part.nbytes for part in encoding.parts.values())
    target = f"npydir:scales={params.get('scales', 'f32')}"
    for name, arrays in converted(own, rules, progress, workspace, target):
        stem = folder / own.index.files[eights[name].parts["data"].segments[0].file].name.rpartition("__")[0]
        for suffix in ("s4", "q4") if symmetric else ("s4a", "z4a", "q4a"):  # codes last: they imply the scales
            size += arrays[suffix].stat().st_size
            after += np.load(arrays[suffix], mmap_mode="r").nbytes
            os.replace(arrays[suffix], f"{stem}__{suffix}.npy")
    savings = 100 * (1 - after / before) if before else None
    return Built(tier="", built=len(eights), reused=fours, size=size, savings_pct=savings)


def _group(columns: int, symmetric: bool) -> int:
    """Return the default number of columns per scale; whole rows if none divides them."""
    sizes = SYMMETRIC_GROUPS if symmetric else (size for size in GROUPS if columns >= 2 * size)
    return next((size for size in sizes if columns % size == 0), columns)


def _panels(own: File, folder: Path, progress: Progress | None, workspace: Workspace) -> Built:
    """Build 4-bit panels for compiled kernels; other tensors are skipped."""
    fitting = [spec for spec in own.index.tensors.values() if panels.fits(spec)]
    if not fitting:
        raise FormatError(
            "no 4-bit tensors with a group size that is a multiple of 32",
            file=own.name,
            code="tier",
            hint="Convert the model with `squish convert ... --encode int4`.",
        )
    place = create_folder(folder / PANELS.label)
    stems = {spec.name: place / panels.key(own, spec) for spec in fitting}
    left = [spec for spec in fitting if not Path(f"{stems[spec.name]}__{PANELS.files['data']}.npy").exists()]
    done, total = 0, sum(spec.elements for spec in left)
    scheduler = None if workspace.job is None else workspace.job.scheduler
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=own.name) as temporary:
        for spec, paths in panels.write_all(own, left, Path(temporary), scheduler):
            for suffix, path in paths.items():
                os.replace(path, f"{stems[spec.name]}__{suffix}.npy")
            done += spec.elements
            if progress:
                progress(spec.name, done, total)
    size = sum(path.stat().st_size for path in place.glob("*.npy"))
    return Built(tier="", built=len(left), reused=len(fitting) - len(left), size=size)


def _weights(own: File, folder: Path, progress: Progress | None, workspace: Workspace) -> Built:
    """Build one bfloat16 safetensors file."""
    rules = {escape(name): "bf16" for name, spec in own.index.tensors.items() if _is_float(spec)}
    report = convert(
        own, folder / "squish_weights.safetensors", "safetensors", rules, progress=progress, job=workspace.job
    )
    return Built(tier="", built=len(own), reused=0, size=report.size or 0)


def _mlx(bits: int) -> Builder:
    """Return a builder of a folder in MLX's layout: codes of this width are kept, other quantized tensors are
    re-quantized, which the name of the tier implies."""

    def make(own: File, folder: Path, progress: Progress | None, workspace: Workspace) -> Built:
        rules = {escape(name): rule for name, spec in own.index.tensors.items() if (rule := _mlx_rule(spec, bits))}
        if all(spec.encodings[0].codec.id == "dense" for spec in own.index.tensors.values()):
            raise FormatError(
                "no quantized tensors for this tier",
                file=own.name,
                code="tier",
                hint=f"Convert the model with `squish convert ... --encode int{bits}`.",
            )
        place = folder / f"squish_{bits}bit"
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)  # from an interrupted build
        report = convert(own, place, "mlx", rules, requantize=True, progress=progress, job=workspace.job)
        if beyond := saturated(report):
            shutil.rmtree(place)
            again = {**rules, **{escape(name): rule for name, rule in beyond.items()}}
            job = workspace.job and evolve(workspace.job, journal=folder / f"{place.name}-f32.squish-journal")
            report = convert(own, place, "mlx", again, requantize=True, progress=progress, job=job)
        return Built(tier="", built=len(own), reused=0, size=report.size or 0)

    return make


def _mlx_rule(spec: TensorSpec, bits: int) -> str | None:
    codec = spec.encodings[0].codec
    if codec.id == "dense":
        return None
    group = next((size for size in MLX_GROUPS if spec.shape and spec.shape[-1] % size == 0), 0)
    if not spec.name.endswith(".weight") or len(spec.shape) < 2 or not group or not spec.elements:
        return F16
    stored = (codec.params.get("bits"), codec.params.get("offset"), codec.params.get("group_size") in MLX_GROUPS)
    if stored == (bits, "bias", True):
        return None
    return f"affine:bits={bits},group_size={group},word=u32,offset=bias,scale_dtype=f16"


F16 = "f16:overflow=saturate"
"""Clipped values are counted, and their tensors become float32 instead."""
BUILDERS: Mapping[str, tuple[str, int, Builder]] = {
    "finalized": ("finalized/.ready", 16, _finalized), "mlx": (".squish_ready", 16, _weights),
    "4bit": (".squish_4bit_ready", 6, _mlx(4)), "3bit": (".squish_3bit_ready", 5, _mlx(3)),
    "int4": (seal.INT4_READY, 5, partial(_int4, symmetric=True)),
    "int4a": (seal.INT4_READY, 6, partial(_int4, symmetric=False)), "panels": (f"{PANELS.label}/.ready", 6, _panels),
}  # fmt: skip
"""Tier -> sentinel, maximum bits per weight on disk, builder."""


def _is_float(spec: TensorSpec) -> bool:
    return spec.dtype.startswith(("f", "bf"))


def _seal(folder: Path) -> None:
    """Seal single-file tiers, so that they open without reading the other files."""
    for tier in TIERS:
        if tier.needs.endswith(SUFFIX) and (folder / tier.sentinel).exists():
            seal.seal(folder, tier.label, tier.needs)


def _touch(sentinel: Path) -> None:
    """Sync all files before writing the sentinel."""
    sync_files(sentinel.parent)
    with atomic_file(sentinel):
        pass
