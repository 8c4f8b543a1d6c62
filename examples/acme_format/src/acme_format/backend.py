"""ACME in memory: decodes once, keeps f32."""

from __future__ import annotations

from typing import Any

import numpy as np

from squish_core import api


class Memory(api.Backend):
    """Holds every weight as a dense f32 array."""

    def probe(self) -> api.Availability:
        return api.Availability(ok=True, device="CPU")

    def offer(self, request: api.Request) -> api.Offer:
        encoding, spec = request.encoding, request.spec
        cost = None
        if spec is not None:
            dense = 4 * spec.elements
            cost = api.Cost(stored=encoding.stored, resident=dense, moved=dense)
        ops = ("dense", "linear", "embed")
        return api.Offer(backend=self.id, encoding=encoding, mode="fold", ops=ops, storage="f32 in memory", cost=cost)

    def load(self, chain: api.Chain, bound: api.BoundEncoding) -> np.ndarray:
        return bound.read().astype(np.float32, copy=False)

    def dense(self, handle: np.ndarray, **wishes: Any) -> np.ndarray:
        return api.cast_output(handle, **wishes)

    def linear(self, handle: np.ndarray, x: np.ndarray) -> np.ndarray:
        return np.asarray(x, np.float32) @ handle.T

    def embed(self, handle: np.ndarray, ids: np.ndarray) -> np.ndarray:
        return handle[ids]
