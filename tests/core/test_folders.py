"""Folders: the one file that stands for them, and what a folder is that no format recognizes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toys

import squish_core as squish
from squish_core.api import FormatError, UnknownFormatError
from squish_core.plugins.catalog import lookalike, piece_hint

BOX, OTHER = toys.box({"w": np.ones((2, 2), np.float32)}), toys.box({})
DIGEST = "ab" * 32


def fill(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize(
    "files",
    [
        {"model.box": BOX},
        {"model.box": BOX, "config.json": b"{}", "README.md": b"read me"},
        {"model.box": BOX, "mmproj-model-f16.box": OTHER},
        {"model.box": BOX, "model.imatrix.box": OTHER},
        {"mmproj-model-f16.box": BOX},
    ],
)
def test_a_folder_with_one_model_is_its_file(tmp_path: Path, files: dict[str, bytes]) -> None:
    fill(tmp_path, files)
    for name in (None, "toy.box"):
        with squish.open(tmp_path, name, registry=toys.registry()) as file:
            assert list(file) == ["w"]
            assert Path(file.name).parent == tmp_path
            assert {Path(file.name).name, *file.index.ignored} == set(files)


def test_a_folder_of_the_hub_cache_is_the_file_of_its_snapshot(tmp_path: Path) -> None:
    cache = fill(tmp_path / "models--org--tiny", {"refs/main": b"1", "blobs/x": BOX, "snapshots/1/config.json": b"{}"})
    (cache / "snapshots/1/tiny.box").symlink_to("../../blobs/x")
    with squish.open(cache, registry=toys.registry()) as file:
        assert list(file) == ["w"]


def test_the_first_part_stands_for_a_folder_of_parts(tmp_path: Path) -> None:
    fill(tmp_path, {"m-00001-of-00002.box": BOX, "m-00002-of-00002.box": OTHER})
    with squish.open(tmp_path, registry=toys.registry()) as file:
        assert Path(file.name).name == "m-00001-of-00002.box"


def test_a_folder_with_several_models_names_them(tmp_path: Path) -> None:
    fill(tmp_path, {"q4.box": BOX, "q8.box": BOX, "mmproj.box": OTHER})
    with pytest.raises(FormatError) as caught:
        squish.open(tmp_path, registry=toys.registry())
    assert (caught.value.code, caught.value.found) == ("folder", "q4.box, q8.box")
    assert str(tmp_path / "q4.box") in str(caught.value.hint)


MODEL = {"config.json": b"{}", "tokenizer.json": b"{}"}
SNAPSHOT = "models--org--tiny/snapshots/1"
UNKNOWN: dict[str, tuple[dict[str, bytes], str, str]] = {
    # files; a part of the folder to open; texts of the error
    "torch.distributed": ({".metadata": b"", "__0_0.distcp": b""}, "PyTorch checkpoint", "never unpickles"),
    "shards of PyTorch": ({**MODEL, "pytorch_model-00001-of-00002.bin": b""}, "PyTorch checkpoint", "save_pretrained"),
    "PyTorch": ({"consolidated.00.pth": b"", "params.json": b"{}"}, "PyTorch checkpoint", "consolidated.00.pth"),
    "Flax": ({**MODEL, "flax_model.msgpack": b""}, "Flax or TensorFlow", "safetensors"),
    "diffusers": (
        {"model_index.json": b"{}", "transformer/a.safetensors": b"", "vae/b.safetensors": b"", "x/c.json": b""},
        "pipeline of diffusers", r"transformer, vae\).*Name one of them: .*/transformer",
    ),
    "LM Studio": ({"lmstudio-community/tiny-G/tiny.gguf": b""}, "folders with weights", "lmstudio-community/tiny-G"),
    "checkpoints of a training": ({"checkpoint-5/model.safetensors": b""}, "folders with weights", "checkpoint-5"),
    "Ollama": (
        {f"blobs/sha256-{DIGEST}": b"", "manifests/registry.ollama.ai/library/gemma3/4b": b"{}"},
        "Ollama's folder of models", "gemma3:4b.*ollama show --modelfile",
    ),
    "Ollama's blobs": ({f"sha256-{DIGEST}": b""}, "Ollama's blobs", "ollama show --modelfile"),
    "the hub's cache": ({f"{SNAPSHOT}/config.json": b"{}"}, "cache of the Hugging Face Hub", "models--org--tiny"),
    "a model without weights": (MODEL, "without weights", "Download the model again"),
    "an unfinished download": (
        {**MODEL, ".cache/huggingface/download/model.safetensors.ab.incomplete": b""}, "download is incomplete",
        "model.safetensors.ab.incomplete",
    ),
    "nothing known": ({"notes/a.txt": b"", "b.txt": b""}, "no installed format recognizes", "b.txt, notes/"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNKNOWN)
def test_the_error_about_a_folder_says_what_it_is(case: str, tmp_path: Path) -> None:
    files, *texts = UNKNOWN[case]
    with pytest.raises(UnknownFormatError) as caught:
        squish.open(fill(tmp_path, files), registry=toys.registry())
    assert caught.value.code == "unknown"
    for text in texts:
        assert re.search(text, str(caught.value)), str(caught.value)


def test_the_message_about_an_unfinished_snapshot_has_the_command(tmp_path: Path) -> None:
    fill(tmp_path, {f"{SNAPSHOT}/config.json": b"{}", "models--org--tiny/blobs/ff.incomplete": b""})
    (tmp_path / SNAPSHOT / "model.safetensors").symlink_to("../../blobs/ff")
    with pytest.raises(UnknownFormatError, match=r"incomplete.*model.safetensors.*`hf download org/tiny`"):
        squish.open(tmp_path / "models--org--tiny", registry=toys.registry())


@pytest.mark.parametrize(
    ("head", "tail", "text"),
    [
        (b"lmgg", b"", "old GGML file.*whisper"),
        (b"fmgg", b"", "ggmf"),
        (b"tjgg", b"", "ggjt"),
        (b"algg", b"", "GGML adapter.*convert_lora_to_gguf"),
        (b"ggjt", b"", "ggjt"),  # of a big-endian machine
        (b"nsgg", b"", "session of llama.cpp"),
        (b"MZqFpD='\n", b"PK\5\6" + bytes(18), "llamafile.*unzip"),
        (b"\x7fELF", b"PK\5\6" + bytes(18), "llamafile.*unzip"),
        (b"\x7fELF", b"", "a program"),
        (b"MZ\x90", b"", "a program"),
        (b"MZqFpD='\n", b"", "portable program"),
        (b"PK\3\4", b"PK\5\6", "zip archive.*never unpickles.*save_file"),
        (bytes(257) + b"ustar", b"", "tar archive"),
        (b"# xet version 0\n", b"", "Xet pointer"),
        (b"<?xml version='1.0'?><Error>", b"", "XML.*server"),
        (b'{"error":"Invalid username or password."}', b"", "server's answer.*Invalid username"),
        (b'{\n "message" : "no"}', b"", "server's answer"),
        (b'{"schemaVersion":2,"layers":[{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:'
         + DIGEST.encode() + b'"', b"", f"manifest of Ollama.*blobs/sha256-{DIGEST}"),
    ],
)  # fmt: skip
def test_the_message_calls_a_lookalike_by_its_name(head: bytes, tail: bytes, text: str) -> None:
    with pytest.raises(UnknownFormatError, match=text) as caught:
        squish.open(head.ljust(300 if head[:1] == b"\0" else 0, b" ") + tail, registry=toys.registry())
    assert caught.value.code == "lookalike"
    assert lookalike(head, tail, text=True) is not None


@pytest.mark.parametrize(
    ("name", "pieces", "whole"),
    [
        ("m.gguf.part2of2", "m.gguf.part1of2 m.gguf.part2of2", "m.gguf"),
        ("my m.gguf.part1of2", "'my m.gguf.part1of2' 'my m.gguf.part2of2'", "'my m.gguf'"),
        ("m.gguf-split-a", "$(ls -v m.gguf-split-*)", "m.gguf"),
        ("m.safetensors.part-aa", "$(ls -v m.safetensors.part-*)", "m.safetensors"),
        ("m.gguf.part10", "$(ls -v m.gguf.part*)", "m.gguf"),
        ("m.gguf.001", "$(ls -v m.gguf.*)", "m.gguf"),
    ],
)
def test_the_message_says_how_to_join_pieces_of_a_file(name: str, pieces: str, whole: str, tmp_path: Path) -> None:
    assert piece_hint(name) == f"Join its pieces: `cat {pieces} > {whole}`."
    for data in (BOX[: len(BOX) // 2], BOX[len(BOX) // 2 :], b"\x93\x94\x95\x96"):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UnknownFormatError, match="is a piece of a file"):
            squish.open(tmp_path / name, registry=toys.registry())
    (tmp_path / name).write_bytes(BOX)  # the name alone decides nothing
    assert list(squish.open(tmp_path / name, registry=toys.registry())) == ["w"]
    assert shlex.split(str(piece_hint(name)).partition("`")[2].rstrip("`."))[0] == "cat"


@pytest.mark.parametrize("name", ["m.gguf", "m.gguf.zst", "m.gguf.zt", "m-00001-of-00002.gguf", "part1of2", "m.box"])
def test_other_names_are_of_no_piece(name: Any) -> None:
    assert piece_hint(name) is None
