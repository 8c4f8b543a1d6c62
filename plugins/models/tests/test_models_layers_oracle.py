"""Picked layers, and experts in another form, in transformers and llama.cpp: they compute what the tensors do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from oracles import engines, families
from squish_cli import main

import squish_core as squish

pytestmark = [pytest.mark.oracle, pytest.mark.peers]
PICK = (0, 2)


def with_only(source: Path, folder: Path, layers: tuple[int, ...]) -> Path:
    """Write the model that has only these layers, by renaming its tensors by hand."""
    folder.mkdir()
    with squish.open(source) as file:
        weights = {}
        for name, tensor in file.items():
            match = re.search(r"\.(\d+)\.", name)
            number = None if match is None else int(match[1])
            if match is None:
                weights[name] = tensor.numpy()
            elif number in layers:
                weights[f"{name[: match.start()]}.{layers.index(number)}.{name[match.end() :]}"] = tensor.numpy()
        for name, data in file.assets.items():
            (folder / name).write_bytes(bytes(data.raw))
    config = json.loads((folder / "config.json").read_text())
    for key in {"num_hidden_layers", "n_layer"} & config.keys():
        config[key] = len(layers)
    if isinstance(config.get("layer_types"), list):
        config["layer_types"] = [config["layer_types"][layer] for layer in layers]
    (folder / "config.json").write_text(json.dumps(config))
    squish.save(folder / "model.safetensors", weights)
    return folder


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "mixtral", "olmo2"])
def test_picked_layers_compute_what_a_model_of_these_layers_computes(family: str, tmp_path: Path) -> None:
    source = families.make(family, tmp_path / "source", num_hidden_layers=4)
    expected = with_only(source, tmp_path / "expected", PICK)
    squish.convert(source, tmp_path / "source.gguf")
    squish.convert(expected, tmp_path / "expected.gguf")
    layers = ",".join(map(str, PICK))
    assert main(["cp", str(source), str(tmp_path / "picked"), "--to", "hf", "--layers", layers, "--quiet"]) == 0
    assert (
        main(["cp", str(tmp_path / "source.gguf"), str(tmp_path / "picked.gguf"), "--layers", layers, "--quiet"]) == 0
    )
    for engine, picked, reference in (
        ("transformers", "picked", "expected"),
        ("llama.cpp", "picked.gguf", "expected.gguf"),
    ):
        answers = [engines.ask(engine, tmp_path / name, tokens=8) for name in (reference, picked)]
        assert engines.difference(*answers, 1e-6) == ""


def test_layers_may_be_repeated(tmp_path: Path) -> None:
    source = families.make("llama", tmp_path / "source")
    squish.convert(source, tmp_path / "source.gguf")
    assert main(["cp", str(source), str(tmp_path / "deeper"), "--to", "hf", "--layers", "0-1,0-1", "--quiet"]) == 0
    deeper = str(tmp_path / "deeper.gguf")
    assert main(["cp", str(tmp_path / "source.gguf"), deeper, "--layers", "0-1,0-1", "--quiet"]) == 0
    answers = [
        engines.ask(engine, tmp_path / name)
        for engine, name in (("transformers", "deeper"), ("llama.cpp", "deeper.gguf"))
    ]
    assert engines.difference(*answers, 1e-3) == ""


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "olmoe", "deepseek_v3"])
def test_transformers_reads_stacked_experts_and_separate_ones(family: str, tmp_path: Path) -> None:
    source = families.make(family, tmp_path / "source")
    for form, before, after in (("stack", "source", "stacked"), ("unstack", "stacked", "back")):
        line = ["cp", str(tmp_path / before), str(tmp_path / after), "--to", "hf", "--experts", form, "--quiet"]
        assert main(line) == 0
    expected = engines.ask("transformers", source, tokens=8)
    for name in ("stacked", "back"):
        assert engines.difference(expected, engines.ask("transformers", tmp_path / name, tokens=8), 1e-6) == ""
