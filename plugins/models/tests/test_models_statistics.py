"""Activation statistics (imatrix) of a mapped model: keyed by the names of either engine, and in either format."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published_configs import PUBLISHED
from small_tokenizer import TOKENIZER
from squish_cli.app import run
from squish_convert.activations import read_imatrix
from squish_testing import write_model

import squish_core as squish
from squish_core.model import CodecSpec, Typed

SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
    "rope_theta": 10000.0,
}  # fmt: skip
CONFIGS = {
    "llama": {**SIZES, "model_type": "llama"},
    "mixtral": {**SIZES, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
}
GENERATOR = np.random.default_rng(3)
MEANS = GENERATOR.random((4, 64), np.float32) ** 4
LLAMA_NAMES = ("model.layers.{}.self_attn.q_proj.weight", "blk.{}.attn_q.weight")
EXPERT, STACK = "model.layers.{}.block_sparse_moe.experts.{}.w1.weight", "blk.{}.ffn_gate_exps.weight"
RULES = {"blk.*.attn_q.weight": "q4_0:search=activations"}
EXPERT_RULES = {"blk.*.ffn_gate_exps.weight": "q5_1:search=activations"}

pytest.importorskip("squish_cpu")


@pytest.fixture(params=["llama"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return folder(tmp_path, request.param)


def folder(tmp_path: Path, family: str) -> Path:
    return write_model(tmp_path / family, family, CONFIGS[family], dtype="f32", files=TOKENIZER)


def imatrix(path: Path, sums: Mapping[str, np.ndarray], count: float = 8) -> Path:
    """llama.cpp's statistics as a GGUF."""
    arrays = {}
    for name, means in sums.items():
        arrays[f"{name}.in_sum2"] = np.atleast_2d(means) * np.float32(count)
        arrays[f"{name}.counts"] = np.full((len(np.atleast_2d(means)), 1), count, np.float32)
    meta = {"imatrix.datasets": Typed("array:str", ["a.txt"]), "imatrix.chunk_count": Typed("u32", 5)}
    squish.save(path, arrays, metadata=meta)
    return path


def dat(path: Path, sums: Mapping[str, np.ndarray], count: int = 8) -> Path:
    """The same in llama.cpp's older format."""
    data = struct.pack("<i", len(sums))
    for name, means in sums.items():
        data += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", count, means.size)
        data += (means.astype("<f4") * np.float32(count)).tobytes()
    path.write_bytes(data + struct.pack("<ii", 5, 5) + b"a.txt")
    return path


def blocks(path: Path, name: str) -> bytes:
    with squish.open(path) as file:
        return bytes(file[name].parts()["data"].numpy())


@pytest.mark.parametrize("name", LLAMA_NAMES)
@pytest.mark.parametrize("write", [imatrix, dat], ids=["gguf", "dat"])
def test_statistics_are_found_by_the_names_of_either_engine(name: str, write: Any, model: Path, tmp_path: Path) -> None:
    suffix = "dat" if write is dat else "gguf"
    expected = {name.format(n): MEANS[n] for name in LLAMA_NAMES[1:] for n in range(2)}
    squish.convert(model, tmp_path / "a.gguf", encode=RULES, activations=imatrix(tmp_path / "i.gguf", expected))
    statistics = write(tmp_path / f"j.{suffix}", {name.format(n): MEANS[n] for n in range(2)})
    squish.convert(model, tmp_path / "b.gguf", encode=RULES, activations=statistics)
    squish.convert(model, tmp_path / "plain.gguf", encode={"blk.*.attn_q.weight": "q4_0"})
    ours, theirs = (blocks(tmp_path / f"{each}.gguf", "blk.1.attn_q.weight") for each in "ab")
    assert ours == theirs != blocks(tmp_path / "plain.gguf", "blk.1.attn_q.weight")


@pytest.mark.parametrize("write", [imatrix, dat], ids=["gguf", "dat"])
def test_processes_weigh_errors_by_the_same_statistics(write: Any, model: Path, tmp_path: Path) -> None:
    suffix = "dat" if write is dat else "gguf"
    statistics = write(tmp_path / f"i.{suffix}", {LLAMA_NAMES[1].format(n): MEANS[n] for n in range(2)})
    for name, job in (("here", None), ("there", "local:1")):
        squish.convert(model, tmp_path / f"{name}.gguf", encode=RULES, activations=statistics, job=job)
    assert (tmp_path / "there.gguf").read_bytes() == (tmp_path / "here.gguf").read_bytes()


