"""Memory layouts of each codec's parts, for the compiled kernels: which module lays out which codec."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve

from squish_core.api import CodecSpec, TensorSpec

from . import base
from .base import Layout, UncoveredError, part, rows_of


def layout_of(codec: CodecSpec, spec: TensorSpec) -> Layout:
    """Return the layout of a tensor; UncoveredError gives the reason if there is none."""
    if not spec.shape or not spec.elements:
        raise UncoveredError("a scalar or empty tensor", code="shape")
    family = codec.id.split(".")[0]
    make = _LAYOUTS.get(codec.id) or _LAYOUTS.get(family)
    if make is None:
        raise UncoveredError(f"no compiled kernel for {codec.id}", code="codec")
    return make(codec, spec)


def _masked(codec: CodecSpec, spec: TensorSpec) -> Layout:
    if codec.inner is None:
        raise UncoveredError("a mask without an inner codec", code="codec")
    inner, side = layout_of(codec.inner, spec), codec.params["block_size"]
    if (inner.rows, inner.columns) != rows_of(spec) or inner.in_panels:
        raise UncoveredError("a mask over codes not packed along rows", code="shape")
    return evolve(
        inner,
        fields={**inner.fields, "tile": side, "tiles": -(-inner.columns // side)},
        pointers={**inner.pointers, "mask": part("mask")},
    )


def _grouped(codec: CodecSpec, spec: TensorSpec) -> Layout:
    from . import affine

    return affine.LAYOUTS[codec.id](codec.params, spec)


def _sparse(codec: CodecSpec, spec: TensorSpec) -> Layout:
    from . import sparse

    return sparse.LAYOUTS[codec.id](codec.params, spec)


_LAYOUTS: dict[str, Callable[[CodecSpec, TensorSpec], Layout]] = {
    **base.LAYOUTS, "masked": _masked, "affine": _grouped, "squizd.int4": _grouped, "squizd.int2": _grouped,
    "palette": _grouped, "npydir.int3": _grouped, "tca_tbe": _sparse, "bitmask": _sparse,
}  # fmt: skip
