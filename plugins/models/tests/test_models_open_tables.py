"""What a family of another package, or of a file, adds to the tables: pre-tokenizers, and what engines need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from published_configs import SIZES
from small_tokenizer import TOKENIZER, VOCABULARY
from squish_models.api import check_model
from squish_models.declarations import FilePlugin, read_family
from squish_models.tokenizer import Tokenizer, huggingface_files
from squish_models.tokenizer.pretokenizers import BY_NAME, add_pretokenizers, pretokenizer_of
from squish_testing import write_model

import squish_core as squish

CONFIG = {**SIZES, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
STEPS = [
    {"type": "Split", "pattern": {"Regex": "[0-9]{1,2}|x+"}, "behavior": "Isolated", "invert": False},
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
]


def register(folder: Path, name: str, tables: str) -> squish.Registry:
    """A registry with a family like Llama that a file with these tables declares."""
    path = folder / f"{name}.toml"
    path.write_text(f'base = "llama"\nmodel_type = "{name}"\narchitecture = "{name}"\n{tables}')
    registry = squish.Registry()
    registry.register(FilePlugin(read_family(path).info), dist=str(path))
    return registry


def model(folder: Path, registry: squish.Registry, name: str, **files: Any) -> Path:
    config = {**CONFIG, "model_type": name, "architectures": [f"{name.title()}ForCausalLM"]}
    family = registry.implementation("family", name)
    return write_model(folder / name, family, config, files={**TOKENIZER, **files})


def test_a_pretokenizer_of_a_file_is_found_by_its_steps_and_written_by_its_name(tmp_path: Path) -> None:
    registry = register(tmp_path, "splits", "[pretokenizers]\nsplits-bpe = { steps = ['[0-9]{1,2}|x+'] }\n")
    document = json.loads(TOKENIZER["tokenizer.json"])
    document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": STEPS}
    files = {"tokenizer.json": json.dumps(document).encode()}
    folder = model(tmp_path, registry, "splits", **files)
    with squish.open(folder, registry=registry) as file:
        squish.convert(file, tmp_path / "m.gguf", "gguf:keep=no")
    with squish.open(tmp_path / "m.gguf", registry=registry) as file:
        assert file.metadata["tokenizer.ggml.pre"] == "splits-bpe"
        squish.convert(file, tmp_path / "back", "hf")
    back = json.loads((tmp_path / "back" / "tokenizer.json").read_text())
    assert back["pre_tokenizer"] == document["pre_tokenizer"]


def test_a_familys_own_name_goes_before_llama_cpps_for_the_same_steps(tmp_path: Path) -> None:
    registry = register(tmp_path, "own", "[pretokenizers]\nown-bpe = { like = 'qwen2', add_bos = true }\n")
    with squish.open(model(tmp_path, registry, "own"), registry=registry) as file:
        squish.convert(file, tmp_path / "m.gguf")
    with squish.open(tmp_path / "m.gguf") as file:
        assert file.metadata["tokenizer.ggml.pre"] == "own-bpe"
    assert (BY_NAME["own-bpe"].steps, BY_NAME["own-bpe"].add_bos) == (BY_NAME["qwen2"].steps, True)


def test_a_name_has_one_meaning() -> None:
    add_pretokenizers([pretokenizer_of("once-bpe", ["x+"])])
    add_pretokenizers([pretokenizer_of("once-bpe", ["x+"])])
    for other in (pretokenizer_of("once-bpe", ["y+"]), pretokenizer_of("qwen2", ["x+"])):
        with pytest.raises(squish.ConflictError):
            add_pretokenizers([other])
    written = huggingface_files(Tokenizer(model="bpe", vocabulary=VOCABULARY, pre="once-bpe", special={"eos": 3}))
    assert b'"x+"' in written["tokenizer.json"]


@pytest.mark.parametrize(
    ("engines", "engine", "findings"),
    [
        ("", "mlx", {"engine-family": "note"}),
        ("mlx = {}", "mlx", {}),
        ("mlx = { required = ['head_dim'] }", "mlx", {"engine-key": "error"}),
        ("mlx = { defaults = { head_dim = 7 } }", "mlx", {"engine-default": "warning"}),
        ("mlx = { supported = false }", "mlx", {"engine-family": "error"}),
        ("mlx = { supported = false }", "transformers", {"engine-family": "note"}),
        ("transformers = { required = ['rope_theta'] }", "transformers", {}),
    ],
)
def test_a_file_states_what_engines_need(engines: str, engine: str, findings: dict[str, str], tmp_path: Path) -> None:
    registry = register(tmp_path, "needing", f"[engines]\n{engines}\n")
    with squish.open(model(tmp_path, registry, "needing"), registry=registry) as file:
        check = check_model(file, engine)
    assert {problem.code: problem.severity for problem in check.problems} == findings
