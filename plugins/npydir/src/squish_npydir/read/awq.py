"""AWQ scales: one array per layer of column factors applied before quantization."""

from __future__ import annotations

from squish_core.api import DENSE, Encoding, FormatError, Index, Problem, TensorSpec, check_file_name

from .folder import Folder

INDEX, READY = "awq_index.json", ".awq_ready"


def read(folder: Folder) -> Index:
    """Return the scales by layer name, as an Index of kind "awq"."""
    entries = folder.json(INDEX, "index of scales")
    tensors = {layer: _tensor(folder, layer, file) for layer, file in entries.items()}
    problems = []
    if not folder.has(READY):
        message = f"the scales were never finished ({READY} is missing)"
        problems.append(Problem(code="partial", severity="warning", where=INDEX, message=message))
    return Index(
        format="npydir", version="", kind="awq", files=tuple(folder.refs), tensors=tensors, problems=tuple(problems)
    )


def _tensor(folder: Folder, layer: str, file: object) -> TensorSpec:
    if not isinstance(file, str) or not file.endswith(".npy"):
        raise FormatError(
            "each entry of the index must be the name of a .npy file", tensor=layer, found=repr(file)[:80], code="index"
        )
    check_file_name(file, INDEX)
    stored = folder.find(file.removesuffix(".npy"))
    if stored is None:
        return TensorSpec(name=layer, shape=(), dtype="unknown", problem=f"{file} is missing")
    part = stored.raw()
    return TensorSpec(
        name=layer, shape=part.shape, dtype=part.dtype, encodings=(Encoding(codec=DENSE, parts={"data": part}),)
    )
