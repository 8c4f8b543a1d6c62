"""Test suite for tensor codecs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from squish_core import dtypes
from squish_core.codecs.base import Codec, Region
from squish_core.codecs.bound import BoundEncoding
from squish_core.codecs.code_layout import Codes
from squish_core.codecs.regions import full, normalize, sizes, stored_panels
from squish_core.model import CodecSpec, Encoding, TensorSpec
from squish_core.tensor import Tensor

from .sources import memory_file
from .suite import Suite, assert_regions_equal, cases_of, parametrize, typed_errors_only

if TYPE_CHECKING:
    import numpy as np


class CodecSuite(Suite):
    """Tests of a codec. Set `codec` and override `cases` so that they cover every parameter and shape that matters.

    `tolerance`: maximum root mean square error relative to the values', for a codec without an a-priori
    `error_bound`.
    """

    kind = "codec"
    codec: str
    tolerance = 0.1

    def cases(self) -> Mapping[str, Any]:
        """Name -> (spec, params, values to encode), or (spec, params, {role: stored part}) for decoding only."""
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Parametrize tests that take a case."""
        parametrize(metafunc, "case", cases_of(type(self)))

    def test_parts_match_the_declaration(self, case: str) -> None:
        """`encode` gives the roles, dtypes and shapes that `parts` declares."""
        codec, spec, parts, _ = self._encoded(case)
        layout = {role: (dtype, tuple(shape)) for role, (dtype, shape) in codec.parts(spec).items()}
        actual = {role: (dtypes.from_numpy(part.dtype), part.shape) for role, part in parts.items()}
        assert actual == layout, f"{case}: encode() gives {actual}, parts() declares {layout}"

    def test_grain_has_a_step_or_none_per_axis(self, case: str) -> None:
        """`grain` has the tensor's rank, and every step is positive."""
        codec, spec, *_ = self._encoded(case)
        grain = codec.grain(spec)
        assert len(grain) == len(spec.shape), f"{case}: grain {grain} has {len(grain)} axes, shape is {spec.shape}"
        assert all(step is None or step > 0 for step in grain), f"{case}: grain {grain} has a step below 1"

    def test_decoding_gives_the_values_within_the_bound(self, case: str) -> None:
        """The error of decoded values is within `error_bound`."""
        import numpy as np

        codec, spec, parts, values = self._encoded(case)
        if values is None:
            pytest.skip("this case has stored parts, not values")
        actual, bound = _decode(codec, spec, parts), codec.error_bound
        if self.entry().info.lossless or bound.kind != "bounded":
            dtype = dtypes.to_numpy(bound.dtype) if bound.dtype else actual.dtype
            expected = values.astype(actual.dtype).astype(dtype)
            wrong = int((actual.astype(dtype) != expected).sum())
            assert not wrong, f"{case}: {wrong} of {actual.size} decoded values differ; error_bound says {bound}"
            return
        gap = actual.astype(np.float64) - values.astype(np.float64)
        if bound.error is not None:
            largest = float(np.abs(gap).max(initial=0))
            assert largest <= bound.error, f"{case}: the largest error is {largest:.6g}, error_bound says {bound.error}"
        power, noise = float(np.square(values.astype(np.float64)).sum()), float(np.square(gap).sum())
        relative = (noise / power) ** 0.5 if power else noise
        assert relative <= self.tolerance, f"{case}: the relative error is {relative:.6g}, tolerance {self.tolerance}"

    def test_panels_encode_to_the_same_bytes(self, case: str) -> None:
        """Encoding panel by panel in storage order gives the same parts as encoding at once."""
        import numpy as np

        codec, spec, parts, values = self._encoded(case)
        if values is None or not spec.elements:
            pytest.skip("nothing to encode")
        regions = stored_panels(spec.shape, codec.encode_grain(spec), 4, budget=1)
        panels = [codec.encode(np.ascontiguousarray(values[region])) for region in regions]
        for role, part in parts.items():
            data = b"".join(np.ascontiguousarray(piece[role]).tobytes() for piece in panels)
            message = f"{case}: {len(panels)} panels give other bytes for {role!r} than one call ({len(data)} bytes)"
            assert data == part.tobytes(), message

    def test_a_region_equals_the_slice_of_the_whole(self, case: str) -> None:
        """Decoding a region, aligned to the grain or not, equals slicing the decoded tensor."""
        codec, spec, parts, _ = self._encoded(case)

        def decode(key: Any) -> np.ndarray:
            region, rest = normalize(key, spec.shape)
            return read_region(codec, parts, spec, region)[rest]

        assert_regions_equal(spec.shape, _decode(codec, spec, parts), decode, case)

    def test_decode_fills_all_of_out(self, case: str) -> None:
        """Decoding overwrites every byte of `out`."""
        import numpy as np

        codec, spec, parts, _ = self._encoded(case)
        dtype = dtypes.to_numpy(codec.value_dtype(spec))
        results = []
        for fill in (0x00, 0xA5):
            out = np.frombuffer(bytearray([fill]) * (spec.elements * dtype.itemsize), dtype).reshape(spec.shape)
            if spec.elements:
                codec.decode(parts, spec, region=full(spec.shape), out=out)
            results.append(out.tobytes())
        changed = sum(a != b for a, b in zip(*results))
        assert not changed, f"{case}: decode() leaves {changed} of {len(results[0])} bytes of `out` as they were"

    def test_unaligned_read_only_parts_decode_the_same(self, case: str) -> None:
        """Parts at odd addresses in read-only memory decode to the same values."""
        import numpy as np

        codec, spec, parts, _ = self._encoded(case)
        unaligned = {}
        for role, part in parts.items():
            raw = memoryview(b"\0" + part.tobytes())[1:]
            unaligned[role] = np.frombuffer(raw, part.dtype).reshape(part.shape) if part.size else part
        with typed_errors_only(f"{case}: decoding {len(unaligned)} read-only parts"):
            actual, expected = (_decode(codec, spec, arrays) for arrays in (unaligned, parts))
        same = actual.tobytes() == expected.tobytes()
        assert same, f"{case}: {_different(actual, expected)} values differ if the parts are unaligned"

    def test_stored_arrays_decode_as_arrays_in_memory(self, case: str) -> None:
        """Parts read lazily from a file decode to the same values."""
        codec, spec, parts, _ = self._encoded(case)
        tensor = self._tensor(codec, spec, parts)
        actual, expected = tensor.numpy(), _decode(codec, spec, parts)
        same = actual.tobytes() == expected.tobytes()
        assert same, f"{case}: {_different(actual, expected)} values differ if the parts are read from a file"

    def test_codes_are_in_the_declared_layout(self, case: str) -> None:
        """`code_layout` predicts the layout of the codes without data."""
        codec, spec, parts, _ = self._encoded(case)
        layout, codes = codec.code_layout(spec), codec.codes(parts, spec, full(spec.shape))
        if codes is None:
            pytest.skip("this codec has no codes")
        bits = codes.layout.bits
        assert layout is not None, f"{case}: codes() gives codes of {bits} bits, code_layout() declares none"
        assert codes.layout == layout, f"{case}: codes() has the layout {codes.layout}, code_layout() says {layout}"
        assert len(layout.group) == len(spec.shape), f"{case}: groups {layout.group} of the shape {spec.shape}"
        check_arrays(case, codes, layout.group_sizes(spec.shape))

    def test_codes_restore_the_parts_and_the_values(self, case: str) -> None:
        """`codes` times scales gives the decoded values, and `from_codes` restores the stored parts."""
        import numpy as np

        codec, spec, parts, _ = self._encoded(case)
        codes = codec.codes(parts, spec, full(spec.shape))
        if codes is None:
            pytest.skip("this codec has no codes")
        layout = codes.layout
        shapes = f"{case}: codes of shape {codes.values.shape}, declared {codes.shape}, tensor {spec.shape}"
        assert codes.shape == codes.values.shape == spec.shape, shapes
        low, high = layout.low, layout.high
        first, last = (int(codes.values.min()), int(codes.values.max())) if codes.values.size else (low, high)
        assert low <= first <= last <= high, f"{case}: codes {first} to {last}, {layout.bits} bits hold {low} to {high}"
        values = _decode(codec, spec, parts)
        largest = float(np.abs(values[np.isfinite(values)]).max(initial=0))
        np.testing.assert_allclose(
            dequantized(codes),
            values,
            rtol=1e-5,
            atol=1e-6 * largest,
            err_msg=f"{case}: codes times scales differ from the decoded values",
        )
        result = codec.from_codes(codes, spec)
        answer, expected = codec.holds(codes, spec), None if result is None else result[1]
        assert answer == expected, f"{case}: holds() says {answer}, from_codes() gives {expected}"
        if result is not None and result[1].kind == "bytes":
            assert set(result[0]) == set(parts), f"{case}: from_codes() gives {set(result[0])}, encode() {set(parts)}"
            differing = [role for role, part in result[0].items() if part.tobytes() != parts[role].tobytes()]
            assert not differing, f"{case}: from_codes() claims equal bytes but changes {differing}"

    def _encoded(self, case: str) -> tuple[Codec, TensorSpec, dict[str, Any], Any]:
        """Codec, spec, parts, and the encoded values (None for a case with stored parts)."""
        import numpy as np

        spec, params, sample = cases_of(type(self))[case]
        codec = self.registry.codec(CodecSpec(self.codec, params))
        if isinstance(sample, Mapping):
            return codec, spec, dict(sample), None
        arrays = codec.encode(np.ascontiguousarray(sample))
        layout = codec.parts(spec)
        # `encode` sees a panel, not the tensor: flat parts come out flat whatever rank is declared.
        parts = {role: part.reshape(layout[role][1]) if role in layout else part for role, part in arrays.items()}
        return codec, spec, parts, sample

    def _tensor(self, codec: Codec, spec: TensorSpec, parts: Mapping[str, np.ndarray]) -> Tensor:
        file, _ = memory_file(self.registry, {spec.name: (spec, codec.specification, parts)})
        return file[spec.name]


