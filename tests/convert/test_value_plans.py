"""Plans of a backend whose options ask for the values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toys
from attrs import evolve
from squish_cli import main
from squish_testing import expect_error
from squish_testing.sources import CountingSource, open_source

import squish_core as squish
from squish_core import api
from squish_core.errors import CodecError, SquishError, UsageError

COUNT = "ane:device=M1,zeros=count"
VALUES = np.tri(64, dtype=np.float32)


class Summing(toys.Runner):
    """Sums the values of a tensor if its options ask for it."""

    id = "toy.sum"

    def configured(self, options: Mapping[str, Any]) -> Summing:
        other = type(self)()
        other.reads_values = "sum" in options
        return other

    def examine(self, offer: api.Offer, bound: api.BoundEncoding) -> api.Offer:
        return evolve(offer, facts={"sum": float(sum(bound.read(region).sum() for region in bound.panels()))})

    def load(self, chain: Any, bound: api.BoundEncoding) -> Any:
        return None


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[squish.File, CountingSource]:
    """A file of two tensors, and the source that logs what is read."""
    monkeypatch.setattr(toys, "Summing", Summing, raising=False)
    info = api.BackendInfo(id="toy.sum", title="sums", factory="toys:Summing")
    path = tmp_path / "model.box"
    path.write_bytes(toys.box({"a": VALUES, "b": VALUES + 1}))
    source = CountingSource(open_source(path))
    file = squish.open(source, registry=toys.registry(toys.plugin(squish_backends=[info])))
    source.log.clear()
    return file, source


def test_only_options_make_a_plan_read_values(box: tuple[squish.File, CountingSource]) -> None:
    file, source = box
    for backend in (None, "toy.sum", "toy.sum:other=1"):
        file.plan(backend)
        file["a"].plan(backend)
    file["a"].load("toy.sum:sum=yes")
    assert not source.log
    chains = file.plan("toy.sum:sum=yes").chains
    assert [chain.chosen.facts["sum"] for chain in chains.values()] == [VALUES.sum(), (VALUES + 1).sum()]
    assert file["b"].plan("toy.sum:sum=yes").chosen == chains["b"].chosen
    assert source.log


def test_options_that_read_values_need_a_file(box: tuple[squish.File, CountingSource]) -> None:
    with expect_error(UsageError, code="backend"):
        box[0].registry.resolve(container="toy.box", backend="toy.sum:sum=yes")


def test_a_damaged_tensor_raises_with_its_offset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.zt"
    squish.convert({"a": VALUES, "b": VALUES + 1}, path, "ztensor:encoding=zstd")
    with squish.open(path) as file:
        (segment,) = file["b"].spec.encodings[0].parts["data"].segments
    data = bytearray(path.read_bytes())
    data[segment.offset] ^= 0xFF
    path.write_bytes(data)
    with squish.open(path) as file:
        for plan in (file.plan, file["b"].plan):
            with expect_error(CodecError, code="zstd", file=str(path), tensor="b", offset=0):
                plan(COUNT)
        assert file["a"].plan(COUNT).chosen.facts["zeros"] == 1 - VALUES.mean()
        assert file.plan("ane:device=M1").backends == {"ane": 2}
    assert main(["plan", str(path), "--backend", COUNT, "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["tensor"], error["offset"]) == ("b", 0)


@pytest.mark.parametrize("container", sorted(squish.registry().containers))
def test_a_count_without_a_file_is_refused_for_every_format(container: str) -> None:
    features = squish.registry().containers[container].info.features
    first = {name: values[0] for name, values in list(features.items())[:1]}
    with pytest.raises(SquishError) as caught:
        squish.registry().resolve(container=container, backend=COUNT, **first)
    assert caught.value.code in ("backend", "feature", "features", "no-chain", "not-installed")
    assert "failed" not in str(caught.value)


def test_the_command_line_counts_and_states_the_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.safetensors"
    squish.save(path, {"a": np.where(np.arange(4096).reshape(64, 64) % 4, 0, VALUES + 1).astype(np.float16)})
    assert main(["plan", str(path), "a", "--backend", "ane:device=M1"]) == 0
    assert "zeros not counted (zeros=count" in " ".join(capsys.readouterr().out.split())
    assert main(["plan", str(path), "a", "--backend", COUNT]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "75.0% zeros: 0.31 of dense bytes under a mask, 0.25 of cycles; sparse stream eligible" in text
