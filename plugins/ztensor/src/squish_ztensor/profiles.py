"""Layouts of several components: sparse matrices, group quantisation, microscaling."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from squish_core.api import CodecSpec, Encoding

from .components import Components, UnreadableError, count, known_element, part, required

Shape = tuple[int, ...]
Reading = Callable[[Shape, Components, dict[str, Any]], tuple[str, Encoding]]
INTEGERS = ("u64", "u32", "u16", "u8", "i64", "i32", "i16", "i8")


def _csr(shape: Shape, components: Components, attributes: dict[str, Any], *, ordered: bool) -> tuple[str, Encoding]:
    """Spec III.2; v2 6.4. `ordered`: columns of a row must rise, and all indices have one dtype of u32 or u64."""
    values, indices, indptr = (required(components, role) for role in ("values", "indices", "indptr"))
    if len(shape) != 2:
        raise UnreadableError(f"sparse_csr is of rank 2, not of shape {list(shape)}")
    dtype, entries = known_element(values, "values"), _entries(components, {"values": 1, "indices": 1})
    kinds = _index_dtypes(components, ("indices", "indptr"), ordered)
    parts = {
        "values": part(values, dtype, (entries,)),
        "indices": part(indices, kinds[0], (entries,)),
        "indptr": part(indptr, kinds[1], (shape[0] + 1,)),
    }
    params = {"nnz": entries, "indices": kinds[0], "indptr": kinds[1], "ordered": ordered}
    return dtype, Encoding(codec=CodecSpec("zt.sparse_csr", params), parts=parts)


def _coo(shape: Shape, components: Components, attributes: dict[str, Any], *, ordered: bool) -> tuple[str, Encoding]:
    """Spec III.3; v2 6.4: coordinates of the first axis first."""
    values, coords = required(components, "values"), required(components, "coords")
    if not shape:
        raise UnreadableError("sparse_coo needs an axis, but the shape is []")
    dtype, entries = known_element(values, "values"), _entries(components, {"values": 1, "coords": len(shape)})
    [kind] = _index_dtypes(components, ("coords",), ordered)
    parts = {"values": part(values, dtype, (entries,)), "coords": part(coords, kind, (len(shape), entries))}
    return dtype, Encoding(codec=CodecSpec("zt.sparse_coo", {"nnz": entries, "coords": kind}), parts=parts)


def _entries(components: Components, per_entry: dict[str, int]) -> int:
    """Number of stored values, from the first component that says it; `part` holds the others to it."""
    reason = UnreadableError("no component says how many values there are")
    for role, width in per_entry.items():
        try:
            total = count(components[role], role)
        except UnreadableError as error:
            reason = error
            continue
        if total % width:
            raise UnreadableError(f"the {total} elements of {role!r} are not {width} for each value")
        return total // width
    raise reason


def _index_dtypes(components: Components, roles: tuple[str, ...], strict: bool) -> list[str]:
    kinds = [known_element(components[role], role) for role in roles]
    allowed = ("u32", "u64") if strict else INTEGERS
    for role, kind in zip(roles, kinds):
        if kind not in allowed:
            raise UnreadableError(f"{role!r} are of dtype {kind}, not {' or '.join(allowed)}")
    if strict and len(set(kinds)) > 1:
        raise UnreadableError(f"{' and '.join(roles)} are of different dtypes, {' and '.join(kinds)}")
    return kinds


READINGS: dict[str, Reading] = {
    "sparse_csr": partial(_csr, ordered=False),
    "sparse_coo": partial(_coo, ordered=False),
    "zt.sparse_csr/1": partial(_csr, ordered=True),
    "zt.sparse_coo/1": partial(_coo, ordered=True),
}