def test_gguf_records_the_statistics(model: Path, tmp_path: Path) -> None:
    sums = {f"blk.{n}.attn_q.weight": MEANS[n] for n in range(2)}
    for statistics in (imatrix(tmp_path / "i.gguf", sums), dat(tmp_path / "i.dat", sums)):
        squish.convert(model, tmp_path / "m.gguf", encode=RULES, activations=statistics)
        with squish.open(tmp_path / "m.gguf") as file:
            assert {key: value for key, value in file.meta.items() if key.startswith("quantize.")} == {
                "quantize.imatrix.file": statistics.name,
                "quantize.imatrix.dataset": "a.txt",
                "quantize.imatrix.entries_count": 2,
                "quantize.imatrix.chunks_count": 5,
            }


def test_each_expert_has_statistics_of_its_own(tmp_path: Path) -> None:
    """By a stack's name, and by the names of the experts."""
    source = folder(tmp_path, "mixtral")
    stacked = imatrix(tmp_path / "stack.gguf", {STACK.format(n): MEANS + n for n in range(2)})
    single = imatrix(tmp_path / "single.gguf", {EXPERT.format(n, e): MEANS[e] + n for n in range(2) for e in range(4)})
    for name, statistics in (("a", stacked), ("b", single)):
        squish.convert(source, tmp_path / f"{name}.gguf", encode=EXPERT_RULES, activations=statistics)
    name = STACK.format(1)
    assert blocks(tmp_path / "a.gguf", name) == blocks(tmp_path / "b.gguf", name)
    encoder = squish.registry().encoder(CodecSpec("ggml.q5_1"))
    with squish.open(source) as file:
        for expert in range(4):
            values = file[EXPERT.format(1, expert)].numpy()
            roots = np.sqrt((MEANS[expert] + np.float32(1)).astype(np.float64))
            own = encoder.from_params({"search": "activations"}).encode(values, activations=roots)["data"]
            with squish.open(tmp_path / "a.gguf") as written:
                stored = written[name].parts()["data"].numpy()[expert]
            np.testing.assert_array_equal(stored, own)


def test_experts_of_a_folder_have_statistics_of_a_stack(tmp_path: Path) -> None:
    source = folder(tmp_path, "mixtral")
    statistics = imatrix(tmp_path / "stack.gguf", {STACK.format(n): MEANS for n in range(2)})
    rule = {"*.w1.weight": "affine:bits=4,group_size=32,offset=zero_point,search=activations"}
    squish.convert(source, tmp_path / "q.zt", encode=rule, activations=statistics)
    vectors = {EXPERT.format(n, e): np.sqrt(MEANS[e]) for n in range(2) for e in range(4)}
    squish.save(tmp_path / "vectors.safetensors", vectors)
    squish.convert(source, tmp_path / "r.zt", encode=rule, activations=tmp_path / "vectors.safetensors")
    assert squish.diff(tmp_path / "q.zt", tmp_path / "r.zt").same


def test_an_expert_without_input_counts_alike_in_all_columns(tmp_path: Path) -> None:
    source, means = folder(tmp_path, "mixtral"), MEANS.copy()
    arrays = {}
    for n in range(2):
        arrays[f"{STACK.format(n)}.in_sum2"] = means
        arrays[f"{STACK.format(n)}.counts"] = np.array([[1], [0], [1], [1]], np.float32)
    squish.save(tmp_path / "i.gguf", arrays)
    squish.convert(source, tmp_path / "m.gguf", encode=EXPERT_RULES, activations=tmp_path / "i.gguf")
    means[1] = 1
    squish.convert(
        source,
        tmp_path / "n.gguf",
        encode=EXPERT_RULES,
        activations=imatrix(tmp_path / "j.gguf", {STACK.format(n): means for n in range(2)}, 1),
    )
    assert blocks(tmp_path / "m.gguf", STACK.format(0)) == blocks(tmp_path / "n.gguf", STACK.format(0))


Q0, Q1 = (LLAMA_NAMES[1].format(n) for n in range(2))
SEARCH, PRESET = "q4_k:search=activations", "q4_k_m"
BY_RULE_OR_PRESET = pytest.mark.parametrize("encode", [SEARCH, PRESET, {"blk.*.attn_q.weight": SEARCH}])


