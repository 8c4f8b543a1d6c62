"""Questions about a format's features, without a file: every answer is one, and names what a file could hold."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toys
from squish_cli import main
from squish_testing import expect_error

import squish_core as squish
from squish_core import api
from squish_core.api import MissingPluginError, SquishError
from squish_core.plugins.catalog import install_command, short_names

FORMATS = sorted(squish.registry().containers)
BACKENDS = (None, "cpu", "numpy", "metal", "ane:device=M1", "ane:device=M4")


def questions(container: str) -> Iterator[dict[str, Any]]:
    """Each value of each feature, and each pair of values."""
    features = squish.registry().containers[container].info.features
    choices = [(name, value) for name, values in features.items() for value in values]
    yield from ({name: value} for name, value in choices)
    for (one, first), (other, second) in combinations(choices, 2):
        yield {one: {first, second}} if one == other else {one: first, other: second}


def failures(**arguments: Any) -> list[str]:
    """Exceptions of plugins while a chain is resolved."""
    try:
        chain = squish.registry().resolve(**arguments)
    except SquishError as error:
        return [str(error)] if error.code == "plugin-bug" or "failed: " in str(error) else []
    return [refusal.why for refusal in chain.refused if refusal.code == "plugin-bug"]


@pytest.mark.parametrize("container", FORMATS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_combination_of_features_makes_an_offer_fail(
    container: str, backend: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUISH_METAL", "cpu")
    for features in questions(container):
        for op in (None, "experts", "dense"):
            assert failures(container=container, backend=backend, op=op, **features) == [], features


@pytest.mark.parametrize("container", FORMATS)
def test_a_format_declares_every_codec_that_its_features_and_short_names_lead_to(container: str) -> None:
    registry = squish.registry()
    info = registry.containers[container].info
    codecs = {text.partition(":")[0].partition("(")[0] for text in info.aliases.values()}
    for features in questions(container):
        try:
            encodings = registry.container(container).encodings_for(**features)
        except SquishError:
            continue
        for encoding in encodings:
            spec = getattr(encoding, "codec", None)
            while spec is not None:
                codecs.add(spec.id)
                spec = spec.inner
            parts = getattr(encoding, "parts", {})
            codecs.update(item.codec for part in parts.values() for item in part.filters)
    assert codecs - {"dense"} - set(info.codecs) == set()


GPTQ_GROUPS = "affine:bits=4,group_size=128,axis=-2,word=i32,scale_dtype=f16,offset=zero_point,offset_dtype=f16"
REAL = [
    ("gguf", "q4_0", {"dtype": "q4_0"}),
    ("uqff", "afq4", {"isq": "afq4"}),
    ("uqff", "hqq4", {"isq": "hqq4"}),
    ("uqff", "q4k", {"isq": "q4k"}),
    ("uqff", "fp8", {"isq": "fp8"}),
    ("uqff", "mxfp4", {"isq": "mxfp4"}),
    ("hf:method=gptq", "int4:group_size=128", {"method": "gptq"}),
    ("hf:method=gptq_v2", "affine:bits=3,group_size=128,scale_dtype=f16", {"method": "gptq_v2", "bits": "3"}),
    ("hf:method=awq", "int4:group_size=128", {"method": "awq"}),
    ("hf:method=fp8", "fp8_block", {"method": "fp8"}),
    ("hf:method=modelopt", "nvfp4", {"method": "modelopt"}),
    ("ztensor", GPTQ_GROUPS, {"format": "quantized_group"}),
    ("mlx", "q4", {"mode": "affine"}),
    ("mlx", "mxfp8", {"mode": "mxfp8"}),
    ("mlx", "nvfp4", {"mode": "nvfp4"}),
    ("npydir", "int4", {"dialect": "int4"}),
    ("npydir", "nf4", {"dialect": "nf4"}),
    ("npydir", "int3", {"dialect": "int3 milo"}),
    ("npydir", "int2", {"dialect": "int2"}),
    ("mlpackage", "lut4", {"compression": "constexpr_lut_to_dense"}),
    ("mlpackage", "lut6", {"compression": "constexpr_lut_to_dense", "bits": "6"}),
    ("mlpackage", "int4", {"compression": "constexpr_blockwise_shift_scale", "bits": "4"}),
    ("mlpackage", "int8", {"compression": "constexpr_blockwise_shift_scale", "granularity": "per_channel"}),
    ("mlpackage:target=iOS16", "int8", {"compression": "constexpr_affine_dequantize"}),
    (
        "mlpackage",
        "affine:bits=4,group_size=32,signed=True,scale_dtype=f16,offset=zero_point",
        {"compression": "constexpr_blockwise_shift_scale", "bits": "4", "zero_points": "true"},
    ),
    ("mlpackage", "sparse", {"compression": "constexpr_sparse_to_dense"}),
    ("mlpackage", "sparse_lut4", {"compression": "constexpr_lut_to_sparse"}),
    ("mlpackage", "sparse_int8", {"compression": "constexpr_sparse_blockwise_shift_scale"}),
]


@pytest.mark.parametrize(("container", "short", "features"), REAL)
def test_an_answer_names_the_codec_of_a_written_file(
    container: str, short: str, features: dict[str, str], tmp_path: Path
) -> None:
    values = np.random.default_rng(3).standard_normal((256, 256)).astype(np.float32)
    name = "model.layers.0.mlp.up_proj.weight"
    squish.save(tmp_path / "source.safetensors", {name: values})
    squish.convert(tmp_path / "source.safetensors", tmp_path / "out", container, encode={"*up_proj*": short})
    container = container.partition(":")[0]
    with squish.open(tmp_path / "out", container) as file:
        tensor = next(tensor for tensor in map(file.__getitem__, file) if tensor.spec.encodings[0].codec.id != "dense")
        stored = tensor.spec.encodings[0].codec
    answer = squish.registry().resolve(container=container, **features).chosen.encoding.codec
    assert answer.id == stored.id
    assert (answer.inner and answer.inner.id) == (stored.inner and stored.inner.id)
    for one, other in ((answer, stored), (answer.inner or answer, stored.inner or stored)):
        assert {name: other.params.get(name) for name in one.params} == dict(one.params)


TIER_FILES = {
    "squish_panels": ("panels", "int4"), "squish_4bit": ("4bit", "int4"), "squish_3bit": ("3bit", "int3"),
    "squish_weights": ("mlx", "int8"), "finalized": ("finalized", "int8"),
}  # fmt: skip


@pytest.mark.parametrize("tier", squish.registry().containers["npydir"].info.features["tier"])
def test_an_answer_names_the_encoding_of_a_built_tier(tier: str, tmp_path: Path) -> None:
    name, short = TIER_FILES[tier]
    values = np.random.default_rng(3).standard_normal((256, 256)).astype(np.float32).astype(np.float16)
    source = tmp_path / "model.safetensors"
    squish.save(source, {"model.layers.0.mlp.up_proj.weight": values})
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')  # a family that tolerates three bits
    squish.convert(source, tmp_path / "out", "npydir:scales=f16", encode=short, rename="keep")
    assert main(("cache", "build", str(tmp_path / "out"), "--tier", name)) == 0
    with squish.open(tmp_path / "out") as file:
        (tensor,) = file.index.tensors.values()
    stored = tensor.encodings[0]
    answer = squish.registry().resolve(container="npydir", tier=tier).chosen.encoding
    assert (answer.label, answer.codec.id) == (stored.label, stored.codec.id) == (tier, stored.codec.id)
    assert {name: stored.codec.params.get(name) for name in answer.codec.params} == {
        **answer.codec.params,
        **({"scale_dtype": "f16"} if tier == "squish_panels" else {}),
    }
    assert {role: part.dtype for role, part in answer.parts.items()} == {
        role: stored.parts[role].dtype for role in answer.parts
    }


@pytest.mark.parametrize(("container", "text", "number"), [
    ("mlx", {"mode": "affine", "bits": "4", "group_size": "32"}, {"mode": "affine", "bits": 4, "group_size": 32}),
    ("hf", {"method": "gptq", "bits": "8"}, {"method": "gptq", "bits": 8}),
    ("uqff", {"isq": "4"}, {"isq": 4}),
    ("uqff", {"isq": "q4k"}, {"isq": "Q4K"}),
    ("gguf", {"dtype": "q4_k"}, {"dtype": "Q4_K"}),
    ("squizd", {"flags": {"INT4", "SPARSE"}}, {"flags": {"int4", "Sparse"}}),
])  # fmt: skip
def test_values_may_be_numbers_and_have_any_case(container: str, text: dict[str, Any], number: dict[str, Any]) -> None:
    registry = squish.registry()
    answer = registry.resolve(container=container, **number)
    assert answer.chosen.encoding == registry.resolve(container=container, **text).chosen.encoding
    assert answer.target == registry.resolve(container=container, **text).target


@pytest.mark.parametrize(("bits", "codecs"), [
    (2, ["ggml.q2_k", "affine"]), (3, ["ggml.q3_k", "affine"]), (4, ["ggml.q4_k", "affine"]), (5, ["ggml.q5_k"]),
    (6, ["ggml.q6_k", "affine"]), (8, ["ggml.q8_0", "affine"]),
])  # fmt: skip
def test_the_bits_of_an_isq_stand_for_the_types_that_mistral_rs_takes(bits: int, codecs: list[str]) -> None:
    """mistral.rs takes K quants, or AFQ on Metal."""
    chain = squish.registry().resolve(container="uqff", isq=bits)
    offers = (chain.chosen, *chain.others)
    assert list(dict.fromkeys(offer.encoding.codec.id for offer in offers)) == codecs
    assert {offer.encoding.codec.params.get("bits", bits) for offer in offers} == {bits}


@pytest.mark.parametrize("container", FORMATS)
def test_each_value_of_a_feature_is_answered_without_an_error_about_a_file(container: str) -> None:
    registry = squish.registry()
    features = registry.containers[container].info.features
    for question in ({name: value} for name, values in features.items() for value in values):
        assert outcome(registry, container=container, **question) in ("answer", "feature", "no-chain"), question


def outcome(registry: squish.Registry, **question: Any) -> str | None:
    """The code of the error, or "answer"."""
    try:
        registry.resolve(**question)
    except SquishError as error:
        return error.code
    return "answer"


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors", "fp8", "fbgemm_fp8", "modelopt", "mxfp4"])
def test_a_checkpoint_method_alone_has_an_answer(method: str) -> None:
    assert squish.registry().resolve(container="hf", method=method).chosen.encoding.codec.id != "dense"


@pytest.mark.parametrize("features", [
    {"mode": "affine", "group_size": "16"}, {"mode": "nvfp4", "group_size": "64"}, {"mode": "mxfp4", "bits": "8"},
])  # fmt: skip
def test_numbers_that_no_mlx_model_has_are_refused(features: dict[str, str]) -> None:
    with expect_error(SquishError, code="no-chain"):
        squish.registry().resolve(container="mlx", **features)


def test_a_byte_codec_that_cannot_run_here_is_not_chosen() -> None:
    registry = squish.Registry(plugins="-squish-zstd,-squish-ggml")
    for encoding in ("zstd", "zt.zstd-seekable"):
        with pytest.raises(MissingPluginError) as caught:
            registry.resolve(container="ztensor", encoding=encoding)
        assert caught.value.code == "no-chain"
    with pytest.raises(MissingPluginError) as caught:
        registry.resolve(container="ztensor", encoding="zt.zstd-seekable", dtype="gguf.q4_k")
    assert caught.value.hint == f"Run `{install_command('squish-ggml', 'squish-zstd')}`."


def test_a_gpu_goes_before_the_cpu_and_a_stand_in_for_one_is_chosen_only_by_name() -> None:
    def registry(**settings: Any) -> Any:
        infos = [toys.backend("toy.a", 9, moved=1), toys.backend("toy.gpu", mode="fold", moved=9, **settings)]
        return toys.registry(toys.plugin(squish_backends=infos))

    ask = {"container": "toy.box", "packing": "rows"}
    chain = registry(memory="gpu").resolve(**ask)
    assert chain.chosen.backend == "toy.gpu"
    assert chain.because.startswith("toy.gpu keeps the weights in the GPU's memory, ")
    chain = registry(only_named="it is slow", memory="gpu").resolve(**ask, policy="smallest")
    assert chain.others[-1].backend == "toy.gpu"
    assert registry(only_named="it is slow").resolve(**ask, backend="toy.gpu").chosen.backend == "toy.gpu"


def test_a_backend_that_must_be_named_is_never_chosen_by_default() -> None:
    registry = toys.registry(toys.plugin(squish_backends=[toys.backend("toy.gpu", only_named="it is slow")]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(registry.backend("numpy")), "offer", lambda self, request: api.Refusal(why="not this one"))
        with expect_error(SquishError, code="no-chain", tensor="toy.box with packing=rows"):
            registry.resolve(container="toy.box", packing="rows")


def test_mlx_on_a_cpu_ranks_last_and_does_not_count_as_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlx.core")
    monkeypatch.setenv("SQUISH_METAL", "cpu")
    if squish.registry().backend("metal").probe().device != "CPU":
        pytest.skip("there is a GPU")
    chain = squish.registry().resolve(container="gguf", dtype="q4_0")
    assert [offer.backend for offer in (chain.chosen, *chain.others)] == ["cpu", "numpy", "metal"]
    assert squish.registry().resolve(container="gguf", dtype="q4_0", backend="metal").chosen.backend == "metal"


def test_options_of_a_backend_hold_without_a_file() -> None:
    chain = squish.registry().resolve(
        container="mlpackage", compression="constexpr_lut_to_dense", backend="ane:device=M1"
    )
    assert (chain.chosen.backend, chain.chosen.mode, dict(chain.options)) == ("ane", "stream", {"device": "M1"})


def test_the_command_line_takes_a_word_of_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("plan", "--format", "squizd", "--feature", "flags=0x24", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["chosen"]["encoding"] == "INT2"
    assert main(("formats", "mlpackage", "--json")) == 0
    assert "constexpr_lut_to_dense" in json.loads(capsys.readouterr().out)["formats"][0]["features"]["compression"]
    assert main(("formats", "squizd")) == 0
    assert "INT4=0x4" in capsys.readouterr().out


def test_a_deep_verification_counts_only_checked_digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.zt"
    squish.save(tmp_path / "model.safetensors", {"w": np.ones((64, 64), np.float32)})
    squish.convert(tmp_path / "model.safetensors", path, "ztensor:wire=2,encoding=zstd,digest=xxh3")
    monkeypatch.setitem(sys.modules, "squish_zstd.api", None)
    report = squish.verify(path, deep=True, registry=squish.Registry(plugins="-squish-zstd"))
    assert (report.digests, report.unverified, report.decoded) == (1, 1, 0)


@pytest.mark.parametrize(
    ("name", "first"),
    [("int4", "affine"), ("model.squizd", "squizd"), ("dir/x.uqff", "uqff"), ("ggml.q4_k", "ggml.q4_k"),
     ("nf4", "palette"), ("MODEL.GGUF", "gguf"), ("nobody", "nobody"), ("model.gguf.zst", "gguf"),
     ("afq4", "affine"), ("hqq4", "hqq"), ("iq2_xs", "ggml.iq2_xs"), ("fp8", "float8"), ("lut4", "palette")],
)  # fmt: skip
@pytest.mark.parametrize("bare", [False, True])
def test_needs_takes_ids_short_names_and_files(name: str, first: str, bare: bool) -> None:
    registry = squish.Registry(entry_points=tuple) if bare else squish.registry()
    need = registry.needs(name)[0]
    assert (need.id, need.installed) == (first, not bare and name != "nobody")
    assert (need.install is None) == (need.installed or name == "nobody")


def test_needs_looks_into_a_file_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"GGUF" + bytes(100))
    assert squish.registry().needs(str(path))[0].id == "gguf"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "model.safetensors").write_bytes(b"")
    assert squish.Registry(entry_points=tuple).needs(str(tmp_path / "folder"))[0].id == "safetensors"


def test_needs_lists_each_distribution_once_with_all_that_it_brings() -> None:
    registry = squish.Registry(plugins="-squish-ggml,-squish-codecs,-squish-zstd")
    for container in ("gguf", "uqff", "ztensor", "squizd"):
        own, *needs = registry.needs(container)
        assert own.installed
        assert len({need.dist for need in needs}) == len(needs)
    assert [need.dist for need in registry.needs("ztensor")[1:]] == ["squish-zstd", "squish-codecs", "squish-ggml"]
    assert len(registry.needs("gguf")[1].others) == 28


def test_short_names_that_the_catalog_knows_are_those_of_the_plugins() -> None:
    registry = squish.registry()
    for short, codec in {**short_names("container"), **short_names("codec", "encoder")}.items():
        assert registry.needs(short)[0].id == codec


@pytest.mark.parametrize(("question", "plugins", "packages"), [
    ({"container": "squizd", "flags": 0x5}, "-squish-codecs,-squish-astc", ["squish-astc", "squish-codecs"]),
    ({"container": "uqff", "isq": 4}, "-squish-codecs,-squish-ggml", ["squish-ggml", "squish-codecs"]),
    ({"container": "npydir", "dialect": "int4 awq"}, "-squish-codecs", ["squish-codecs"]),
])  # fmt: skip
def test_each_alternative_of_what_is_missing_is_listed_once(
    question: dict[str, Any], plugins: str, packages: list[str]
) -> None:
    with pytest.raises(MissingPluginError) as caught:
        squish.Registry(plugins=plugins).resolve(**question)
    assert caught.value.hint == f"Run {', or '.join(f'`{install_command(package)}`' for package in packages)}."


def test_the_message_lists_a_missing_codec_of_several_encodings_once() -> None:
    with pytest.raises(MissingPluginError) as caught:
        squish.Registry(plugins="-squish-codecs,-squish-astc").resolve(
            container="squizd", flags={"ASTC", "INT4", "SPARSE"}
        )
    assert all(str(caught.value).count(repr(codec)) == 1 for codec in ("masked", "astc", "squizd.int4"))


@pytest.mark.parametrize("question", [{"container": "hf", "method": "gptq"}, {"container": "uqff", "isq": "q4k"}])
def test_a_refinement_needs_the_format_that_it_refines(question: dict[str, Any]) -> None:
    with expect_error(MissingPluginError, code="not-installed"):
        squish.Registry(plugins="-squish-safetensors").resolve(**question)


@pytest.mark.parametrize(("container", "codecs"), [("onnx", {"affine"}), ("gguf", {"ggml.big_endian"})])
def test_a_format_declares_the_codecs_that_its_files_need_without_features(container: str, codecs: set[str]) -> None:
    info = squish.registry().containers[container].info
    assert codecs <= set(info.codecs)
