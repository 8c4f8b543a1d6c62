"""The suite for backends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from squish_core.backends.base import Backend
from squish_core.backends.offers import MODES, OPS, Availability, Offer, Request
from squish_core.backends.resolve import resolve
from squish_core.errors import SquishError
from squish_core.model import DENSE, CodecSpec, Encoding, Refusal, TensorSpec
from squish_core.statistics import Tally
from squish_core.tensor import Tensor, Weight
from squish_core.testing.sources import CountingSource, memory_file, touched_part
from squish_core.testing.suite import Suite, parametrize

if TYPE_CHECKING:
    import numpy as np


class BackendSuite(Suite):
    """Checks of a backend. Set `backend`; give `cases` to try more codecs than the dense one.

    `tolerance`: the greatest error of `linear` relative to the largest result.
    """

    kind = "backend"
    backend: str
    tolerance = 1e-5

    def cases(self) -> Mapping[str, tuple[CodecSpec, np.ndarray]]:
        """Name -> (codec with parameters, a matrix to encode with it)."""
        import numpy as np

        chance = np.random.default_rng(0)
        return {
            dtype: (CodecSpec("dense", {"dtype": dtype}), chance.standard_normal((24, 64), np.float32))
            for dtype in ("f32", "f16", "bf16")
        }

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Run the tests that ask for a case once for each."""
        parametrize(metafunc, "case", self.cases())

    def implementation(self) -> Backend:
        """The backend."""
        return self.registry.backend(self.backend)

    def test_probe_answers_and_never_raises(self) -> None:
        """Availability says yes, or no with a reason."""
        available = self.implementation().probe()
        assert isinstance(available, Availability)
        assert available.ok or available.reason

    def test_refusals_carry_a_reason(self) -> None:
        """A codec that is not installed is refused in words, before the backend is asked."""
        encoding = Encoding(codec=CodecSpec("nobody.knows.this"))
        with pytest.raises(SquishError, match=r"nobody\.knows\.this") as refusal:
            resolve(self.registry, "w", "memory", [encoding], backend=self.backend)
        assert refusal.value.code == "no-chain"

    def test_an_offer_without_a_file_answers(self) -> None:
        """`resolve` by features has no tensor: `spec` is None."""
        answer = self.implementation().offer(self._request(Encoding(codec=DENSE), None))
        assert isinstance(answer, (Offer, Refusal))

    def test_offer_reads_nothing_and_is_stable(self, case: str) -> None:
        """An offer is plain data, made from the declaration alone, and the same each time."""
        tensor, source = self._tensor(case)
        request = self._request(tensor.spec.encodings[0], tensor.spec)
        first, second = (self.implementation().offer(request) for _ in range(2))
        assert first == second
        assert not source.log
        if isinstance(first, Offer):
            assert first.mode in MODES
            assert first.ops
            assert set(first.ops) <= set(OPS)
            assert first.layout
            assert first.cost is not None

    def test_stored_cost_is_what_is_read(self, case: str) -> None:
        """`cost.stored` is the number of bytes that loading and one use read from the file."""
        weight, source = self._load(case)
        self._use(weight)
        index, encoding = weight.tensor.file.index, weight.chain.chosen.encoding
        read = sum(touched_part(source.log, index, part) for part in encoding.parts.values())
        cost = weight.chain.chosen.cost
        assert cost is not None
        assert cost.stored == read

    def test_dense_equals_the_codec(self, case: str) -> None:
        """`dense` gives what the codec's own decoding gives."""
        import numpy as np

        weight, _ = self._load(case)
        self._needs(weight, "dense")
        wanted = weight.tensor.numpy().astype(np.float32)
        np.testing.assert_allclose(np.asarray(weight.dense(), np.float32), wanted, rtol=self.tolerance, atol=0)

    def test_dense_gives_a_region_as_a_dtype_into_given_memory(self, case: str) -> None:
        """`region`, `dtype` and `out` of `dense`, alone and together."""
        import numpy as np

        weight, _ = self._load(case)
        self._needs(weight, "dense")
        region = (slice(1, 5), *(slice(0, size) for size in weight.tensor.shape[1:]))
        wanted = np.asarray(weight.dense())[region]
        np.testing.assert_array_equal(weight.dense(region=region), wanted)
        out = np.zeros(wanted.shape, np.float16)
        assert weight.dense(region=region, dtype="f16", out=out) is out
        np.testing.assert_array_equal(out, wanted.astype(np.float16))

    def test_statistics_are_those_of_dense(self, case: str) -> None:
        """What a backend counts for itself is what the core counts of the values that it decodes."""
        weight, _ = self._load(case)
        self._needs(weight, "dense")
        tally = Tally()
        tally.add(weight.dense())
        assert weight.statistics() == tally.statistics()

    def test_linear_agrees_with_dense(self, case: str) -> None:
        """`x @ W.T`, for a vector, a matrix and a batch."""
        import numpy as np

        weight, _ = self._load(case)
        self._needs(weight, "linear")
        dense = weight.tensor.numpy().astype(np.float64)
        chance = np.random.default_rng(1)
        for lead in ((), (5,), (2, 3)):
            operand = chance.standard_normal((*lead, dense.shape[1]), np.float32)
            found, wanted = np.asarray(weight.linear(operand)), operand @ dense.T
            assert found.shape == wanted.shape
            assert found.dtype == np.float32
            assert np.abs(found - wanted).max() <= self.tolerance * np.abs(wanted).max()

    def test_embed_gives_rows_of_dense(self, case: str) -> None:
        """Rows by id, repeated and in any order; the shape is ids.shape + (in,)."""
        import numpy as np

        weight, _ = self._load(case)
        self._needs(weight, "embed")
        dense = weight.tensor.numpy().astype(np.float32)
        for ids in (np.array([[0, len(dense) - 1], [1, 0]]), np.zeros((0,), np.int64), np.array(2)):
            found = np.asarray(weight.embed(ids), np.float32)
            np.testing.assert_allclose(found, dense[ids], rtol=self.tolerance, atol=0)

    def _request(self, encoding: Encoding, spec: TensorSpec | None) -> Request:
        codec = None if self.registry.missing(encoding) else self.registry.codec(encoding.codec)
        return Request(spec=spec, encoding=encoding, codec=codec)

    def _tensor(self, case: str) -> tuple[Tensor, CountingSource]:
        codec_spec, values = self.cases()[case]
        dtype = codec_spec.params["dtype"] if codec_spec.id == "dense" else "f32"
        spec = TensorSpec(name=case, shape=values.shape, dtype=dtype)
        stored = self.registry.codec(codec_spec.id).encode(values, codec_spec.params)
        file, source = memory_file(self.registry, {case: (spec, codec_spec, stored)})
        return file[case], source

    def _load(self, case: str) -> tuple[Weight, CountingSource]:
        available = self.implementation().probe()
        if not available.ok:
            pytest.skip(f"not available here: {available.reason}")
        tensor, source = self._tensor(case)
        answer = self.implementation().offer(self._request(tensor.spec.encodings[0], tensor.spec))
        if isinstance(answer, Refusal):
            pytest.skip(f"refused: {answer.why}")
        return tensor.load(self.backend, op=answer.ops[0]), source

    def _use(self, weight: Weight) -> None:
        import numpy as np

        if "linear" in weight.chain.chosen.ops:
            weight.linear(np.ones(weight.tensor.shape[1], np.float32))
        elif "dense" in weight.chain.chosen.ops:
            weight.dense()

    def _needs(self, weight: Weight, op: str) -> None:
        if op not in weight.chain.chosen.ops:
            pytest.skip(f"has no operation {op!r}")
