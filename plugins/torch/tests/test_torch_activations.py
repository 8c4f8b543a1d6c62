"""Activation statistics of models, and conversions that weight errors by them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import squish_torch
import torch
from squish_cli import main
from tiny_models import TEXT, tiny_llama, with_tokenizer

import squish_core as squish

WINDOW = 64
UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("activations")
    (root / "text.txt").write_text(TEXT)
    with_tokenizer(tiny_llama(root / "hf", vocab_size=257))
    return root


def test_the_command_writes_llama_cpps_sums(folder: Path) -> None:
    words = [str(folder / "hf"), "--text", str(folder / "text.txt"), "-o", str(folder / "imatrix.gguf")]
    assert main(["activations", *words, "--window", str(WINDOW)]) == 0
    model, tokenizer = squish_torch.from_pretrained(folder / "hf"), squish_torch.tokenizer_of(folder / "hf")
    inputs: list[torch.Tensor] = []
    model.get_submodule(UP.removesuffix(".weight")).register_forward_pre_hook(lambda _, args: inputs.append(args[0][0]))
    ids = torch.tensor(tokenizer(TEXT)["input_ids"])
    for start in range(0, len(ids) - WINDOW + 1, WINDOW):
        window = ids[start : start + WINDOW].clone()
        window[0] = 0
        with torch.no_grad():
            model(window[None])
    rows = torch.cat(inputs).double()
    with squish.open(folder / "imatrix.gguf") as file:
        assert file.index.kind == "imatrix"
        sums, counts = file[f"{UP}.in_sum2"].numpy(), file[f"{UP}.counts"].numpy()
        assert (sums.shape, counts.tolist()) == ((1, 64), [[len(rows)]])
        assert np.allclose(sums[0], rows.square().sum(0), rtol=1e-5)
        assert not any("norm" in name or "embed" in name or "lm_head" in name for name in file)
    assert (
        squish_torch.collect_activations(
            folder / "hf", folder / "short.gguf", text=folder / "text.txt", window=WINDOW, names="gguf"
        )
        == len(squish.open(folder / "short.gguf")) // 2
    )
    assert "blk.1.ffn_up.weight.in_sum2" in squish.open(folder / "short.gguf")


def test_a_conversion_weights_errors_by_them(folder: Path, tmp_path: Path) -> None:
    statistics = tmp_path / "imatrix.gguf"
    squish_torch.collect_activations(folder / "hf", statistics, text=folder / "text.txt", window=WINDOW)
    codes = []
    for search, option in (("mse", {}), ("activations", {"activations": statistics})):
        rules = ["keep", f"{UP}=affine:bits=3,group_size=32,search={search}"]
        squish.convert(folder / "hf", tmp_path / f"{search}.zt", encode=rules, **option)
        with squish.open(tmp_path / f"{search}.zt") as file:
            codes.append(file[UP].numpy(copy=True))
    assert not np.array_equal(*codes)


def test_the_older_format_has_the_same_statistics(folder: Path, tmp_path: Path) -> None:
    values = []
    for name in ("imatrix.gguf", "imatrix.dat"):
        squish_torch.collect_activations(folder / "hf", tmp_path / name, text=folder / "text.txt", window=WINDOW)
        rules = ["keep", f"{UP}=affine:bits=3,group_size=32,search=activations"]
        squish.convert(folder / "hf", tmp_path / f"{name}.zt", encode=rules, activations=tmp_path / name)
        with squish.open(tmp_path / f"{name}.zt") as file:
            values.append(file[UP].numpy(copy=True))
    assert np.mean(values[0] == values[1]) > 0.99  # the mean squares are rounded to f32 at different places


def test_a_gguf_keeps_its_own_names(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.zt"
    squish.convert(folder / "hf", path, encode=["q8_0", "*norm*=keep"], rename="gguf")
    squish_torch.collect_activations(path, tmp_path / "imatrix.gguf", text=folder / "text.txt", window=WINDOW)
    assert "blk.1.ffn_up.weight.in_sum2" in squish.open(tmp_path / "imatrix.gguf")
