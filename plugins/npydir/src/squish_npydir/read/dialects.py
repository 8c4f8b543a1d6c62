"""Dialects: the files of an encoding, and the meaning of their arrays.

The order is the preference of Squish's loader; dialects that it lacks are next to similar ones. One exists only
here: codes of scaled columns have their own suffixes, so that Squish does not read them as the matrix. Parameters come
from the shapes of the files, never from statistics. Source: behavior of squish-ai 9.34.15; docs/formats/npydir.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

from attrs import frozen
from squish_codecs.api import Affine, Awq, LowRank, Palette, Panels

from squish_core.api import DENSE, Codec, CodecSpec, Encoding, TensorError, TensorSpec, dtypes

from ..codecs.int3 import Int3
from ..codecs.sqint2 import META, Sqint2, sqint2_params
from .folder import Folder, Stored

Files = Mapping[str, Stored]
Shape = tuple[int, ...]


@frozen(kw_only=True)
class Dialect:
    """One way to store a tensor.

    `files`: role -> suffix; the first one identifies the dialect, which `applies` may narrow by the tensor's suffixes
    and the rank of its first array. `codec` returns the codec from the shape and the files. `each`: weights per element
    of the first array (0: unrelated to its shape).
    """

    label: str
    files: Mapping[str, str]
    codec: Callable[[Shape, Files, Folder], CodecSpec]
    each: int = 1
    optional: tuple[str, ...] = ()
    applies: Callable[[Set[str], int], bool] = lambda suffixes, rank: True


def encoding(dialect: Dialect, name: str, shape: Shape, files: Files, folder: Folder) -> Encoding:
    """Return the encoding of these files; TensorError if one is missing or inconsistent."""
    _check_partners(dialect, files, (role for role in dialect.files if role not in dialect.optional))
    codec = dialect.codec(shape, files, folder)
    if codec == DENSE:
        stored = files["data"]
        spec = TensorSpec(name=name, shape=shape, dtype=stored.npy.dtype)
        return Encoding(codec=codec, parts={"data": stored.part(spec.dtype, shape)}, label=dialect.label)
    spec = TensorSpec(name=name, shape=shape, dtype="f32")
    declared = implementation(codec).parts(spec)
    _check_partners(dialect, files, declared)
    for role in dialect.optional:
        if role in files and role not in declared and files[role].npy.nbytes:
            raise TensorError(
                f"unexpected file {files[role].path}: the tensor's description does not mention it", code="partner"
            )
    flat = (codec.inner or codec).params.get("axis") == "flat"
    parts = {
        role: files[role].flat(dtype, expected[0]) if flat and len(expected) == 1 else files[role].part(dtype, expected)
        for role, (dtype, expected) in declared.items()
    }
    return Encoding(codec=codec, parts=parts, label=dialect.label)


def _check_partners(dialect: Dialect, files: Files, roles: Iterable[str]) -> None:
    """Raise TensorError unless the tensor has the files of these roles."""
    for role in roles:
        if role not in files:
            first = files[next(iter(dialect.files))].path
            raise TensorError(f"missing array __{dialect.files[role]}, which {first} needs", code="partner")


def shape_of(dialect: Dialect, files: Files) -> Shape:
    """Return the matrix shape of a tensor without `__shape`."""
    if "left" in files and "right" in files:
        return (*files["left"].npy.shape[:1], *files["right"].npy.shape[1:])
    shape = files[next(iter(dialect.files))].npy.shape
    if not dialect.each or (dialect.each > 1 and len(shape) != 2):
        raise TensorError("unknown shape: __shape is missing, and the codes do not determine it", code="shape")
    return shape if dialect.each == 1 else (shape[0], shape[1] * dialect.each)


def implementation(codec: CodecSpec) -> Codec:
    """Return the codec of an encoding of this module."""
    inner = None if codec.inner is None else implementation(codec.inner)
    return CODECS[codec.id].from_params(codec.params, inner)


CODECS: dict[str, type[Codec]] = {
    "affine": Affine, "palette": Palette, "npydir.int3": Int3, "npydir.sqint2": Sqint2, "lowrank": LowRank,
    "awq": Awq, "panels": Panels,
}  # fmt: skip


def _group(shape: Shape, scale: Stored) -> int:
    """Return weights per scale from the columns of the scales; 0 for row scales without a column axis."""
    columns, grid = shape[-1] if shape else 1, scale.npy.shape
    if len(grid) < 2 or not grid[-1]:
        return 0
    if columns % grid[-1]:
        raise TensorError(
            f"the groups of {scale.path} do not divide the rows",
            expected=f"a divisor of {columns}",
            found=grid[-1],
            code="group_size",
        )
    return columns // grid[-1]


def _rows(codec: str = "affine", **params: Any) -> Callable[[Shape, Files, Folder], CodecSpec]:
    """Return parameters for rows of codes with scales per column group."""

    def spec_of(shape: Shape, files: Files, folder: Folder) -> CodecSpec:
        axis = {} if shape else {"axis": "flat"}
        dtype = {"scale_dtype": "f16"} if files["scale"].npy.dtype == "f16" else {}
        return CodecSpec(codec, {**params, "group_size": _group(shape, files["scale"]), **axis, **dtype})

    return spec_of


def _milo(shape: Shape, files: Files, folder: Folder) -> CodecSpec:
    """Return parameters for a row-major stream of 3-bit codes with an optional low-rank correction."""
    affine = CodecSpec(
        "affine", {"bits": 3, "group_size": 64, "axis": "flat", "offset": "zero_point", "offset_dtype": "f32"}
    )
    if "left" not in files and "right" not in files:
        return affine
    if not {"left", "right"} <= files.keys():
        raise TensorError("one of the two low-rank factors (__lra, __lrb) is missing", code="partner")
    return CodecSpec("lowrank", {"rank": files["left"].npy.shape[-1]}, inner=affine)


def _sqint2(shape: Shape, files: Files, folder: Folder) -> CodecSpec:
    meta = folder.numbers(files["meta"], "f64", META)
    if len(meta) != META:
        raise TensorError("invalid length of __sqint2_meta", expected=META, found=len(meta), code="meta")
    nonzero = dtypes.count(files["rows"].npy.shape) if "rows" in files else 0
    return CodecSpec("npydir.sqint2", sqint2_params(meta, nonzero, shape))


def _awq(shape: Shape, files: Files, folder: Folder) -> CodecSpec:
    return CodecSpec("awq", inner=_rows(bits=4, offset="bias")(shape, files, folder))


def _panels(shape: Shape, files: Files, folder: Folder) -> CodecSpec:
    """Return columns per scale, from the shape of the scales, and their dtype."""
    grid, columns = files["scale"].npy.shape, shape[-1] if shape else 0
    groups = grid[1] if len(grid) == 3 else 0
    if not groups or columns % groups:
        raise TensorError(
            f"the groups of {files['scale'].path} do not divide the rows",
            expected=f"[panels, a divisor of {columns}, 16]",
            found=list(grid),
            code="group_size",
        )
    return CodecSpec("panels", panels_params(columns // groups, files["scale"].npy.dtype, "offset" in files))


def panels_params(group_size: int, scale_dtype: str, biased: bool) -> dict[str, Any]:
    """Return parameters like the 4-bit dialects': codes have biases, or a zero point of 7."""
    offset = {"offset": "bias"} if biased else {"zero": 7}
    return {"group_size": group_size, **offset, "scale_dtype": scale_dtype}


