"""The backend of whole models that docs/writing-a-plugin.md shows."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from squish_core import api


class Doubling:
    """A model that doubles its input."""

    inputs = MappingProxyType({"x": ((1, 4), "f32")})
    outputs = MappingProxyType({"y": ((1, 4), "f32")})

    def predict(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"y": 2 * inputs["x"]}

    def close(self) -> None:
        pass


class Runtime(api.Backend):
    """Runs packages of the codec `acme.package`."""

    whole = True

    def probe(self) -> api.Availability:
        return api.Availability(ok=True, device="CPU")

    def offer(self, request: api.Request) -> api.Offer | api.Refusal:
        encoding = request.encoding
        if encoding.codec.id != "acme.package":
            why = "it runs Acme packages alone"
            return api.Refusal(backend=self.id, encoding=encoding, code="whole", why=why)
        return api.Offer(backend=self.id, encoding=encoding, mode="delegate", ops=(), storage="the file's own package")

    def load_whole(self, chain: api.Chain, file: api.File) -> Doubling:
        return Doubling()
