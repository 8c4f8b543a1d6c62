"""Families in TOML files: what is read, what is refused and where, and how files are found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import squish_models
from published_configs import SIZES
from small_tokenizer import TOKENIZER
from squish_cli.app import run
from squish_convert.api import NegExp, Reshape, Tile, family_conflicts
from squish_models.declaration_file import LARGEST
from squish_models.declarations import read_family, register_family
from squish_testing import write_model

import squish_core as squish
from squish_core.api import FamilyInfo, Typed

SMALL = {**SIZES, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False}
HEAD = 'base = "llama"\nmodel_type = "acme"\n'
UP = HEAD + "[rows]\n'mlp.up_proj' = "
COMMAND = "import sys; from squish_cli.app import run; sys.exit(run(sys.argv[1:]))"
WHOLE = """# A model like Qwen 3, with other names and an MLP for all tokens beside the experts.
base = "qwen3moe"
model_type = "acme"
class_name = "AcmeForCausalLM"
architecture = "acme"
present = ["expert_count"]
tied = true
derived = ["gating_function"]

[rows]
"self_attn.q_norm" = false
"self_attn.query_norm" = { like = "self_attn.q_norm" }
post_attention_layernorm = "post_attention_norm"
"mlp.shared.up_proj" = { gguf = "ffn_up_shexp", shape = ["shared_size", "hidden_size"], kind = "last" }
"mlp.scale" = { gguf = "ffn_scale", shape = [1, "hidden_size"], add = 1, bias = true }
"mlp.decay" = { gguf = "ffn_decay", shape = ["hidden_size"], neg_exp = true, gguf_shape = ["hidden_size", 1] }
[rows."mlp.groups"]
gguf = "ffn_groups"
shape = ["shared_size"]
tile = { groups = "num_key_value_heads", parts = ["head_dim", 1], after = "experts" }

[keys]
num_experts = false
n_experts = "expert_count"
gating_function = { gguf = "expert_gating_func", required = false }
factor = { gguf = "factor", type = "f32" }

[sizes]
shared_size = ["moe_intermediate_size", 2]

[layers]
last = { after = "dense_layers" }

[patterns]
layer_types = { every = 2, last = "full_attention", others = "sliding_attention" }

[unstated]
gating_function = 2

[values]
hidden_act = { swish = "silu" }

[presence]
has_scale = "ffn_scale.weight"

