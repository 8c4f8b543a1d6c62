"""Laying the four-bit codes of a tensor in panels: the arrays of the tier `squish_panels`, some rows at a time."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from attrs import evolve
from squish_codecs.panels import Panels

from squish_core.api import File, FormatError, TensorSpec, dtypes, panels

from .dialects import PANELS, implementation, panels_params
from .npy import header
from .writer import shape_array

LABELS = ("int4", "int4 q4", "int4 symmetric")


def fits(spec: TensorSpec) -> bool:
    """Whether the tensor's own codes are of four bits, in groups that panels have."""
    own = spec.encodings[0]
    group = own.codec.params.get("group_size", 0)
    return own.label in LABELS and bool(spec.shape and spec.elements) and group > 0 and group % 32 == 0


def key(file: File, spec: TensorSpec) -> str:
    """The safe key of a tensor, from the name of its codes' file."""
    (segment,) = spec.encodings[0].parts["data"].segments
    return Path(file.index.files[segment.file].name).name.rpartition("__")[0]


def lay(file: File, spec: TensorSpec, room: Path) -> dict[str, Path]:
    """Write the arrays of a tensor that `fits`; returns suffix -> file, the codes last."""
    own, codec, rows = spec.encodings[0], Panels(), dtypes.count(spec.shape[:-1])
    affine, given = implementation(own.codec), own.codec.params
    params = panels_params(given["group_size"], "offset" in own.parts)
    matrix = evolve(spec, shape=(rows, spec.shape[-1]), encodings=())
    stored = {role: file.array(evolve(part, shape=(rows, part.shape[-1]))) for role, part in own.parts.items()}
    files = {PANELS.files[role]: room / role for role in sorted(own.parts, key=lambda role: role == "data")}
    with ExitStack() as stack:
        outs = {role: stack.enter_context((room / role).open("wb")) for role in own.parts}
        for role, (dtype, shape) in codec.parts(matrix, params).items():
            outs[role].write(header(dtype, shape))
        for region in panels(matrix.shape, codec.grain(matrix, params), 4, whole_rows=True):
            codes = affine.codes(stored, matrix, given, region)
            made = None if codes is None else codec.from_codes(codes, matrix, params)
            if made is None:
                raise FormatError(
                    "its codes are in no panels", file=file.name, tensor=spec.name, found=str(own.codec),
                    code="tier",
                )  # fmt: skip
            for role, part in made[0].items():
                outs[role].write(part.data)
    (room / "shape").write_bytes(shape_array(spec.shape))
    return {"shape": room / "shape", **files}
