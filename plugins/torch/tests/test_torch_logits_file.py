"""llama.cpp's logits files, written and read."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import squish_torch
import torch
from tiny_models import TEXT, tiny_llama, with_tokenizer

import squish_core as squish

WINDOW = 64
VOCABULARY = 257


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("logits")
    (root / "text.txt").write_text(TEXT[:200])
    with_tokenizer(tiny_llama(root / "hf", vocab_size=VOCABULARY, num_hidden_layers=1))
    squish.convert(root / "hf", root / "q4.zt", encode=["q4_0", "*norm*=keep", "*embed*=q8_0"])
    squish_torch.evaluate(root / "hf", text=root / "text.txt", window=WINDOW, logits=root / "base.kld")
    return root


def test_the_file_has_llama_cpps_layout(folder: Path) -> None:
    data = (folder / "base.kld").read_bytes()
    windows = 201 // WINDOW
    assert data[:20] == b"_logits_" + struct.pack("<Iii", WINDOW, VOCABULARY, windows)
    tokens = np.frombuffer(data, "<i4", WINDOW * windows, 20)
    expected = squish_torch.tokenizer_of(folder / "hf")(TEXT[:200])["input_ids"]
    assert tokens.tolist() == expected[: WINDOW * windows]
    words = 2 * ((VOCABULARY + 1) // 2) + 4
    rows = np.frombuffer(data, "<u2", -1, 20 + tokens.nbytes).reshape(windows * (WINDOW - 1 - WINDOW // 2), words)
    scale, lowest = rows[0, :4].copy().view("<f4")
    with torch.no_grad():
        ids = torch.from_numpy(tokens[None, :WINDOW].astype(np.int64))
        logits = squish_torch.from_pretrained(folder / "hf")(ids).logits[0, WINDOW // 2]
    scores = torch.log_softmax(logits.double(), 0).numpy()
    near = scores > scores.max() - 16
    assert np.abs(rows[0, 4 : 4 + VOCABULARY] * float(scale) + float(lowest) - scores)[near].max() <= scale


def test_a_stored_base_gives_nearly_the_same_divergence(folder: Path) -> None:
    options = {"text": folder / "text.txt", "window": WINDOW}
    direct = squish_torch.evaluate(folder / "q4.zt", against=folder / "hf", **options).to_dict()
    stored = squish_torch.evaluate(folder / "q4.zt", against=folder / "base.kld", **options).to_dict()
    assert stored["kl"]["mean"] == pytest.approx(direct["kl"]["mean"], rel=1e-2)
    assert stored["base_perplexity"] == pytest.approx(direct["base_perplexity"], rel=1e-3)


@pytest.mark.parametrize(
    ("edit", "code"),
    [
        (lambda data: data[:-2], "truncated"),
        (lambda data: data[:8] + struct.pack("<I", 2) + data[12:], "size"),
        (lambda data: data[:12] + struct.pack("<i", 255) + data[16:], "vocabulary"),
        (lambda data: data[:24] + struct.pack("<i", 7) + data[28:], "tokenizer"),
        (lambda data: data[:12], "magic"),
    ],
)
def test_files_that_do_not_fit_are_errors(folder: Path, tmp_path: Path, edit, code: str) -> None:
    (tmp_path / "base.kld").write_bytes(edit((folder / "base.kld").read_bytes()))
    with pytest.raises(squish.SquishError) as caught:
        squish_torch.evaluate(folder / "hf", text=folder / "text.txt", window=WINDOW, against=tmp_path / "base.kld")
    assert caught.value.code == code