[mlx]
stack = "switch_mlp"
"""


def declare(folder: Path, text: str = HEAD, name: str = "acme.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "part", "words"),
    [
        ("base = 'llama'\n", "line 1, model_type", "is missing"),
        ("model_type = 'acme'\n", "line 1, base", "is missing"),
        (HEAD + "rowz = 1\n", "line 3, rowz", "is not a key or table"),
        (HEAD + "[rowz]\n", "line 3, rowz", "is not a key or table"),
        ("base = 'lama'\nmodel_type = 'acme'\n", "line 1, base", "'lama', which is not a family"),
        ("base = 'mlx-lm'\nmodel_type = 'acme'\n", "line 1, base", "which is not a family"),
        ("base = 3\nmodel_type = 'acme'\n", "line 1, base", "the wrong type"),
        ("base = 'llama'\nmodel_type = '../acme'\n", "line 2, model_type", "is not a name"),
        (HEAD + "tied = 1\n", "line 3, tied", "the wrong type"),
        (HEAD + "derived = [1]\n", "line 3, derived", "the wrong type"),
        (HEAD + "rows = 1\n", "line 3, rows", "the wrong type"),
        (HEAD + "[rows]\n'mlp.up' = false\n", "line 4, [rows] mlp.up", "which is not a row|is not a row"),
        (HEAD + "[rows]\n'mlp.up' = 'ffn_up'\n", "line 4, [rows] mlp.up", "is a new row"),
        (HEAD + "[rows]\n'mlp.up' = { gguf = 'x' }\n", "line 4, [rows] mlp.up", "is a new row"),
        (HEAD + "[rows]\n'mlp.up_proj' = { shapes = [] }\n", "line 4, [rows] mlp.up_proj", "not a field of a row"),
        (HEAD + "[rows]\n'mlp.up_proj' = { shape = ['hidden'] }\n", "line 4, [rows] mlp.up_proj", "not a size"),
        (HEAD + "[rows]\n'mlp.up_proj' = { shape = 'hidden_size' }\n", "line 4, [rows] mlp.up_proj", "the wrong type"),
        (HEAD + "[rows]\n'mlp.up_proj' = { bias = 1 }\n", "line 4, [rows] mlp.up_proj", "the wrong type"),
        (UP + "{ tile = 1 }\n", "line 4, [rows] mlp.up_proj", "the wrong type"),
        (UP + "{ tile = { groups = 'a' } }\n", "line 4, [rows] mlp.up_proj", "the order of heads"),
        (UP + "{ tile = { heads = 2 } }\n", "line 4, [rows] mlp.up_proj", "not a field of tile"),
        (
            UP + "{ tile = { groups = 'a', parts = 'layers' } }\n",
            "line 4, [rows] mlp.up_proj", "not a size",
        ),
        (HEAD + "[rows]\n'mlp.up_proj' = { gguf_shape = ['rows'] }\n", "line 4, [rows] mlp.up_proj", "not a size"),
        (HEAD + "[rows]\n'mlp.up_proj' = { gguf = 'a/b' }\n", "line 4, [rows] mlp.up_proj", "is not a name"),
        (HEAD + "[rows]\n'mlp.up_proj' = { like = 'mlp.up' }\n", "line 4, [rows] mlp.up_proj", "not a row of the base"),
        (HEAD + "[rows]\n'mlp.{x}' = 'ffn_up'\n", "line 4, [rows] mlp.{x}", "is not a name"),
        (HEAD + "[rows]\n'mlp.up_proj' = { kind = 'dense' }\n", "line 4, [rows] mlp.up_proj", "not a kind of layers"),
        (HEAD + "[keys]\nfactor = { type = 'f32' }\n", "line 4, [keys] factor", "is not a name"),
        (HEAD + "[keys]\nfactor = { gguf = 'x', type = 'f16' }\n", "line 4, [keys] factor", "not a type of a key"),
        (HEAD + "[keys]\nfactor = { gguf = 'x', must = true }\n", "line 4, [keys] factor", "not a field of a key"),
        (HEAD + "[keys]\nfactor = 3\n", "line 4, [keys] factor", "the wrong type"),
        (HEAD + "[sizes]\nbig = 'hidden_size'\n", "line 4, [sizes] big", "is not a product"),
        (HEAD + "[sizes]\nbig = [1.5]\n", "line 4, [sizes] big", "is not a product"),
        (HEAD + "[layers]\ndense = { first = 'a', after = 'b' }\n", "line 4, [layers] dense", "is not valid"),
        (HEAD + "[layers]\ndense = 3\n", "line 4, [layers] dense", "is not valid"),
        (HEAD + "[patterns]\nkinds = { every = 0, last = 1, others = 0 }\n", "line 4, [patterns] kinds", "not valid"),
        (HEAD + "[patterns]\nkinds = { every = 2 }\n", "line 4, [patterns] kinds", "is not valid"),
        (HEAD + "[presence]\nhas = 3\n", "line 4, [presence] has", "is not a name"),
        (HEAD + "[values]\nhas = 3\n", "line 4, [values] has", "the wrong type"),
        (HEAD + "[names]\nhas = 3\n", "line 4, [names] has", "the wrong type"),
        (HEAD + "[names]\nhas = ['a/b']\n", "line 4, [names] has", "is not a name"),
        (HEAD + "[fused]\nqkv = 3\n", "line 4, [fused] qkv", "is not valid"),
        (HEAD + "[fused]\nqkv = [['mlp.up', 'q_rows']]\n", "line 4, [fused] qkv", "not a row"),
        (HEAD + "[fused]\nqkv = [['mlp.up_proj', 'rows']]\n", "line 4, [fused] qkv", "not a size"),
        (HEAD + "[read]\nup = 3\n", "line 4, [read] up", "the wrong type"),
        (HEAD + "[read]\nup = 'mlp.up'\n", "line 4, [read] up", "not a row"),
        (HEAD + "[computed]\nn_inner = 3\n", "line 4, [computed] n_inner", "is not a product"),
        (HEAD + "[nested]\nattention = 'alibi'\n", "line 4, [nested] attention", "the wrong type"),
        (HEAD + "[equivalents]\nhidden_act = 'gelu'\n", "line 4, [equivalents] hidden_act", "the wrong type"),
        (HEAD + "[presence]\nhas = '!a/b'\n", "line 4, [presence] has", "is not a name"),
        (HEAD + "own_rows = 1\n", "line 3, own_rows", "the wrong type"),
        (HEAD + "[layers]\ndense = { when = 'a', unless = 'b' }\n", "line 4, [layers] dense", "is not valid"),
        (HEAD + "[prefixes]\n'a.' = 3\n", "line 4, [prefixes] a.", "the wrong type"),
        (HEAD + "[moved]\n'mtp.' = 3\n", "line 4, [moved] mtp.", "the wrong type"),
        (HEAD + "[moved]\n'mtp.' = 'model.layers.4.'\n", "line 4, [moved] mtp.", "is not valid"),
        (HEAD + "[moved]\n'mtp.{n}.' = 'model.layers.{layers+m}.'\n", "line 4, [moved] mtp.{n}.", "is not valid"),
        (HEAD + "[moved]\n'mtp.' = 'model.layers.{layers+1}.'\n", "line 4, [moved] mtp.", "is not valid"),
        (HEAD + "[pretokenizers]\nacme = 3\n", "line 4, [pretokenizers] acme", "the wrong type"),
        (HEAD + "[pretokenizers]\nacme = {}\n", "line 4, [pretokenizers] acme", "is not valid"),
        (HEAD + "[pretokenizers]\nacme = { like = 'qwen' }\n", "line 4, [pretokenizers] acme", "not a pre-tokenizer"),
        (HEAD + "[pretokenizers]\nacme = { step = [] }\n", "line 4, [pretokenizers] acme", "not a field"),
        (HEAD + "[pretokenizers]\nacme = { steps = [3] }\n", "line 4, [pretokenizers] acme", "is not valid"),
        (HEAD + "[pretokenizers]\na = { steps = [{ type = 1979-05-27 }] }\n", "line 4, [pretokenizers] a", "not valid"),
        (HEAD + "[engines]\nllama = {}\n", "line 4, [engines] llama", "not a name of an engine"),
        (HEAD + "[engines]\nmlx = { needs = [] }\n", "line 4, [engines] mlx", "not a field"),
        (HEAD + "[engines]\nmlx = { supported = 1 }\n", "line 4, [engines] mlx", "the wrong type"),
        (HEAD + "[mlx]\nstak = 'x'\n", "line 4, [mlx] stak", "is not a row"),
        (HEAD + "[mlx]\nstack = 'switch_mlp'\n", "line 4, [mlx] stack", "has no experts"),
    ],
)  # fmt: skip
def test_a_declaration_that_is_wrong_is_refused_with_its_line_in_words(
    text: str, part: str, words: str, tmp_path: Path
) -> None:
    path = declare(tmp_path, text)
    with pytest.raises(squish.FormatError, match=words) as caught:
        read_family(path)
    assert (caught.value.file, caught.value.part, caught.value.code) == (str(path), part, "config")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("data", "code"),
    [(b"base = [", "config"), (b"\xff\xfe", "config"), (b"#" * (LARGEST + 1), "size"), (b"a=" + b"[" * 9000, "config"),
     (None, "missing")],
)  # fmt: skip
def test_a_file_that_is_no_declaration_is_refused(data: bytes | None, code: str, tmp_path: Path) -> None:
    if data is not None:
        (tmp_path / "acme.toml").write_bytes(data)
    with pytest.raises(squish.FormatError) as caught:
        read_family(tmp_path / "acme.toml")
    assert (caught.value.file, caught.value.code) == (str(tmp_path / "acme.toml"), code)


PREDICTING = (
    HEAD
    + """predicting = "extra_layers"
