"""Encoder metrics: decodes encoded values and measures their error in one pass."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from squish_core.api import Codec, CodecError, Decoder, Region, TensorSpec, dtypes

from .backend import CpuBackend, Handle, weights_of
from .layouts import layout_of
from .layouts.base import DENSE, Array, Layout
from .library import library, threads


class EncoderMetrics:
    """The `compare` and `decoder` of encoders, for every codec with a compiled decoder."""

    def compare(
        self, codec: Codec, values: Array, parts: Mapping[str, Array], spec: TensorSpec
    ) -> tuple[float, float, float, float] | None:
        """Compare as `MeasuringEncoder.compare`; also None without a compiled decoder or for non-finite results."""
        own, source = codec.value_dtype(spec), dtypes.from_numpy(values.dtype)
        layout = _layout(codec, spec)
        if layout is None or source not in DENSE:
            return None
        values = np.require(values, requirements=["C", "A"])
        weights, arrays = weights_of(layout, parts)
        sums = np.empty((layout.rows, 4))
        library().compare(weights, values.ctypes.data, DENSE[source], DENSE[own], sums.ctypes.data, threads())
        del arrays  # keeps the memory `weights` points to alive until here
        if not np.isfinite(sums).all():
            return None
        _, error, power, norm = sums.sum(axis=0).tolist()
        return float(sums[:, 0].max()), error, power, norm

    def decoder(self, codec: Codec, parts: Mapping[str, Array], spec: TensorSpec) -> Decoder | None:
        """Return the decoder of `MeasuringEncoder.decoder`; None without a compiled decoder."""
        layout = _layout(codec, spec)
        if layout is None:
            return None
        weights, arrays = weights_of(layout, parts)
        handle = Handle(
            spec=spec,
            layout=layout,
            dtype="f32",
            arrays=arrays,
            weights=weights,
            products=weights,
            threads=threads(),
            activations=None,
        )
        return partial(_fill, handle)


def _fill(handle: Handle, region: Region, out: Array) -> None:
    CpuBackend().dense(handle, region=region, dtype=dtypes.from_numpy(out.dtype), out=out)


def _layout(codec: Codec, spec: TensorSpec) -> Layout | None:
    if codec.value_dtype(spec) not in DENSE or codec.column_permuted(spec) is not None:
        return None
    try:
        return layout_of(codec.specification, spec)
    except CodecError:
        return None
