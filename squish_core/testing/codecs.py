"""The suite for tensor codecs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from squish_core import dtypes
from squish_core.codecs.base import Codec, Region
from squish_core.codecs.bound import BoundEncoding
from squish_core.codecs.code_layout import Codes
from squish_core.codecs.regions import full, normalise, sizes, stored_panels
from squish_core.model import CodecSpec, Encoding, TensorSpec
from squish_core.tensor import Tensor
from squish_core.testing.sources import memory_file
from squish_core.testing.suite import Suite, assert_regions_equal, parametrize, typed_errors_only

if TYPE_CHECKING:
    import numpy as np


class CodecSuite(Suite):
    """Checks of a codec. Set `codec`, give `cases`: between them every parameter and shape that matters.

    `tolerance`: the greatest root mean square error relative to that of the values, for a codec whose
    `error_bound` is not known before it ran.
    """

    kind = "codec"
    codec: str
    tolerance = 0.1

    def cases(self) -> Mapping[str, Any]:
        """Name -> (spec, params, values to encode), or (spec, params, {role: stored part}) to decode only."""
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Run the tests that ask for a case once for each."""
        parametrize(metafunc, "case", self.cases())

    def test_parts_are_as_declared(self, case: str) -> None:
        """`encode` gives the roles, dtypes and shapes of `parts`."""
        codec, spec, params, stored, _ = self._stored(case)
        declared = {role: (dtype, tuple(shape)) for role, (dtype, shape) in codec.parts(spec, params).items()}
        actual = {role: (dtypes.from_numpy(part.dtype), part.shape) for role, part in stored.items()}
        assert actual == declared, f"{case}: encode() gives {actual}, parts() declares {declared}"

    def test_grain_is_one_step_or_none_for_each_axis(self, case: str) -> None:
        """`grain` has the tensor's rank; every step is positive."""
        codec, spec, params, *_ = self._stored(case)
        grain = codec.grain(spec, params)
        assert len(grain) == len(spec.shape), f"{case}: grain {grain} has {len(grain)} axes, shape is {spec.shape}"
        assert all(step is None or step > 0 for step in grain), f"{case}: grain {grain} has a step below 1"

    def test_decoding_gives_the_values_within_the_bound(self, case: str) -> None:
        """Decoded values are as close to the encoded ones as `error_bound` says."""
        import numpy as np

        codec, spec, params, stored, values = self._stored(case)
        if values is None:
            pytest.skip("a case of stored parts")
        actual, bound = _decode(codec, spec, params, stored), codec.error_bound(params)
        if self.entry().info.lossless or bound.kind != "bounded":  # type: ignore[union-attr]
            kept = dtypes.to_numpy(bound.dtype) if bound.dtype else actual.dtype
            expected = values.astype(actual.dtype).astype(kept)
            wrong = int((actual.astype(kept) != expected).sum())
            assert not wrong, f"{case}: {wrong} of {actual.size} decoded values differ; error_bound says {bound}"
            return
        gap = actual.astype(np.float64) - values.astype(np.float64)
        if bound.error is not None:
            largest = float(np.abs(gap).max(initial=0))
            assert largest <= bound.error, f"{case}: the largest error is {largest:.6g}, error_bound says {bound.error}"
        power, noise = float(np.square(values.astype(np.float64)).sum()), float(np.square(gap).sum())
        relative = (noise / power) ** 0.5 if power else noise
        assert relative <= self.tolerance, f"{case}: the relative error is {relative:.6g}, tolerance {self.tolerance}"

    def test_panels_encode_as_the_whole(self, case: str) -> None:
        """Encoding panel after panel in the stored order gives the parts of encoding at once."""
        import numpy as np

        codec, spec, params, stored, values = self._stored(case)
        if values is None or not spec.elements:
            pytest.skip("nothing to encode")
        regions = stored_panels(spec.shape, codec.encode_grain(spec, params), 4, budget=1)
        encoded = [codec.encode(np.ascontiguousarray(values[region]), params) for region in regions]
        for role, part in stored.items():
            joined = b"".join(np.ascontiguousarray(piece[role]).tobytes() for piece in encoded)
            what = f"{case}: {len(encoded)} panels give other bytes for {role!r} than the whole ({len(joined)} bytes)"
            assert joined == part.tobytes(), what

    def test_a_region_equals_the_slice_of_the_whole(self, case: str) -> None:
        """Decoding a region, on the grain or not, equals slicing the whole."""
        codec, spec, params, stored, _ = self._stored(case)

        def read(key: Any) -> np.ndarray:
            region, rest = normalise(key, spec.shape)
            return read_region(codec, stored, spec, params, region)[rest]

        assert_regions_equal(spec.shape, _decode(codec, spec, params, stored), read, case)

    def test_decode_fills_all_of_out(self, case: str) -> None:
        """Nothing of what `out` held before shines through."""
        import numpy as np

        codec, spec, params, stored, _ = self._stored(case)
        dtype = dtypes.to_numpy(codec.value_dtype(spec, params))
        results = []
        for fill in (0x00, 0xA5):
            out = np.frombuffer(bytearray([fill]) * (spec.elements * dtype.itemsize), dtype).reshape(spec.shape)
            if spec.elements:
                codec.decode(stored, spec, params, region=full(spec.shape), out=out)
            results.append(out.tobytes())
        changed = sum(a != b for a, b in zip(*results))
        assert not changed, f"{case}: decode() leaves {changed} of {len(results[0])} bytes of `out` as they were"

    def test_unaligned_read_only_parts_decode_the_same(self, case: str) -> None:
        """Stored bytes at odd addresses, in memory that cannot be written, give the same values."""
        import numpy as np

        codec, spec, params, stored, _ = self._stored(case)
        moved = {}
        for role, part in stored.items():
            raw = memoryview(b"\0" + part.tobytes())[1:]
            moved[role] = np.frombuffer(raw, part.dtype).reshape(part.shape) if part.size else part
        with typed_errors_only(f"{case}: decoding {len(moved)} read-only parts"):
            actual, expected = (_decode(codec, spec, params, parts) for parts in (moved, stored))
        same = actual.tobytes() == expected.tobytes()
        assert same, f"{case}: {_different(actual, expected)} values differ when parts lie at odd addresses"

    def test_stored_arrays_decode_as_arrays_in_memory(self, case: str) -> None:
        """Parts that lie in a file, read lazily, give the same values."""
        codec, spec, params, stored, _ = self._stored(case)
        tensor = self._tensor(spec, params, stored)
        actual, expected = tensor.numpy(), _decode(codec, spec, params, stored)
        same = actual.tobytes() == expected.tobytes()
        assert same, f"{case}: {_different(actual, expected)} values differ when parts are read from a file"

    def test_codes_are_in_the_declared_layout(self, case: str) -> None:
        """`code_layout`, which sees no data, says what the codes of all data look like."""
        codec, spec, params, stored, _ = self._stored(case)
        declared, codes = codec.code_layout(spec, params), codec.codes(stored, spec, params, full(spec.shape))
        if codes is None:
            pytest.skip("this codec has no codes")
        bits = codes.layout.bits
        assert declared is not None, f"{case}: codes() gives codes of {bits} bits, code_layout() declares none"
        assert codes.layout == declared, f"{case}: codes() has the layout {codes.layout}, code_layout() says {declared}"
        assert len(declared.group) == len(spec.shape), f"{case}: groups {declared.group} of the shape {spec.shape}"
        check_arrays(case, codes, declared.group_sizes(spec.shape))

    def test_codes_restore_the_parts_and_the_values(self, case: str) -> None:
        """`codes` times scales gives the decoded values, and `from_codes` the stored parts back."""
        import numpy as np

        codec, spec, params, stored, _ = self._stored(case)
        codes = codec.codes(stored, spec, params, full(spec.shape))
        if codes is None:
            pytest.skip("this codec has no codes")
        layout = codes.layout
        shapes = f"{case}: codes of shape {codes.values.shape}, stated {codes.shape}, tensor {spec.shape}"
        assert codes.shape == codes.values.shape == spec.shape, shapes
        low, high = layout.low, layout.high
        least, most = (int(codes.values.min()), int(codes.values.max())) if codes.values.size else (low, high)
        assert low <= least <= most <= high, f"{case}: codes {least} to {most}, {layout.bits} bits hold {low} to {high}"
        values = _decode(codec, spec, params, stored)
        np.testing.assert_allclose(
            dequantised(codes), values, rtol=1e-5, atol=1e-6 * float(np.abs(values).max(initial=0)),
            err_msg=f"{case}: codes times scales are not the decoded values",
        )  # fmt: skip
        encoded = codec.from_codes(codes, spec, params)
        answer, expected = codec.holds(codes, spec, params), None if encoded is None else encoded[1]
        assert answer == expected, f"{case}: holds() says {answer}, from_codes() gives {expected}"
        if encoded is not None and encoded[1].kind == "bytes":
            assert set(encoded[0]) == set(stored), (
                f"{case}: from_codes() gives {set(encoded[0])}, encode() {set(stored)}"
            )
            changed = [role for role, part in encoded[0].items() if part.tobytes() != stored[role].tobytes()]
            assert not changed, f"{case}: from_codes() states equal bytes, and changes {changed}"

    def _stored(self, case: str) -> tuple[Codec, TensorSpec, Mapping[str, Any], dict[str, Any], Any]:
        """Codec, spec, params, stored parts, and the values that were encoded (None: parts were given)."""
        import numpy as np

        spec, params, given = self.cases()[case]
        codec = self.registry.codec(self.codec)
        if isinstance(given, Mapping):
            return codec, spec, params, dict(given), None
        encoded = codec.encode(np.ascontiguousarray(given), params)
        declared = codec.parts(spec, params)
        # A panel knows only its own shape; flat parts come out flat whatever rank the declaration has.
        stored = {role: part.reshape(declared[role][1]) if role in declared else part for role, part in encoded.items()}
        return codec, spec, params, stored, given

    def _tensor(self, spec: TensorSpec, params: Mapping[str, Any], stored: Mapping[str, np.ndarray]) -> Tensor:
        file, _ = memory_file(self.registry, {spec.name: (spec, CodecSpec(self.codec, params), stored)})
        return file[spec.name]