[moved]
"mtp.layers.{m}." = "model.layers.{layers+m}."
"mtp.fc." = "model.layers.{layers}.eh_proj."
"""
)


def test_layers_that_predict_more_tokens_have_names_that_depend_on_the_number_of_layers(tmp_path: Path) -> None:
    family = read_family(declare(tmp_path, PREDICTING)).family()
    settings = {"num_hidden_layers": 4, "extra_layers": 2, "layers_behind": 2}
    assert family.moved(settings) == {
        "mtp.layers.0.": "model.layers.4.", "mtp.layers.1.": "model.layers.5.", "mtp.fc.": "model.layers.4.eh_proj.",
    }  # fmt: skip
    assert family.moved({**settings, "layers_behind": 0}) == {}
    assert [*family.layers_of("predicting", settings)] == [4, 5]
    assert "model.layers.{n}.eh_proj.weight" in family.extras


def test_a_family_whose_rows_say_so_leaves_these_layers_out(tmp_path: Path) -> None:
    names = ("eh_proj", "enorm", "hnorm", "shared_head.norm", "embed_tokens", "shared_head.head")
    rows = "\n".join(f"'{name}' = false" for name in names)
    family = read_family(declare(tmp_path, f"{HEAD}predicting = 'extra_layers'\n[rows]\n{rows}\n")).family()
    assert {"model.layers.4.*", "blk.4.*"} <= {*family.left_out({"num_hidden_layers": 4, "extra_layers": 1})}


def test_a_base_and_a_model_type_are_enough(tmp_path: Path) -> None:
    declaration = read_family(declare(tmp_path))
    assert declaration.info.id == declaration.info.title == "acme"
    assert (declaration.info.model_types, declaration.info.architecture) == (("acme",), "")
    family = declaration.family()
    llama = squish.registry().implementation("family", "llama")
    assert (family.architecture, family.rows, family.keys) == (llama.architecture, llama.rows, llama.keys)


def test_every_table_changes_the_base(tmp_path: Path) -> None:
    family = read_family(declare(tmp_path, WHOLE)).family()
    rows = {row.hf: row for row in family.rows}
    assert "self_attn.q_norm" not in rows
    assert (rows["self_attn.query_norm"].gguf, rows["self_attn.query_norm"].shape) == ("attn_q_norm", ("head_dim",))
    assert rows["post_attention_layernorm"].gguf == "post_attention_norm"
    module = "model.layers.{n}.mlp."
    assert rows["mlp.decay"].expression(".weight") == Reshape(NegExp(f"{module}decay.weight"), ("hidden_size", "1"))
    tile = Tile(f"{module}groups.weight", "num_key_value_heads", ("head_dim", "1"), "experts")
    assert rows["mlp.groups"].expression(".weight") == tile
    assert {key.hf: key.type for key in family.keys}.items() >= {"n_experts": "u32", "factor": "f32"}.items()
    assert family.experts == "n_experts"
    settings = {
        **SIZES, "head_dim": 8, "n_experts": 3, "moe_intermediate_size": 24, "dense_layers": 1,
    }  # fmt: skip
    assert {name: family.sizes(settings)[name] for name in ("shared_size", "1")} == {"shared_size": 48, "1": 1}
    absent = family.absent(settings)
    assert absent == {"model.layers.0.mlp.shared.up_proj.weight"}
    assert family.implied(settings)["layer_types"] == ["sliding_attention", "full_attention"] * 2
    spelled = family.spelled({**SMALL, "hidden_act": "swish"})
    assert (spelled["hidden_act"], spelled["gating_function"]) == ("silu", 2)
    written = [rule.name for rule in family.names["mlx"]]
    assert written[0] == "model.layers.{n}.mlp.switch_mlp.gate_proj.weight"


OWN = """
base = "llama"
model_type = "acme"
architecture = "acme"
layer = "acme.h.{n}."
own_rows = true
derived = ["num_key_value_heads"]