def _dense(shape: Shape, files: Files, folder: Folder) -> CodecSpec:
    return DENSE


def _pair(codes: str, scale: str, **more: str) -> dict[str, str]:
    return {"data": codes, "scale": scale, **more}


DIALECTS = (
    Dialect(label="int4", files=_pair("q4a", "s4a", offset="z4a"), codec=_rows(bits=4, offset="bias"), each=2),
    Dialect(label="int4 q4", files=_pair("q4", "s4", offset="z4"), codec=_rows(bits=4, offset="bias"), each=2,
            applies=lambda suffixes, rank: "z4" in suffixes),
    Dialect(label="int4 awq", files=_pair("awq_q4", "awq_s4", offset="awq_z4", factor="awq_s"), codec=_awq, each=2),
    Dialect(label="int4 symmetric", files=_pair("q4", "s4"), codec=_rows(bits=4, zero=7), each=2,
            applies=lambda suffixes, rank: "z4" not in suffixes),
    Dialect(label="nf4", files=_pair("nf4", "s_nf4"), each=2,
            codec=_rows("palette", bits=4, table="nf4", scale_dtype="f32")),
    Dialect(label="int3 milo", files=_pair("q3", "s3", offset="z3", left="lra", right="lrb"), codec=_milo, each=0,
            optional=("left", "right"), applies=lambda suffixes, rank: rank == 1),
    Dialect(label="int3", files=_pair("q3", "s3", offset="z3"),
            codec=_rows("npydir.int3"), applies=lambda suffixes, rank: rank != 1),
    Dialect(label="int2", files=_pair("q2", "s2", offset="z2"), codec=_rows(bits=2, offset="bias"), each=4),
    Dialect(label="sqint2", each=4, codec=_sqint2, optional=("left", "right", "rows", "columns", "values"),
            files={"data": "sqint2_idx", "scale": "sqint2_scales", "offset": "sqint2_zp", "meta": "sqint2_meta",
                   "left": "sqint2_L", "right": "sqint2_R", "rows": "sqint2_srows", "columns": "sqint2_scols",
                   "values": "sqint2_svals"}),
    Dialect(label="passthrough", files={"data": "pt"}, codec=_dense),
    Dialect(label="int8", files=_pair("q", "s"), codec=_rows(bits=8, word="i8")),
)  # fmt: skip

PANELS = Dialect(
    label="squish_panels", files=_pair("codes", "scale", offset="offset"), codec=_panels, each=0, optional=("offset",)
)
"""The dialect of the panels tier (`tiers.panels`), whose files are not among the arrays."""

SUFFIXES = frozenset({"shape", *(suffix for dialect in DIALECTS for suffix in dialect.files.values())})

UNSUPPORTED = {
    "pt_df11": "stored as a pickle, which is never loaded",
    "s4_df11": "stored as a pickle, which is never loaded",
    "aqlm_idx": "unsupported experimental format (AQLM)",
    "quip_e8": "unsupported experimental format (QuIP#)",
    "vq_idx": "unsupported experimental format (vector quantization)",
}
"""Suffixes that are recognized but not supported, with the reason."""
