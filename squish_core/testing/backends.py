"""The suite for backends."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from squish_core.backends.base import Backend
from squish_core.backends.offers import MODES, OPS, Availability, Offer, Request
from squish_core.backends.resolve import resolve
from squish_core.codes import ErrorCode
from squish_core.errors import SquishError
from squish_core.model import DENSE, CodecSpec, Encoding, Refusal, TensorSpec
from squish_core.statistics import Tally
from squish_core.tensor import Tensor, Weight
from squish_core.testing.sources import CountingSource, memory_file, touched_part
from squish_core.testing.suite import Suite, parametrize

if TYPE_CHECKING:
    import numpy as np


SLACK = 1 << 16
"""Bytes of small objects that no offer counts."""


class BackendSuite(Suite):
    """Checks of a backend. Set `backend`; give `cases` to try more codecs than the dense one.

    `tolerance`: the greatest error of `linear` relative to the largest result. `exact_tolerance`: that of `dense` by an
    offer that says `exact`, for a stand-in of the device that rounds more often. `resident_rows`: rows of the tensor
    whose memory is measured. `allocated` adds what lies where Python does not see it, as on a device.
    """

    kind = "backend"
    backend: str
    tolerance = 1e-5
    exact_tolerance = 0.0
    resident_rows = 4096

    def allocated(self, weight: Weight) -> int:
        """Bytes that a loaded weight holds outside Python's and NumPy's allocators."""
        return 0

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
        assert isinstance(available, Availability), f"probe() gives {type(available).__name__}"
        assert available.ok or available.reason, f"probe() gives ok={available.ok} and no reason"

    def test_refusals_carry_a_reason(self) -> None:
        """A codec that is not installed is refused before the backend is asked."""
        encoding = Encoding(codec=CodecSpec("nobody.knows.this"))
        with pytest.raises(SquishError) as refusal:
            resolve(self.registry, "w", "memory", [encoding], backend=self.backend)
        assert refusal.value.code == ErrorCode.NO_CHAIN, f"an unknown codec is refused with code {refusal.value.code!r}"

    def test_an_offer_without_a_file_answers(self) -> None:
        """`resolve` by features has no tensor: `spec` is None."""
        answer = self.implementation().offer(self._request(Encoding(codec=DENSE), None))
        assert isinstance(answer, (Offer, Refusal)), f"offer() without a tensor gives {type(answer).__name__}"

    def test_offer_reads_nothing_and_is_stable(self, case: str) -> None:
        """An offer is plain data, made from the declaration alone, and the same each time."""
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

    def test_stored_cost_is_what_is_read(self, case: str) -> None:
        """`cost.stored` is the number of bytes that loading and one use read from the file."""
        weight, source = self._load(case)
        self._use(weight)
        index, encoding = weight.tensor.file.index, weight.chain.chosen.encoding
        read = sum(touched_part(source.log, index, part) for part in encoding.parts.values())
        cost = weight.chain.chosen.cost
        assert cost is not None, f"{case}: the offer for a tensor has no cost"
        assert cost.stored == read, f"{case}: the offer says {cost.stored} bytes stored, {read} were read"

    def test_resident_cost_is_what_is_held(self, case: str) -> None:
        """`cost.resident` covers the memory that a loaded weight holds, and is no more than holding and using takes."""
        tensor, _ = self._tensor(case, rows=self.resident_rows)
        self._offered(tensor)
        weight, resident, peak = measured_load(tensor, self.backend, self._use)
        cost = weight.chain.chosen.cost
        assert cost is not None, f"{case}: the offer for a tensor has no cost"
        resident, peak = resident + self.allocated(weight), peak + self.allocated(weight)
        message = f"{case}: the offer says {cost.resident} bytes in memory"
        assert resident <= cost.resident * 1.05 + SLACK, f"{message}; the loaded weight holds {resident}"
        most = peak + cost.stored
        assert cost.resident <= most * 1.05 + SLACK, f"{message}; resident, mapped and used at most {most}"

    def test_dense_equals_the_codec(self, case: str) -> None:
        """`dense` gives what the codec's own decoding gives; one that says `exact`, to the last bit."""
        import numpy as np

        weight, _ = self._load(case)
        self._needs(weight, "dense")
        expected = weight.tensor.numpy().astype(np.float32)
        message = f"{case}: `dense` is not what the codec decodes"
        actual = np.asarray(weight.dense(), np.float32)
        exact = weight.chain.chosen.exact
        np.testing.assert_allclose(
            actual, expected, rtol=self.exact_tolerance if exact else self.tolerance, atol=0, err_msg=message
        )

    def test_dense_gives_a_region_as_a_dtype_into_given_memory(self, case: str) -> None:
        """`region`, `dtype` and `out` of `dense`, alone and together."""
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

    def test_statistics_are_those_of_dense(self, case: str) -> None:
        """What a backend counts for itself is what the core counts of the values that it decodes."""
        weight, _ = self._load(case)
        self._needs(weight, "dense")
        tally = Tally()
        tally.add(weight.dense())
        actual, expected = weight.statistics(), tally.statistics()
        assert actual == expected, f"{case}: the backend counts {actual}, its values give {expected}"

    def test_linear_agrees_with_dense(self, case: str) -> None:
        """`x @ W.T`, for a vector, a matrix and a batch."""
        import numpy as np

        weight, _ = self._load(case)
        self._needs(weight, "linear")
        dense = weight.tensor.numpy().astype(np.float64)
        chance = np.random.default_rng(1)
        for lead in ((), (5,), (2, 3)):
            operand = chance.standard_normal((*lead, dense.shape[1]), np.float32)
            actual, expected = np.asarray(weight.linear(operand)), operand @ dense.T
            label = f"{case}: linear of x {operand.shape}"
            assert actual.shape == expected.shape, f"{label} has shape {actual.shape}, expected {expected.shape}"
            assert actual.dtype == np.float32, f"{label} gives {actual.dtype}, expected float32"
            error, most = float(np.abs(actual - expected).max()), self.tolerance * float(np.abs(expected).max())
            assert error <= most, f"{label} is off by {error:.6g}, at most {most:.6g}"

    def test_embed_gives_rows_of_dense(self, case: str) -> None:
        """Rows by id, repeated and in any order; the shape is ids.shape + (in,)."""
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
        codec_spec, values = self.cases()[case]
        if rows is not None:
            values = repeated(values, rows)
        dtype = codec_spec.params["dtype"] if codec_spec.id == "dense" else "f32"
        spec = TensorSpec(name=case, shape=values.shape, dtype=dtype)
        stored = self.registry.codec(codec_spec.id).encode(values, codec_spec.params)
        file, source = memory_file(self.registry, {case: (spec, codec_spec, stored)})
        return file[case], source

    def _load(self, case: str) -> tuple[Weight, CountingSource]:
        tensor, source = self._tensor(case)
        return tensor.load(self.backend, op=self._offered(tensor).ops[0]), source

    def _offered(self, tensor: Tensor) -> Offer:
        """The offer for a tensor; skips where the backend cannot run or refuses."""
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


def repeated(values: np.ndarray, rows: int) -> np.ndarray:
    """The values over and over along the first axis, up to `rows` of it."""
    import numpy as np

    return np.ascontiguousarray(np.concatenate([values] * -(-rows // max(1, len(values))))[:rows])


def measured_load(tensor: Tensor, backend: str, use: Callable[[Weight], None]) -> tuple[Weight, int, int]:
    """A loaded weight, the bytes that it holds, and those at the peak of loading and using it."""
    load = partial(tensor.load, backend, op=tensor.plan(backend).chosen.ops[0])
    use(load())  # what is made once for all weights (libraries, tables) is not this one's
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