[rows]
"acme.wte" = { like = "model.embed_tokens" }
"acme.norm" = { like = "model.norm" }
lm_head = { tied_to = "acme.wte.weight" }
"attn.q" = { like = "self_attn.q_proj", bias = false }
"attn.k" = { like = "self_attn.k_proj", bias = false }
"attn.v" = { like = "self_attn.v_proj", bias = false }
one_norm = { like = "input_layernorm", kind = "one" }
first_norm = { like = "input_layernorm", kind = "two" }
second_norm = { like = "post_attention_layernorm", kind = "two" }
"mlp.up" = { like = "mlp.up_proj", bias = false }
"mlp.down" = { like = "mlp.down_proj", bias = false }

[fused]
"attn.qkv" = [["attn.q", "group_rows"], ["attn.k", "head_dim"], ["attn.v", "head_dim"]]

[read]
"mlp.down.base" = "mlp.down"

[names]
num_hidden_layers = ["n_layer", "layers"]
intermediate_size = "n_inner"

[keys]
scale = { gguf = "scale", type = "f32" }
hidden_act = false

[computed]
intermediate_size = ["hidden_size", 4]
num_key_value_heads = ["num_attention_heads"]

[nested]
attention = ["scale", "bias"]

[unstated]
scale = 8

[fixed]
activation = "gelu"

