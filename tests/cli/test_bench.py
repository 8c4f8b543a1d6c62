"""`squish bench`: what it measures is there, and stated as ratios; no figure is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from squish_cli import benchmark
from squish_cli.app import run

from squish_core.plugins import registry

DATA = Path(__file__).parents[1] / "data"


def test_a_file_is_opened_decoded_and_multiplied_on_every_backend() -> None:
    measured = benchmark.benchmark(DATA / "sample.safetensors")
    assert measured.rows[0].what == "open"
    backends = {row.backend for row in measured.rows if row.what == "linear"}
    assert backends in (set(), set(registry.registry().backends))
    for row in measured.rows:
        assert row.refused or (row.seconds and row.rate and row.ratio), row


def test_every_codec_that_encodes_is_in_the_synthetic_file() -> None:
    names = set()
    for file in benchmark.synthetic(registry.registry(), 256, 3 * benchmark.ROWS * 256):
        (name,) = file
        names.add(name)
        values = file[name].numpy()
        assert values.shape == (3 * benchmark.ROWS, 256)
        for panel in np.split(values, 3):  # equal, and what was encoded within reason
            assert panel.tobytes() == values[: benchmark.ROWS].tobytes()
    assert {"int8", "int4", "q4_0", "q8_0"} <= names


def test_a_synthetic_matrix_is_stored_in_more_bytes_than_the_last_level_cache_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(benchmark, "last_level", lambda: 1 << 19)
    for file in benchmark.synthetic(registry.registry(), 256):
        assert all(file[name].nbytes > 1 << 19 for name in file)


def test_the_command_prints_ratios_or_one_document(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "last_level", lambda: 1 << 19)
    assert run(["bench", str(DATA / "sample.safetensors"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["limits"]["read"] > 0
    assert data["units"]["rate"] == data["units"]["read"] == "bytes/s"
    assert set(data["units"]) == {*data["limits"], "size", "seconds", "rate", "ratio"}
    assert data["rows"][0]["what"] == "open"
    assert run(["bench", str(DATA / "sample.safetensors")]) == 0
    assert "limits: set" in capsys.readouterr().out
    assert run(["bench"]) == 2
    assert "--synthetic" in capsys.readouterr().err
