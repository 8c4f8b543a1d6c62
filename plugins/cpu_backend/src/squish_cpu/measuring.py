"""What an encoding has lost: one pass that decodes rows in the cache and compares them with the values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from squish_core.api import Codec, CodecError, CodecSpec, Params, TensorSpec, dtypes

from .backend import bound
from .layouts import DENSE, Array, layout_of
from .library import library, threads


class Measuring:
    """The `compare` of an encoder, for every codec that the loops decode."""

    def compare(
        self, codec: Codec, values: Array, parts: Mapping[str, Array], spec: TensorSpec, params: Params
    ) -> tuple[float, float, float, float] | None:
        """As `Encoder.compare` says; None too where the loops do not decode this, or a number is not finite."""
        own, given = codec.value_dtype(spec, params), dtypes.from_numpy(values.dtype)
        if own not in DENSE or given not in DENSE or codec.reordered(spec, params) is not None:
            return None
        try:
            layout = layout_of(CodecSpec(codec.id, params), spec)
        except CodecError:
            return None
        values = np.require(values, requirements=["C", "A"])
        weights, kept = bound(layout, parts)
        sums = np.empty((layout.rows, 4))
        library().compare(weights, values.ctypes.data, DENSE[given], DENSE[own], sums.ctypes.data, threads())
        del kept  # alive until here: `weights` points to them
        if not np.isfinite(sums).all():
            return None
        _, error, power, norm = sums.sum(axis=0).tolist()
        return float(sums[:, 0].max()), error, power, norm
