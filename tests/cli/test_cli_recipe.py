"""`squish convert --recipe`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from squish_cli import main

import squish_core as squish

for needed in ("squish_ggml", "squish_gguf"):
    pytest.importorskip(needed)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    values = np.random.default_rng(0).standard_normal((4, 64), np.float32)
    squish.save(tmp_path / "model.gguf", {"a.weight": values, "b.weight": values, "c.weight": values})
    return tmp_path / "model.gguf"


def test_rules_apply_in_order_and_encode_adds_to_them(model: Path, tmp_path: Path) -> None:
    policy, target = tmp_path / "policy.toml", tmp_path / "out.gguf"
    policy.write_text('encode = ["q8_0", "b.*=q4_0", "c.*=q4_0"]\n')
    assert main(["convert", str(model), str(target), "--recipe", str(policy), "--encode", "c.*=keep"]) == 0
    with squish.open(target) as file:
        assert [tensor.codec for tensor in file.values()] == ["ggml.q8_0", "ggml.q4_0", "dense"]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, "missing"), (b"\xff", "encode"), (b"encode = [", "encode"), (b'rules = ["q8_0"]', "encode"),
        (b'encode = ["q8_0", 3]', "encode"), (b'encode = "q8_0"', "encode"),
        pytest.param(b"#" * (1 << 24) + b"\n", "encode", id="large"),
    ],
)  # fmt: skip
def test_other_files_are_errors(
    model: Path, tmp_path: Path, content: bytes | None, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    policy, target = tmp_path / "policy.toml", tmp_path / "out.gguf"
    if content is not None:
        policy.write_bytes(content)
    assert main(["convert", str(model), str(target), "--recipe", str(policy), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code
    assert not target.exists()
