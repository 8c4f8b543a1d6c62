"""Writes the tier `squish_panels`: 4-bit codes repacked to panels, a few rows at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from attrs import evolve, frozen
from squish_codecs.api import Panels

from squish_core.api import (
    Address,
    Codes,
    File,
    FormatError,
    Params,
    Region,
    TensorSpec,
    address_of,
    dtypes,
    file_at,
    panels,
    scheduler_named,
)

from ..read.dialects import PANELS, implementation, panels_params
from ..read.npy import header
from ..write.writer import shape_array
from .choice import FOUR_BITS
from .resources import MEMORY

LABELS = FOUR_BITS


def fits(spec: TensorSpec) -> bool:
    """Return whether a tensor is a matrix of 4-bit codes in groups supported by panels."""
    own = spec.encodings[0]
    group = own.codec.params.get("group_size", 0)
    return own.label in LABELS and len(spec.shape) > 1 and spec.elements > 0 and group > 0 and group % 32 == 0


def key(file: File, spec: TensorSpec) -> str:
    """Return the safe key of a tensor, from the file name of its codes."""
    (segment,) = spec.encodings[0].parts["data"].segments
    return Path(file.index.files[segment.file].name).name.rpartition("__")[0]


@frozen
class PanelTask:
    """A tensor of a directory whose panels a worker process writes into a new folder in `place`."""

    directory: Address
    tensor: str
    place: str


def write_all(
    own: File, specs: Sequence[TensorSpec], place: Path, scheduler: str | None
) -> Iterator[tuple[TensorSpec, dict[str, Path]]]:
    """Yield each tensor with its arrays in new folders in `place`, written here or by the processes of a scheduler."""
    if scheduler is None:
        yield from ((spec, write(own, spec, Path(tempfile.mkdtemp(dir=place)))) for spec in specs)
        return
    directory = address_of(own)
    items = [PanelTask(directory, spec.name, str(place.absolute())) for spec in specs]
    with closing(scheduler_named(scheduler, own.registry).map(write_in_worker, items, MEMORY)) as answers:
        for number, paths in answers:
            yield specs[number], paths


def write_in_worker(task: PanelTask) -> dict[str, Path]:
    """Write the panels of a task in a worker process, and return its result."""
    own = file_at(task.directory).without_caches()
    return write(own, own.index.tensors[task.tensor], Path(tempfile.mkdtemp(dir=task.place)))


def write(file: File, spec: TensorSpec, temporary: Path) -> dict[str, Path]:
    """Write the arrays of a tensor that `fits`; returns suffix -> file, codes last.

    Scales and biases have 16 bits if all are exact, like those from other formats.
    """
    own, rows = spec.encodings[0], dtypes.count(spec.shape[:-1])
    matrix = evolve(spec, shape=(rows, spec.shape[-1]), encodings=())
    stored = {role: file.array(evolve(part, shape=(rows, part.shape[-1]))) for role, part in own.parts.items()}
    affine = implementation(own.codec)

    def codes(region: Region) -> Codes | None:
        return affine.codes(stored, matrix, region)

    size, biased = own.codec.params["group_size"], "offset" in own.parts
    candidates = (panels_params(size, dtype, biased) for dtype in ("f16", "f32"))
    if not any(_write(matrix, params, codes, temporary) for params in candidates):
        raise FormatError(
            "its codes cannot be stored in panels", file=file.name, tensor=spec.name, found=str(own.codec), code="tier"
        )
    (temporary / "shape").write_bytes(shape_array(spec.shape))
    roles = sorted(own.parts, key=lambda role: role == "data")
    return {"shape": temporary / "shape", **{PANELS.files[role]: temporary / role for role in roles}}


def _write(spec: TensorSpec, params: Params, codes: Callable[[Region], Codes | None], temporary: Path) -> bool:
    """Write the parts role by role; returns whether all codes, scales and biases are exact."""
    codec = Panels.from_params(params)
    with ExitStack() as stack:
        outs = {role: stack.enter_context((temporary / role).open("wb")) for role in codec.parts(spec)}
        for role, (dtype, shape) in codec.parts(spec).items():
            outs[role].write(header(dtype, shape))
        for region in panels(spec.shape, codec.grain(spec), 4, whole_rows=True):
            stored = codes(region)
            arrays = None if stored is None else codec.from_codes(stored, spec)
            if arrays is None:
                return False
            for role, part in arrays[0].items():
                outs[role].write(part.data)
    return True
