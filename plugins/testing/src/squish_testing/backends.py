"""Test suite for backends."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from squish_convert.statistics import COUNTED, Statistics, Tally

from squish_core.backends.base import Backend
from squish_core.backends.offers import MODES, OPS, Availability, Offer, Request
from squish_core.backends.resolve import resolve
from squish_core.backends.weight import Weight
from squish_core.codes import ErrorCode
from squish_core.errors import SquishError
from squish_core.model import DENSE, CodecSpec, Encoding, Refusal, TensorSpec
from squish_core.tensor import Tensor

from .sources import CountingSource, memory_file, touched_part
from .suite import Suite, cases_of, parametrize

if TYPE_CHECKING:
    import numpy as np


SLACK = 1 << 16
"""Allowance for small objects that offers do not count, in bytes."""


class BackendSuite(Suite):
    """Tests of a backend. Set `backend`; override `cases` to test more codecs than the dense one.

    `tolerance`: maximum error of `linear`, relative to the largest result. `exact_tolerance`: maximum relative error
    of `dense` for offers with `exact`, above 0 for an emulated device that rounds more often. `resident_rows`: rows of
    the tensor in the memory test. `allocated` adds memory that Python does not see, such as a device's.
    """

    kind = "backend"
    backend: str
    tolerance = 1e-5
    exact_tolerance = 0.0
    resident_rows = 4096

    def allocated(self, weight: Weight) -> int:
        """Bytes of a loaded weight outside Python's and NumPy's allocators."""
        return 0

    def cases(self) -> Mapping[str, tuple[CodecSpec, np.ndarray]]:
        """Name -> (codec with parameters, matrix to encode)."""
        import numpy as np

        generator = np.random.default_rng(0)
        return {
            dtype: (CodecSpec("dense", {"dtype": dtype}), generator.standard_normal((24, 64), np.float32))
            for dtype in ("f32", "f16", "bf16")
        }

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Parametrize tests that take a case."""
        parametrize(metafunc, "case", cases_of(type(self)))

    def implementation(self) -> Backend:
        """Return the backend."""
        return self.registry.backend(self.backend)

    def test_probe_answers_and_never_raises(self) -> None:
        """A backend that is not available gives a reason."""
        available = self.implementation().probe()
        assert isinstance(available, Availability), f"probe() gives {type(available).__name__}"
        assert available.ok or available.reason, f"probe() gives ok={available.ok} and no reason"

    def test_refusals_carry_a_reason(self) -> None:
        """A codec that is not installed is refused without calling the backend."""
        encoding = Encoding(codec=CodecSpec("nobody.knows.this"))
        with pytest.raises(SquishError) as refusal:
            resolve(self.registry, "w", "memory", [encoding], backend=self.backend)
        assert refusal.value.code == ErrorCode.NO_CHAIN, f"an unknown codec is refused with code {refusal.value.code!r}"

    def test_an_offer_without_a_file_answers(self) -> None:
        """Without a tensor (`spec` is None), `offer` still answers."""
        answer = self.implementation().offer(self._request(Encoding(codec=DENSE), None))
        assert isinstance(answer, (Offer, Refusal)), f"offer() without a tensor gives {type(answer).__name__}"

    def test_offer_reads_nothing_and_is_stable(self, case: str) -> None:
        """An offer is plain data and depends on nothing but the request."""
        tensor, source = self._tensor(case)
        request = self._request(tensor.spec.encodings[0], tensor.spec)
        first, second = (self.implementation().offer(request) for _ in range(2))
        assert first == second, f"{case}: two offers differ: {first} and {second}"
        assert not source.log, f"{case}: offer() reads {len(source.log)} ranges of the file: {source.log[:4]}"
        if isinstance(first, Refusal):
            message = f"{case}: 1 refusal has backend={first.backend!r}, code={first.code!r}, why={first.why!r}"
            assert first.why and first.code and first.backend == self.backend, message  # noqa: PT018 - one statement
        if isinstance(first, Offer):
            assert first.mode in MODES, f"{case}: mode is {first.mode!r}, expected one of {MODES}"
            assert first.ops, f"{case}: the offer has {len(first.ops)} operations"
            assert set(first.ops) <= set(OPS), f"{case}: operations are {first.ops}, expected some of {OPS}"
            assert first.storage, f"{case}: the offer has an empty `storage`"
            assert first.cost is not None, f"{case}: the offer for a tensor has no cost"

    def test_stored_cost_is_the_number_of_bytes_read(self, case: str) -> None:
        """`cost.stored` is the number of bytes that loading and one use read from the file."""
        weight, source = self._load(case)
        self._use(weight)
        index, encoding = weight.tensor.file.index, weight.chain.chosen.encoding
        size = sum(touched_part(source.log, index, part) for part in encoding.parts.values())
        cost = weight.chain.chosen.cost
        assert cost is not None, f"{case}: the offer for a tensor has no cost"
        assert cost.stored == size, f"{case}: the offer says {cost.stored} bytes stored, {size} were read"

    def test_resident_cost_covers_a_loaded_weight(self, case: str) -> None:
        """`cost.resident` is at least the memory of a loaded weight, and at most that of loading and using it."""
        tensor, _ = self._tensor(case, rows=self.resident_rows)
        self._offer(tensor)
        weight, resident, peak = measure_load(tensor, self.backend, self._use)
        cost = weight.chain.chosen.cost
        assert cost is not None, f"{case}: the offer for a tensor has no cost"
        resident, peak = resident + self.allocated(weight), peak + self.allocated(weight)
        message = f"{case}: the offer says {cost.resident} bytes in memory"
        assert resident <= cost.resident * 1.05 + SLACK, f"{message}; the loaded weight takes {resident}"
        maximum = peak + cost.stored
        assert cost.resident <= maximum * 1.05 + SLACK, f"{message}; loading and using it takes at most {maximum}"

    def test_dense_equals_the_codec(self, case: str) -> None:
        """`dense` agrees with the codec's own decoding, bit for bit if the offer says `exact`."""
        import numpy as np

        weight, _ = self._load(case)
        self._needs(weight, "dense")
        expected = weight.tensor.numpy().astype(np.float32)
        message = f"{case}: `dense` differs from the codec's decoding"
        actual = np.asarray(weight.dense(), np.float32)
        exact = weight.chain.chosen.exact
        np.testing.assert_allclose(
            actual, expected, rtol=self.exact_tolerance if exact else self.tolerance, atol=0, err_msg=message
        )

    def test_dense_fills_out_with_a_region_in_a_dtype(self, case: str) -> None:
        """`dense` accepts `region`, `dtype` and `out`, alone and together."""
        import numpy as np

        weight, _ = self._load(case)
        self._needs(weight, "dense")
        region = (slice(1, 5), *(slice(0, size) for size in weight.tensor.shape[1:]))
        expected = np.asarray(weight.dense())[region]
        label = f"{case}: dense(region={region})"
        np.testing.assert_array_equal(weight.dense(region=region), expected, err_msg=label)
        out = np.zeros(expected.shape, np.float16)
        result = weight.dense(region=region, dtype="f16", out=out)
        assert result is out, f"{label} with `out` of shape {out.shape} returns another array"
        np.testing.assert_array_equal(out, expected.astype(np.float16), err_msg=f"{label} as f16 into `out`")

    def test_statistics_match_dense(self, case: str) -> None:
        """A backend's own statistics equal the core's statistics of its decoded values."""
        weight, _ = self._load(case)
        self._needs(weight, "dense")
        tally = Tally()
        tally.add(weight.dense())
        actual, expected = (
            {name: getattr(statistics, name) for name in COUNTED}
            for statistics in (weight.statistics(), Statistics.of(tally.counts()))
        )
        assert actual == expected, f"{case}: the backend counts {actual}, its values give {expected}"

    def test_linear_agrees_with_dense(self, case: str) -> None:
        """`linear` is `x @ W.T` for a vector, a matrix and a batch."""
        import numpy as np

        weight, _ = self._load(case)
        self._needs(weight, "linear")
        dense = weight.tensor.numpy().astype(np.float64)
        generator = np.random.default_rng(1)
        for lead in ((), (5,), (2, 3)):
            operand = generator.standard_normal((*lead, dense.shape[1]), np.float32)
            actual, expected = np.asarray(weight.linear(operand)), operand @ dense.T
            label = f"{case}: linear of x {operand.shape}"
            assert actual.shape == expected.shape, f"{label} has shape {actual.shape}, expected {expected.shape}"
            assert actual.dtype == np.float32, f"{label} gives {actual.dtype}, expected float32"
            error, bound = float(np.abs(actual - expected).max()), self.tolerance * float(np.abs(expected).max())
            assert error <= bound, f"{label} is off by {error:.6g}, at most {bound:.6g} is allowed"

    def test_embed_gives_rows_of_dense(self, case: str) -> None:
        """`embed` gives rows by id, repeated and in any order, in the shape ids.shape + (in,)."""
        import numpy as np

        weight, _ = self._load(case)
        self._needs(weight, "embed")
        dense = weight.tensor.numpy().astype(np.float32)
        for ids in (np.array([[0, len(dense) - 1], [1, 0]]), np.zeros((0,), np.int64), np.array(2)):
            actual = np.asarray(weight.embed(ids), np.float32)
            label = f"{case}: embed of ids {ids.tolist()}"
            np.testing.assert_allclose(actual, dense[ids], rtol=self.tolerance, atol=0, err_msg=label)

    def _request(self, encoding: Encoding, spec: TensorSpec | None) -> Request:
        codec = None if self.registry.missing(encoding) else self.registry.codec(encoding.codec)
        return Request(spec=spec, encoding=encoding, codec=codec)

    def _tensor(self, case: str, rows: int | None = None) -> tuple[Tensor, CountingSource]:
        codec_spec, values = cases_of(type(self))[case]
        if rows is not None:
            values = repeat_rows(values, rows)
        dtype = codec_spec.params["dtype"] if codec_spec.id == "dense" else "f32"
        spec = TensorSpec(name=case, shape=values.shape, dtype=dtype)
        parts = self.registry.codec(codec_spec).encode(values)
        file, source = memory_file(self.registry, {case: (spec, codec_spec, parts)})
        return file[case], source

    def _load(self, case: str) -> tuple[Weight, CountingSource]:
        tensor, source = self._tensor(case)
        return tensor.load(self.backend, op=self._offer(tensor).ops[0]), source

    def _offer(self, tensor: Tensor) -> Offer:
        """Return the offer for a tensor; skips the test if the backend is not available or refuses."""
        available = self.implementation().probe()
        if not available.ok:
            pytest.skip(f"not available here: {available.reason}")
        answer = self.implementation().offer(self._request(tensor.spec.encodings[0], tensor.spec))
        if isinstance(answer, Refusal):
            pytest.skip(f"refused: {answer.why}")
        return answer

    def _use(self, weight: Weight) -> None:
        import numpy as np

        if "linear" in weight.chain.chosen.ops:
            weight.linear(np.ones(weight.tensor.shape[1], np.float32))
        elif "dense" in weight.chain.chosen.ops:
            weight.dense()

    def _needs(self, weight: Weight, op: str) -> None:
        if op not in weight.chain.chosen.ops:
            pytest.skip(f"has no operation {op!r}")


def repeat_rows(values: np.ndarray, rows: int) -> np.ndarray:
    """Repeat the rows of an array until there are `rows`."""
    import numpy as np

    return np.ascontiguousarray(np.concatenate([values] * -(-rows // max(1, len(values))))[:rows])


def measure_load(tensor: Tensor, backend: str, use: Callable[[Weight], None]) -> tuple[Weight, int, int]:
    """Load a weight; returns it, its memory in bytes, and the peak of loading and using it."""
    load = partial(tensor.load, backend, op=tensor.plan(backend).chosen.ops[0])
    use(load())  # loads what all weights share, such as libraries and tables
    gc.collect()
    tracemalloc.start()
    try:
        weight = load()
        use(weight)
        peak = tracemalloc.get_traced_memory()[1]
        gc.collect()
        return weight, tracemalloc.get_traced_memory()[0], peak
    finally:
        tracemalloc.stop()
