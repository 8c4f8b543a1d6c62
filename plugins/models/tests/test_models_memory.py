"""`squish fit`: what llama-server takes for a model, which presets fit, and the command that makes the best."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from served_models import served_header, write_folder, write_served
from squish_cli import main
from squish_models.api import fit, small_config, small_tokenizer
from squish_models.memory.allocator import ALIGNMENT, Graph
from squish_models.memory.fit import SUFFIXES
from squish_testing import expect_error, model_arrays

import squish_core as squish
from squish_core.errors import FormatError, UsageError
from squish_core.model import Typed

MIB = 2**20
LOGGED = {  # of a context of 8192 tokens, by llama.cpp
    "SmolLM2-360M": {"cache": 80.0, "states": 0.0, "compute": 32.39, "logits": 0.19},
    "gemma-3-1b": {"cache": 27.0, "states": 0.0, "compute": 60.78, "logits": 1.0},
    "GLM-4.7-Flash": {"cache": 36.0, "states": 0.0, "compute": 88.01, "logits": 0.59},
    "gpt-oss-20b": {"cache": 35.0, "states": 0.0, "compute": 104.4, "logits": 0.77},
    "Qwen3.5-4B": {"cache": 32.0, "states": 6.28, "compute": 87.02, "logits": 0.95},
    "granite-4.0-h-micro": {"cache": 16.0, "states": 6.15, "compute": 76.02, "logits": 0.38},
}
"""Full attention, windows, latent attention, experts, a delta net and Mamba 2."""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A GGUF of SmolLM2's sizes, whose weights are a hole in the file."""
    path = tmp_path / "smol.gguf"
    write_served(path, *served_header("SmolLM2-360M", tmp_path / "made"))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of the same sizes."""
    return write_folder(tmp_path / "smol", "SmolLM2-360M")


def write_small(folder: Path) -> None:
    """Write a small checkpoint of Qwen 3 with a tokenizer."""
    config = small_config("qwen3")
    folder.mkdir()
    files = {**small_tokenizer(config["vocab_size"]), "config.json": json.dumps(config).encode()}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    squish.save(folder / "model.safetensors", model_arrays("qwen3", config))


@pytest.mark.parametrize("name", LOGGED)
def test_sizes_are_those_that_llama_cpp_logs(name: str, tmp_path: Path) -> None:
    row = fit(write_folder(tmp_path / "model", name), memory="1TB", context=8192).rows[0]
    for kind, size in LOGGED[name].items():
        assert getattr(row, kind) / MIB == pytest.approx(size, rel=0.01, abs=0.01), kind


def test_the_best_preset_is_the_largest_that_fits(folder: Path) -> None:
    every = fit(folder, memory="1TB", context=4096).rows
    assert [row.weights for row in every] == sorted((row.weights for row in every), reverse=True)
    middle = every[len(every) // 2]
    result = fit(folder, memory=middle.total, context=4096)
    assert result.best is not None
    assert result.best.preset == middle.preset
    assert [row.fits for row in result.rows] == [row.total <= middle.total for row in every]


def test_the_longest_context_fits_and_the_next_one_does_not(folder: Path) -> None:
    room = fit(folder, memory="1TB", context=4096).rows[-1].total
    longest = fit(folder, memory=room, context=65536).rows[-1].longest
    assert longest == 4096
    assert not fit(folder, memory=room, context=longest + 1).rows[-1].fits


def test_a_large_model_costs_no_memory(tmp_path: Path) -> None:
    sizes = {"hidden_size": 8192, "intermediate_size": 29568, "num_attention_heads": 64, "num_key_value_heads": 8}
    folder = write_folder(tmp_path / "Qwen2.5-72B", "Qwen2.5-1.5B", **sizes, num_hidden_layers=80)
    result = fit(folder, memory="60GB", context=32768)
    assert result.rows[0].weights > 70e9
    assert result.best is not None
    assert result.best.command == f"squish convert {folder} Qwen2.5-72B-q4_k_m.gguf --encode q4_k_m"


def test_contexts_are_rounded_up_and_the_models_own_is_the_default(small: Path) -> None:
    assert fit(small, memory="1GB", context=300).context == 512
    result = fit(small, memory="1GB")
    assert result.context == -(-result.longest // 256) * 256


@pytest.mark.parametrize(
    ("suffix", "encode", "command"),
    [
        ("-mlx", "affine:bits=4,group_size=32", "squish convert m-mlx m-mlx-q8_0.gguf --encode q8_0 --requantize"),
        ("-uqff", "q8_0", "squish convert m-uqff m-uqff-q8_0.gguf --encode q8_0"),
        (".gguf", "q8_0", "llama-server -m m.gguf -c 512 -np 1"),
        (".gguf.zst", "q8_0", "squish cp m.gguf.zst m.gguf"),
        (".zt", "keep", "squish convert m.zt m.gguf"),
    ],
)
def test_every_format_that_converts_to_gguf_is_taken(
    suffix: str, encode: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_small(Path("m"))
    squish.convert("m", f"m{suffix}", to=suffix[1:] if suffix.startswith("-") else None, encode=encode)
    assert fit(f"m{suffix}", memory="1GB", context=512).rows[0].command == command


def test_a_gguf_is_offered_as_it_is_with_presets_that_are_smaller(small: Path) -> None:
    result = fit(small, memory="1GB", context=4096)
    first, *others = result.rows
    assert (first.preset, first.command) == ("as it is", f"llama-server -m {small} -c 4096 -np 1")
    assert all(row.weights < first.weights for row in others)


def test_llama_server_gets_the_first_file_of_a_split_set(tmp_path: Path) -> None:
    write_small(tmp_path / "m")
    squish.convert(tmp_path / "m", tmp_path / "s.gguf", "gguf:max_shard_tensors=20")
    command = fit(next(tmp_path.glob("s-00002-*")), memory="1GB", context=512).rows[0].command
    assert command.startswith(f"llama-server -m {tmp_path / 's-00001-of-'}")


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("Qwen2.5-7B-Instruct.Q8_0.gguf", "Qwen2.5-7B-Instruct"),
        ("model-00001-of-00004.safetensors", "model"),
        ("model.safetensors.index.json", "model"),
        ("small.gguf.zst", "small"),
        ("gemma-2.0", "gemma-2.0"),
    ],
)
def test_the_files_to_make_have_the_name_of_the_model(name: str, stem: str) -> None:
    assert SUFFIXES.sub("", name) == stem


def test_an_adapter_is_refused(tmp_path: Path) -> None:
    keys = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}
    squish.save(tmp_path / "lora.gguf", {"blk.0.ffn_up.weight.lora_a": np.ones((1, 32), "f4")}, metadata=keys)
    with expect_error(FormatError, code="family", found="adapter"):
        fit(tmp_path / "lora.gguf", memory="1GB")


@pytest.mark.parametrize(("text", "nbytes"), [("1GB", 10**9), ("1GiB", 2**30), ("2g", 2 * 10**9), ("1000000", 10**6)])
def test_memory_is_a_size(text: str, nbytes: int, small: Path) -> None:
    assert fit(small, memory=text, context=512).memory == nbytes


@pytest.mark.parametrize("arguments", [{"memory": "some"}, {"memory": "0"}, {"memory": "1GB", "context": 0}])
def test_what_is_no_size_is_refused(arguments: dict[str, object], small: Path) -> None:
    with expect_error(UsageError, code="usage"):
        fit(small, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("left_out", ["llama.context_length", "llama.block_count", "llama.attention.head_count"])
def test_a_gguf_without_a_key_is_refused(left_out: str, tmp_path: Path) -> None:
    meta, shapes = served_header("SmolLM2-360M", tmp_path / "made")
    del meta[left_out]
    write_served(tmp_path / "m.gguf", meta, shapes)
    with expect_error(FormatError, part=left_out):
        fit(tmp_path / "m.gguf", memory="1GB")


def test_a_gguf_without_a_tensor_is_refused(tmp_path: Path) -> None:
    meta, shapes = served_header("SmolLM2-360M", tmp_path / "made")
    del shapes["blk.1.ffn_down.weight"]
    write_served(tmp_path / "m.gguf", meta, shapes)
    with expect_error(FormatError, part="blk.1.ffn_down.weight"):
        fit(tmp_path / "m.gguf", memory="1GB")


def test_a_family_without_numbers_is_refused(tmp_path: Path) -> None:
    meta, shapes = served_header("SmolLM2-360M", tmp_path / "made")
    meta["general.architecture"] = Typed("str", "deepseek4")
    write_served(tmp_path / "m.gguf", meta, shapes)
    with expect_error(FormatError, code="family"):
        fit(tmp_path / "m.gguf", memory="1GB")


def test_a_model_that_no_family_maps_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "baichuan_m1"}))
    with expect_error(FormatError, code="names"):
        fit(folder, memory="1GB")


def test_the_command_ends_with_what_makes_the_best(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", str(small), "--memory", "300MB", "--context", "4096"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{small}: llama, a context of 4,096 tokens, 300 MB of memory")
    assert lines[-1] == f"  squish convert {small} smol-q8_0.gguf --encode q8_0"


def test_the_command_says_what_would_fit(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", str(small), "--memory", "200MB", "--context", "65536"]) == 1
    assert "--context" in capsys.readouterr().out.splitlines()[-1]
    assert main(["fit", str(small), "--memory", "1MB"]) == 1
    assert "fits with no context" in capsys.readouterr().out.splitlines()[-1]


def test_its_document_fits_the_schema(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", str(small), "--memory", "1GB", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["best"]) == ("squish/fit/1", "as it is")


@given(st.lists(st.tuples(st.integers(1, 50), st.lists(st.integers(0, 30), max_size=3), st.booleans()), max_size=12))
def test_a_buffer_holds_the_values_that_are_in_use_and_never_more_than_all(
    steps: list[tuple[int, list[int], bool]],
) -> None:
    graph, values, largest = Graph(1), [], 0
    for blocks, parents, in_place in steps:
        used = [values[each % len(values)] for each in parents if values]
        values.append(graph.step(blocks * ALIGNMENT, *used, in_place=in_place))
        largest = max(largest, values[-1].nbytes)
    unused = sum(value.nbytes for value in values if not value.uses)
    assert max(unused, largest) <= graph.peak() <= sum(value.nbytes for value in values)