def check_arrays(case: str, codes: Codes, groups: tuple[int, ...]) -> None:
    """Scales, offsets and table are those that the layout declares."""
    layout = codes.layout
    finer = all(size % own == 0 for size, own in zip(groups, codes.group, strict=True))
    assert finer, f"{case}: groups of {codes.group} do not divide the declared ones of {groups}"
    grid = tuple(-(-size // step) for size, step in zip(codes.shape, codes.group))
    assert codes.scale.shape == grid, f"{case}: {codes.scale.shape} scales, the groups make a grid of {grid}"
    scale = dtypes.from_numpy(codes.scale.dtype)
    assert scale == layout.scale_dtype, f"{case}: scales are {scale}, the layout says {layout.scale_dtype}"
    kind = None if codes.offset is None else dtypes.from_numpy(codes.offset.dtype)
    stated = layout.offset_dtype
    if stated is not None and stated[0] in "iu":  # packed zero points come a byte each
        stated = f"{stated[0]}{max(int(stated[1:]), 8)}"
    assert kind == stated, f"{case}: offsets are {kind}, the layout says {stated}"
    has_table = f"{case}: the table is {codes.table!r:.80}, the layout says {layout.table!r:.80}"
    assert (codes.table is None) == (layout.table is None), has_table


def dequantised(codes: Codes) -> np.ndarray:
    """The values that codes stand for, in float64, by the definition of `Codes`."""
    import numpy as np

    def spread(groups: np.ndarray) -> np.ndarray:
        for axis, size in enumerate(codes.group):
            groups = np.repeat(groups, size, axis)
        return groups[tuple(slice(0, size) for size in codes.values.shape)].astype(np.float64)

    values = (codes.values if codes.table is None else codes.table[codes.values]).astype(np.float64)
    biased, offsets = codes.layout.offset_kind == "bias", codes.offsets
    if offsets is not None and not biased:
        values = values - spread(offsets)
    values = values * spread(codes.scale)
    if offsets is not None and biased:
        values = values + spread(offsets)
    return values


def _decode(codec: Codec, spec: TensorSpec, params: Mapping[str, Any], parts: Mapping[str, Any]) -> np.ndarray:
    values = read_region(codec, parts, spec, params, full(spec.shape))
    expected = sizes(full(spec.shape))
    assert values.shape == expected, f"decoding gives shape {values.shape}, the tensor has {expected}"
    return values


def read_region(
    codec: Codec,
    parts: Mapping[str, Any],
    spec: TensorSpec,
    params: Mapping[str, Any],
    region: Region,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Values of a region of parts in memory."""
    encoding = Encoding(codec=CodecSpec(codec.id, params))
    return BoundEncoding(codec, spec, encoding, parts).read(region, out)


def _different(one: np.ndarray, other: np.ndarray) -> int:
    """How many values differ; all of them where the shapes do."""
    return int((one != other).sum()) if one.shape == other.shape else one.size