def wide(tmp_path: Path) -> Path:
    """A model whose rows are long enough for K-quants, as a GGUF."""
    sizes = {**CONFIGS["llama"], "hidden_size": 256, "intermediate_size": 256}
    source = write_model(tmp_path / "wide", "llama", sizes, dtype="f32", files=TOKENIZER)
    squish.convert(source, tmp_path / "wide.gguf")
    return tmp_path / "wide.gguf"


@BY_RULE_OR_PRESET
@pytest.mark.parametrize("count", [8, 0])
def test_statistics_of_zeros_are_none(encode: Any, count: float, tmp_path: Path) -> None:
    model, seen = wide(tmp_path), GENERATOR.random((1, 256), np.float32)
    with squish.open(model) as file:
        names = [name for name in file if file[name].ndim == 2]
    zeros = {name: np.zeros((1, 256), np.float32) for name in names}
    with squish.open(imatrix(tmp_path / "i.gguf", {**zeros, Q1: seen})) as file:
        arrays = {name: file[name].numpy() for name in file}
    squish.save(tmp_path / "zero.gguf", {**arrays, f"{Q0}.counts": np.full((1, 1), count, np.float32)})
    report = squish.convert(model, tmp_path / "q.gguf", encode=encode, activations=tmp_path / "zero.gguf")
    assert any("statistics that are all zero, ignored: " in note and Q0 in note for note in report.notes)
    # without an entry, the rule for all tensors keeps a tensor
    rules = {PRESET: PRESET, SEARCH: {"*": "q4_k", Q1: SEARCH}}.get(str(encode), {Q1: SEARCH, Q0: "q4_k"})
    only = imatrix(tmp_path / "only.gguf", {Q1: seen})
    squish.convert(model, tmp_path / "expected.gguf", encode=rules, activations=only)
    for name in (Q0, Q1):
        assert blocks(tmp_path / "q.gguf", name) == blocks(tmp_path / "expected.gguf", name)


@BY_RULE_OR_PRESET
@pytest.mark.parametrize("bad", [np.nan, np.inf, -1])
def test_invalid_statistics_are_refused_by_rules_and_presets(encode: Any, bad: float, tmp_path: Path) -> None:
    means = np.ones((1, 256), np.float32)
    means[0, 7] = bad
    statistics = imatrix(tmp_path / "bad.gguf", {Q0: np.ones((1, 256), np.float32), Q1: means})
    with pytest.raises(squish.TensorError) as caught:
        squish.convert(wide(tmp_path), tmp_path / "q.gguf", encode=encode, activations=statistics)
    assert (caught.value.code, caught.value.tensor) == ("imatrix", Q1)
    assert str(caught.value.found).startswith("1 ")
    assert not (tmp_path / "q.gguf").exists()


def test_coverage_and_experts_without_input_are_reported(tmp_path: Path) -> None:
    source, arrays = folder(tmp_path, "mixtral"), {}
    for n in range(2):
        arrays[f"{STACK.format(n)}.in_sum2"] = MEANS * np.array([[1], [0], [1], [0]], np.float32)
        arrays[f"{STACK.format(n)}.counts"] = np.array([[1], [0], [1], [1]], np.float32)
    squish.save(tmp_path / "i.gguf", arrays)
    rules = {**EXPERT_RULES, "blk.0.attn_q.weight": "q8_0"}
    report = squish.convert(source, tmp_path / "m.gguf", encode=rules, activations=tmp_path / "i.gguf")
    assert "activation statistics weigh 2 of 3 encoded tensors; without: blk.0.attn_q.weight" in report.notes
    unseen = [note for note in report.notes if note.startswith(STACK.format(0))]
    assert ["2 of 4 experts had no input (1, 3)" in note for note in unseen] == [True]


