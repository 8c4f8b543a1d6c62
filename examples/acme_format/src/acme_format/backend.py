"""ACME in memory: decodes once, keeps f32."""

from __future__ import annotations

from typing import Any

import numpy as np

from squish_core import api


class Memory(api.Backend):
    """Holds every weight as a dense f32 array."""

    def probe(self) -> api.Availability:
        return api.Availability(ok=True, device="CPU")

    def offer(self, request: api.Request) -> api.Offer | api.Refused:
        encoding, spec = request.encoding, request.spec
        if missing := request.registry.missing(encoding):
            return api.Refused(
                backend=self.id, encoding=encoding, code="not-installed", why=missing.why, install=missing.install
            )
        cost = None
        if spec is not None:
            dense = 4 * spec.elements
            cost = api.Cost(stored=encoding.stored, resident=dense, moved=dense)
        ops = ("dense", "linear", "embed")
        return api.Offer(backend=self.id, encoding=encoding, mode="fold", ops=ops, layout="f32 in memory", cost=cost)

    def load(self, chain: api.Chain, parts: api.Parts, registry: api.Registry) -> np.ndarray:
        spec, codec = chain.spec, chain.chosen.encoding.codec
        assert spec is not None
        implementation = registry.codec(codec.id)
        region = tuple(slice(0, size) for size in spec.shape)
        out = np.empty(spec.shape, api.dtypes.to_numpy(implementation.value_dtype(spec, codec.params)))
        implementation.decode(parts, spec, codec.params, region=region, out=out)
        return out.astype(np.float32, copy=False)

    def dense(self, handle: np.ndarray, **wishes: Any) -> np.ndarray:
        return api.delivered(handle, **wishes)

    def linear(self, handle: np.ndarray, x: np.ndarray) -> np.ndarray:
        return np.asarray(x, np.float32) @ handle.T

    def embed(self, handle: np.ndarray, ids: np.ndarray) -> np.ndarray:
        return handle[ids]