[equivalents]
activation = { gelu_fast = "gelu" }

[layers]
one = { unless = "norms" }
two = { when = "norms" }

[presence]
norms = "ffn_norm.weight"
has_no_bias = "!attn_q.bias"
"""
OWN_CONFIG = {
    "model_type": "acme", "hidden_size": 32, "layers": 2, "num_attention_heads": 4, "num_key_value_heads": 3,
    "vocab_size": 64, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "activation": "gelu_fast",
    "attention": {"scale": 2, "bias": False}, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize("norms", [False, True])
def test_a_family_with_names_layers_and_settings_of_its_own_comes_back(norms: bool, tmp_path: Path) -> None:
    name = f"acme{norms:d}"
    text = OWN.replace('"acme"', f'"{name}"')
    family = squish.registry().implementation("family", register_family(declare(tmp_path, text)))
    config = {**OWN_CONFIG, "model_type": name, "norms": norms}
    folder = write_model(tmp_path / "m", name, config, files=TOKENIZER)
    squish.convert(folder, tmp_path / "m.gguf", "gguf:keep=no")
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    with squish.open(folder) as before, squish.open(tmp_path / "back") as after:
        assert sorted(before) == sorted(after)
        assert ("acme.h.1.one_norm.weight" in before) != norms
        assert after["acme.h.0.attn.qkv.weight"].shape == (96, 32)
        assert all(np.array_equal(before[each].numpy(), after[each].numpy()) for each in before)
    written = json.loads((tmp_path / "back" / "config.json").read_text())
    stated = ("n_layer", "n_inner", "attention", "activation", "norms", "has_no_bias")
    assert [written[each] for each in stated] == [2, 128, {"scale": 2}, "gelu", norms, True]
    left_out = {"num_hidden_layers", "intermediate_size", "num_key_value_heads", "scale", "hidden_act"}
    assert not left_out.intersection(written)
    assert [rule.name for rule in family.names["hf"] if rule.reading] == ["acme.h.{n}.mlp.down.base.weight"]


def test_a_gguf_with_another_value_than_config_json_implies_is_refused(tmp_path: Path) -> None:
    register_family(declare(tmp_path, OWN.replace('"acme"', '"acme2"')))
    folder = write_model(tmp_path / "m", "acme2", {**OWN_CONFIG, "model_type": "acme2"}, files=TOKENIZER)
    squish.convert(folder, tmp_path / "m.gguf", "gguf:keep=no")
    with squish.open(tmp_path / "m.gguf") as file:
        arrays, meta = {name: file[name].numpy() for name in file}, dict(file.index.meta)
    meta["acme2.attention.head_count_kv"] = Typed("u32", 2)
    for each in "kv":
        arrays = {name: array[:16] if f"attn_{each}." in name else array for name, array in arrays.items()}
    squish.save(tmp_path / "other.gguf", arrays, metadata=meta)
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(tmp_path / "other.gguf", tmp_path / "back", "hf")
    assert (caught.value.part, caught.value.code) == ("acme2.attention.head_count_kv", "config")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("by", ["option", "variable"])
def test_a_model_of_a_declared_family_is_converted(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, name = declare(tmp_path, HEAD.replace("acme", f"acme_{by}")), f"acme_{by}"
    folder = write_model(tmp_path / "m", "llama", {**SMALL, "model_type": name}, files=TOKENIZER)
    command = ["convert", str(folder), str(tmp_path / "m.gguf"), "-q"]
    if by == "option":
        assert run([*command, "--family", str(path)]) == 0
        assert "SQUISH_FAMILIES" not in os.environ
    else:
        environment = {
            **os.environ,
            "SQUISH_FAMILIES": f"{declare(tmp_path, name='b.toml')}{os.pathsep}{path}",
        }
        subprocess.run([sys.executable, "-c", COMMAND, *command], env=environment, check=True)
    with squish.open(tmp_path / "m.gguf") as file:
        assert file.metadata["general.architecture"] == "llama"


def test_a_wrong_file_of_the_option_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", "llama", {**SMALL, "model_type": "llama"}, files=TOKENIZER)
    path = declare(tmp_path, HEAD + "rowz = 1\n")
    assert run(["convert", str(folder), str(tmp_path / "m.gguf"), "--family", str(path)]) == 2
    assert not (tmp_path / "m.gguf").exists()


def test_a_wrong_file_of_the_variable_is_why_families_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUISH_FAMILIES", str(declare(tmp_path, "bse = 1\n")))
    registry = squish.Registry()
    [broken] = registry.broken
    assert broken.dist == "squish-models"
    assert "line 1, bse" in broken.reason


def test_what_the_package_lists_of_its_own_files_is_what_they_declare() -> None:
    folder = Path(squish_models.__file__).parent / "families"
    listed = {info.id: info for info in squish_models.squish_families() if ".declared:" in info.factory}
    assert sorted(listed) == sorted(path.stem for path in folder.glob("*.toml"))
    for name, info in listed.items():
        declared = read_family(folder / f"{name}.toml").info
        facts = ("id", "title", "model_types", "architecture", "present", "absent")
        assert {fact: getattr(info, fact) for fact in facts} == {fact: getattr(declared, fact) for fact in facts}


def test_listing_families_reads_no_declaration() -> None:
    loaded = "[m for m in sys.modules if 'toml' in m or m.startswith('squish_models.')]"
    code = f"import squish_core, sys; squish_core.registry().families; print({loaded})"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "['squish_models.mlx_types']"


def info(name: str, **facts: Any) -> FamilyInfo:
    return FamilyInfo(**{"id": name, "title": "", "factory": "", "model_types": (name,), "architecture": "", **facts})


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        ({"architecture": "x"}, {"architecture": "x"}, ["a, b"]),
        ({"architecture": "x"}, {"architecture": "y"}, []),
        ({}, {}, []),
        ({"architecture": "x"}, {"architecture": "x", "present": ("window",)}, []),
        ({"architecture": "x", "absent": ("window",)}, {"architecture": "x", "present": ("window",)}, []),
        ({"architecture": "x", "present": ("experts",)}, {"architecture": "x", "present": ("window",)}, ["a, b"]),
        ({"model_types": ("m", "n")}, {"model_types": ("n",)}, ["a, b"]),
        ({"model_types": ("m",)}, {"model_types": ("m",), "layouts": ("mlx",)}, []),
    ],
)  # fmt: skip
def test_families_that_nothing_tells_apart_are_in_conflict(
    one: Mapping[str, Any], other: Mapping[str, Any], found: list[str]
) -> None:
    assert [error.found for error in family_conflicts([info("a", **one), info("b", **other)])] == found


def test_no_families_of_the_package_are_in_conflict() -> None:
    assert family_conflicts(list(squish_models.squish_families())) == []


def test_a_model_that_two_families_claim_is_refused_until_one_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = declare(tmp_path, 'base = "llama"\nid = "mine"\nmodel_type = "llama"\narchitecture = "llama"\n')
    folder = write_model(tmp_path / "m", "llama", {**SMALL, "model_type": "llama"}, files=TOKENIZER)
    environment = {**os.environ, "SQUISH_FAMILIES": str(path)}

    def squish_command(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", COMMAND, *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    answer = squish_command("convert", str(folder), str(tmp_path / "m.gguf"), "--json")
    assert (answer.returncode, json.loads(answer.stdout)["error"]["code"]) == (2, "conflict")
    answer = squish_command("convert", str(folder), str(tmp_path / "m.gguf"), "--names", "gguf:mine", "-q")
    assert answer.returncode == 0, answer.stderr
    for command in ("plugins", "doctor"):
        assert "several families are those of 'llama'" in squish_command(command).stdout.replace("\n ", "")


@pytest.mark.parametrize(
    ("window", "family"), [(None, "olmo2"), (512, "olmo3")],
)  # fmt: skip
def test_a_key_tells_families_of_one_architecture_apart(window: int | None, family: str, tmp_path: Path) -> None:
    config = {**SMALL, "model_type": family} | ({"sliding_window": window} if window else {})
    folder = write_model(tmp_path / "m", family, config, files=TOKENIZER)
    squish.convert(folder, tmp_path / "m.gguf", "gguf:keep=no")
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    assert json.loads((tmp_path / "back" / "config.json").read_text())["model_type"] == family