@pytest.mark.parametrize("suffix", ["gguf", "dat"])
def test_several_files_of_statistics_are_merged(suffix: str, model: Path, tmp_path: Path) -> None:
    write = dat if suffix == "dat" else imatrix
    runs = ({Q0: MEANS[0]}, {Q0: MEANS[1], Q1: MEANS[2]})
    files = [write(tmp_path / f"{n}.{suffix}", means, 8 + 8 * n) for n, means in enumerate(runs)]
    both = imatrix(tmp_path / "both.gguf", {Q0: (MEANS[0] + 2 * MEANS[1]) / np.float32(3), Q1: MEANS[2]}, 24)
    squish.convert(model, tmp_path / "a.gguf", encode=RULES, activations=files)
    squish.convert(model, tmp_path / "b.gguf", encode=RULES, activations=both)
    options = [word for file in files for word in ("--imatrix", str(file))]
    rule = ["--encode", "blk.*.attn_q.weight=q4_0:search=activations"]
    assert run(["convert", str(model), str(tmp_path / "c.gguf"), *rule, *options, "--quiet"]) == 0
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "c.gguf").read_bytes()
    for name in (Q0, Q1):
        assert blocks(tmp_path / "a.gguf", name) == blocks(tmp_path / "b.gguf", name)
    with squish.open(tmp_path / "a.gguf") as file:
        assert file.metadata["quantize.imatrix.chunks_count"] == 10
        assert file.metadata["quantize.imatrix.file"] == f"0.{suffix}, 1.{suffix}"


def test_files_of_statistics_that_do_not_fit_together_are_refused(model: Path, tmp_path: Path) -> None:
    squish.save(tmp_path / "vectors.safetensors", {Q0: MEANS[0]})
    whole, half = (imatrix(tmp_path / f"{n}.gguf", {Q0: MEANS[0][:n]}) for n in (64, 32))
    for files in ([tmp_path / "vectors.safetensors"] * 2, [whole, half]):
        with pytest.raises(squish.TensorError) as caught:
            squish.convert(model, tmp_path / "m.gguf", encode=RULES, activations=files)
        assert caught.value.code == "imatrix"
        assert not (tmp_path / "m.gguf").exists()


def test_statistics_of_more_tensors_than_the_limit_are_refused(tmp_path: Path) -> None:
    path = dat(tmp_path / "i.dat", {str(number): MEANS[0] for number in range(3)})
    assert len(read_imatrix(path, limits=squish.Limits(tensors=3))) == 6
    with pytest.raises(squish.LimitError) as caught:
        read_imatrix(path, limits=squish.Limits(tensors=2))
    assert (caught.value.code, caught.value.found) == ("imatrix", 3)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x01\0", struct.pack("<i", -1), struct.pack("<ii", 1, 1 << 30), struct.pack("<ii", 1, 1) + b"\xff",
     struct.pack("<ii", 1, 1) + b"w" + struct.pack("<ii", 1, 1 << 30), struct.pack("<i", 2**31 - 1) + bytes(64)],
)  # fmt: skip
def test_damaged_statistics_are_refused(data: bytes, model: Path, tmp_path: Path) -> None:
    (tmp_path / "i.dat").write_bytes(data)
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(model, tmp_path / "m.gguf", encode=RULES, activations=tmp_path / "i.dat")
    assert caught.value.code in ("imatrix", "name")
    assert not (tmp_path / "m.gguf").exists()


OUTPUT = ("model.layers.0.linear_attn.out_proj.weight", "blk.0.ssm_out.weight")


@pytest.mark.parametrize(("target", "name"), [("m.gguf", OUTPUT[1]), ("m", OUTPUT[0])])
def test_statistics_follow_the_columns_of_a_tensor(target: str, name: str, tmp_path: Path) -> None:
    config = PUBLISHED["Qwen3.5-4B"][1]["text_config"]
    heads, size = config["linear_num_value_heads"], config["linear_value_head_dim"]
    groups = config["linear_num_key_heads"]
    source = write_model(tmp_path / "qwen35", "qwen35", config, dtype="f32", files=TOKENIZER)
    means = np.random.default_rng(5).random((1, heads * size), np.float32) ** 4
    tiled = means.reshape(groups, heads // groups, size).swapaxes(0, 1).reshape(1, -1)  # the first heads of all groups
    written = []
    for number, (entry, values) in enumerate(zip(OUTPUT, (means, tiled))):
        squish.convert(
            source,
            tmp_path / f"{number}{target}",
            "gguf" if target.endswith("gguf") else "uqff",
            encode={OUTPUT[0]: "q4_0:search=activations"},
            activations=imatrix(tmp_path / f"i{number}.gguf", {entry: values}),
        )
        written.append(blocks(tmp_path / f"{number}{target}", name))
    assert written[0] == written[1]
    assert not np.array_equal(means, tiled)