def check_arrays(case: str, codes: Codes, groups: tuple[int, ...]) -> None:
    """Check scales, offsets and table against the layout."""
    layout = codes.layout
    finer = all(size % own == 0 for size, own in zip(groups, codes.group, strict=True))
    assert finer, f"{case}: groups of {codes.group} do not divide the declared ones of {groups}"
    grid = tuple(-(-size // step) for size, step in zip(codes.shape, codes.group))
    assert codes.scale.shape == grid, f"{case}: {codes.scale.shape} scales, the groups make a grid of {grid}"
    scale = dtypes.from_numpy(codes.scale.dtype)
    assert scale == layout.scale_dtype, f"{case}: scales are {scale}, the layout says {layout.scale_dtype}"
    kind = None if codes.offset is None else dtypes.from_numpy(codes.offset.dtype)
    offset_dtype = layout.offset_dtype
    if offset_dtype is not None and offset_dtype[0] in "iu":  # packed zero points are unpacked to bytes
        offset_dtype = f"{offset_dtype[0]}{max(int(offset_dtype[1:]), 8)}"
    assert kind == offset_dtype, f"{case}: offsets are {kind}, the layout says {offset_dtype}"
    has_table = f"{case}: the table is {codes.table!r:.80}, the layout says {layout.table!r:.80}"
    assert (codes.table is None) == (layout.table is None), has_table


def dequantized(codes: Codes) -> np.ndarray:
    """Dequantize codes in float64, by the definition of `Codes`."""
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
    if codes.global_scale is not None:
        factor = np.asarray(codes.global_scale, np.float64)
        factor = factor.reshape(*factor.shape, *(1 for _ in range(values.ndim - factor.ndim)))
        values = values / factor if codes.layout.global_scale == "divide" else values * factor
    if offsets is not None and biased:
        values = values + spread(offsets)
    return values


def _decode(codec: Codec, spec: TensorSpec, parts: Mapping[str, Any]) -> np.ndarray:
    values = read_region(codec, parts, spec, full(spec.shape))
    expected = sizes(full(spec.shape))
    assert values.shape == expected, f"decoding gives shape {values.shape}, the tensor has {expected}"
    return values


def read_region(
    codec: Codec, parts: Mapping[str, Any], spec: TensorSpec, region: Region, out: np.ndarray | None = None
) -> np.ndarray:
    """Decode a region of parts in memory."""
    return BoundEncoding(codec, spec, Encoding(codec=codec.specification), parts).read(region, out)


def _different(one: np.ndarray, other: np.ndarray) -> int:
    """Number of values that differ; all of them if the shapes differ."""
    return int((one != other).sum()) if one.shape == other.shape else one.size
