"""The conformance kit on UQFF files and codecs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squish_testing import CodecSuite, CountingSource, Fingerprint, RefinementSuite

import squish_core as squish
from squish_core.api import TensorSpec, open_source

pytestmark = pytest.mark.alone

DATA = Path(__file__).with_name("data")
EXPECTED = json.loads((DATA / "expected.json").read_text())


class Written(RefinementSuite):
    """UQFF is written as a folder with its own report; a folder written by Squish round-trips."""

    container = "uqff"

    def values(self) -> dict[str, dict[str, Fingerprint]]:
        """The values mistral.rs computes with."""
        values = {}
        for sample, path in self.samples().items():
            with self.open(path) as file:
                values[sample] = {
                    stored if stored in file else layer: Fingerprint(tuple(shape), digest)
                    for stored, (layer, shape, digest) in EXPECTED[path.parent.name].items()
                }
        return values

    def damaged(self) -> dict[str, bytes]:
        whole = (DATA / "1.2.0-q8_0" / "q8_0-0.uqff").read_bytes()
        return {"cut in the values": whole[:-100]}

    def undeclared(self) -> dict[str, Path]:
        return {"the norms": DATA / "0.1.3-hqq4" / "residual.safetensors"}

    def test_converting_to_itself_keeps_everything(self, sample: str, tmp_path: Path) -> None:
        """All files are byte-identical, and the dry run predicts the size."""
        first, second = tmp_path / "first", tmp_path / "second"
        squish.convert(self.sample(sample), first, "uqff")
        planned = squish.convert(first, second, "uqff", dry_run=True)
        assert planned.size == squish.convert(first, second, "uqff").size
        assert {path.name for path in first.iterdir()} == {path.name for path in second.iterdir()}
        for path in first.iterdir():
            assert path.read_bytes() == (second / path.name).read_bytes(), path.name


class TestUqff(Written):
    """Both generations."""

    def samples(self) -> dict[str, Path]:
        names = ("0.1.2-fp8/fp8.uqff", "1.0.0-mxfp4/mxfp4-0.uqff")
        return {name: DATA / name for name in names}


class TestHqqFiles(Written):
    """HQQ: a group is a column across 64 slices of the tensor, so a row needs the scales of many groups."""

    lost = tuple(f"model.layers.0.self_attn.{name}_proj.weight.shape" for name in "kv")  # became the shapes

    def samples(self) -> dict[str, Path]:
        return {name: DATA / name for name in ("1.2.0-hqq3-gs40/hqq3-gs40-0.uqff",)}

    def test_a_row_reads_only_its_bytes(self, sample: str) -> None:
        """A row reads its own words and all scales."""
        source = CountingSource(open_source(self.sample(sample)))
        for tensor in self.open(source).values():
            if tensor.codec != "hqq":
                continue
            source.log.clear()
            tensor[0]
            words = tensor.spec.encodings[0].parts["data"]
            read = sum(
                length for _, offset, length in source.log if 0 <= offset - words.segments[0].offset < words.nbytes
            )
            assert read <= words.nbytes // words.shape[0]  # one row of words


class TestHqq(CodecSuite):
    codec = "hqq"
    tolerance = 1.5

    def cases(self) -> dict[str, Any]:
        rng = np.random.default_rng(0)
        cases = {}
        for bits, axis, shape in (
            (8, 0, (6, 80)),
            (4, 0, (2, 3, 80)),
            (3, 0, (6, 80)),
            (1, 1, (480,)),
            (3, 1, (6, 80)),
        ):
            spec = TensorSpec(name="w", shape=shape, dtype="f32")
            params = {"bits": bits, "group_size": 24, "axis": axis}
            rows, columns = (24, 20) if axis == 0 else (20, 24)
            count = {8: 1, 4: 2, 3: 10, 1: 8}[bits]
            if rows % count and bits != 3:
                rows, columns, params["group_size"] = 24, 20, 20
            packed = rng.integers(0, 1 << (30 if bits == 3 else 8), (-(-rows // count), columns))
            grid = (1, columns) if axis == 0 else (rows, 1)
            parts = {
                "scale": rng.normal(size=grid).astype(np.float32),
                "zero": rng.normal(size=grid).astype(np.float32),
            }
            parts["data"] = packed.astype(np.int32 if bits == 3 else np.uint8)
            cases[f"{bits} bits, axis {axis}, {shape}"] = spec, params, parts
            values = rng.normal(size=shape).astype(np.float32)
            values.reshape(-1)[:30] = 0.25
            cases[f"values of {bits} bits, axis {axis}"] = spec, params, values
        return cases


class TestF8Q8(CodecSuite):
    codec = "uqff.f8q8"

    def cases(self) -> dict[str, Any]:
        cases = {}
        for shape in ((8, 64), (3, 15), (2, 3, 48), (7,)):
            spec = TensorSpec(name="w", shape=shape, dtype="f32")
            cases[str(shape)] = spec, {}, np.random.default_rng(0).normal(size=shape).astype(np.float32)
        return cases
