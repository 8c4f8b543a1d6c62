"""Writing: what Squish would find in the directory, and that codes are kept on the way in and out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from npydir_samples import CASES, make, source
from squish_npydir.container import NpyDir

import squish_core as squish
from squish_core.api import Dropped, Part, SquishError, TensorError, Typed, dtypes

RNG = np.random.default_rng(3)


def model(path: Path) -> Path:
    bf16 = dtypes.to_numpy("bf16")
    return source(
        path / "model.safetensors",
        layers__0__up__weight=RNG.normal(size=(6, 128)).astype(bf16),
        norm__weight=RNG.normal(size=128).astype(bf16),
        scalar=np.float16(3).reshape(()),
        experts=RNG.normal(size=(2, 3, 64)).astype(np.float32),
    )


def stored(folder: Path, name: str) -> tuple[str, tuple[int, ...]]:
    array = np.load(folder / "tensors" / f"{name}.npy", mmap_mode="r")
    return array.dtype.str, array.shape


WRITTEN = {
    "int8": {"q": ("|i1", (6, 128)), "s": ("<f4", (6,))},
    "int8:group_size=64": {"q": ("|i1", (6, 128)), "s": ("<f4", (6, 2))},
    "int4": {"q4a": ("|u1", (6, 64)), "s4a": ("<f4", (6, 4)), "z4a": ("<f4", (6, 4))},
    "affine:bits=4,zero=7,group_size=64": {"q4": ("|u1", (6, 64)), "s4": ("<f4", (6, 2))},
    "int3": {"q3": ("|u1", (288,)), "s3": ("<f4", (12,)), "z3": ("<f4", (12,))},
    "int2": {"q2": ("|u1", (6, 32)), "s2": ("<f4", (6, 2)), "z2": ("<f4", (6, 2))},
    "nf4": {"nf4": ("|u1", (6, 64)), "s_nf4": ("<f4", (6, 4))},
    "f16": {"pt": ("<f2", (6, 128))},
}


@pytest.mark.parametrize("encode", WRITTEN)
def test_arrays_have_the_shapes_that_squish_gives_them(tmp_path: Path, encode: str) -> None:
    rule = encode if not encode.startswith("affine") else f"*.weight={encode}"
    by_layer = f"layers.*={rule.removeprefix('*.weight=')}"
    planned = squish.convert(model(tmp_path), tmp_path / "out", "npydir", by_layer, dry_run=True)
    report = squish.convert(tmp_path / "model.safetensors", tmp_path / "out", "npydir", by_layer)
    assert planned.size == report.size
    for suffix, expected in WRITTEN[encode].items():
        assert stored(tmp_path / "out", f"layers__0__up__weight__{suffix}") == expected
    assert stored(tmp_path / "out", "layers__0__up__weight__shape") == ("<i8", (2,))
    assert stored(tmp_path / "out", "scalar__pt") == ("<f2", ())
    assert (tmp_path / "out" / "tensors" / ".manifest_ready").read_bytes() == b""
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["norm.weight"] == "norm__weight"
    report = squish.verify(tmp_path / "out", deep=True)
    assert report.clean, report.problems


def test_bfloat16_is_kept_exactly_as_float32(tmp_path: Path) -> None:
    report = squish.convert(model(tmp_path), tmp_path / "out", "npydir")
    assert {str(step.exactness) for step in report.steps} == {"bytes", "values(bf16)"}
    before, after = squish.open(tmp_path / "model.safetensors"), squish.open(tmp_path / "out")
    for name in before:
        np.testing.assert_array_equal(after[name].numpy(), before[name].numpy().astype(after[name].numpy().dtype))


def test_int8_follows_its_formula(tmp_path: Path) -> None:
    """Scale = absmax / 127, codes rounded half to even: at most half a step away."""
    squish.convert(model(tmp_path), tmp_path / "out", "npydir", "layers*=int8")
    values = squish.open(tmp_path / "model.safetensors")["layers.0.up.weight"].numpy().astype(np.float64)
    place = tmp_path / "out" / "tensors"
    q, s = (np.load(place / f"layers__0__up__weight__{suffix}.npy").astype(np.float64) for suffix in "qs")
    np.testing.assert_allclose(s, np.abs(values).max(axis=1) / 127, rtol=1e-6)
    assert (np.abs(q * s[:, None] - values) <= s[:, None] / 2 * (1 + 1e-5)).all()  # 127 steps have 4e-6 of rounding


@pytest.mark.parametrize("name", CASES)
def test_every_dialect_is_copied_without_touching_its_codes(tmp_path: Path, name: str) -> None:
    shape, files, values = CASES[name]
    folder = make(tmp_path / "m", {"a.b": {**files, "shape": shape}})
    report = squish.convert(folder, tmp_path / "out", "npydir")
    assert {step.action for step in report.steps} == {"copy"}
    np.testing.assert_array_equal(squish.open(tmp_path / "out")["a.b"].numpy(), values)


def test_keys_are_safe_unique_and_short(tmp_path: Path) -> None:
    from squish_npydir.write.writer import keys

    names = ["a.b.c", "a.b__c", "A.b.c", "x/../y", "\u00e9", "e\u0301", "n" * 900, "..", "a b"]
    key_of = keys(names)
    assert key_of["a.b.c"] == "a__b__c"
    assert len({key.casefold() for key in key_of.values()}) == len(names)
    arrays = {name.replace(".", "__"): np.ones(2, np.float32) for name in ("a.b.c", "n" * 900)}
    squish.convert(source(tmp_path / "s.safetensors", **arrays), tmp_path / "out", "npydir")
    assert sorted(squish.open(tmp_path / "out")) == ["a.b.c", "n" * 900]


KEPT = {
    "ztensor:wire=2": "affine:bits=4,zero=7,group_size=32", "uqff": "int4", "mlx": "int4", "squizd": "int2",
}  # fmt: skip
"""Target -> an encoding that it stores without changing codes."""


@pytest.mark.parametrize("target", KEPT)
def test_codes_survive_conversion_to_other_formats_and_back(tmp_path: Path, target: str) -> None:
    weights = {"model__layers__0__mlp__up_proj__weight": RNG.normal(size=(64, 128)).astype(np.float32)}
    squish.convert(source(tmp_path / "s.safetensors", **weights), tmp_path / "one", "npydir", KEPT[target])
    middle = tmp_path / ("middle.uqff" if target == "uqff" else "middle")
    for report in (
        squish.convert(tmp_path / "one", middle, target),
        squish.convert(middle, tmp_path / "two", "npydir"),
    ):
        assert {step.action for step in report.steps} <= {"copy", "widen", "repack"}
    values = [squish.open(tmp_path / folder)["model.layers.0.mlp.up_proj.weight"].numpy() for folder in ("one", "two")]
    np.testing.assert_array_equal(*values)


def test_codecs_without_a_dialect_are_refused(tmp_path: Path) -> None:
    for rule in ("affine:bits=8,offset=bias", "mx", "affine:bits=4,axis=-2"):
        with pytest.raises(TensorError) as caught:
            squish.convert(model(tmp_path), tmp_path / "out", "npydir", f"layers*={rule}")
        assert (caught.value.tensor, caught.value.code) == ("layers.0.up.weight", "refused")


def test_dropped_assets_are_listed(tmp_path: Path) -> None:
    assets = {"config.json": Part(dtype="u8", shape=(5,)), "x.bin": Part(dtype="u8", shape=(7,))}
    plan = NpyDir().plan_file([], {"quant_label": "INT8", "other": 1}, assets, {})
    assert plan.dropped == (Dropped("asset", "x.bin"),)


def test_a_models_files_survive_with_its_named_chat_templates(tmp_path: Path) -> None:
    files = {"config.json": b"{}", "chat_template.jinja": b"d", "additional_chat_templates/rag.jinja": b"r"}
    (tmp_path / "in" / "additional_chat_templates").mkdir(parents=True)
    squish.save(tmp_path / "in" / "model.safetensors", {"a": np.ones((2, 32), np.float32)})
    for name, data in files.items():
        (tmp_path / "in" / name).write_bytes(data)
    squish.convert(tmp_path / "in", tmp_path / "out", "npydir")
    with squish.open(tmp_path / "out") as file:
        assert {name: bytes(buffer.raw) for name, buffer in file.assets.items()} == files


def test_typed_metadata_survives(tmp_path: Path) -> None:
    tokens = Typed("array:str", ["a", "b"])
    meta = {"general.architecture": Typed("str", "x"), "quant_label": "INT8", "tokenizer.ggml.tokens": tokens}
    squish.save(tmp_path / "out", {"a": np.ones(4, np.float32)}, format="npydir", metadata=meta)
    with squish.open(tmp_path / "out") as file:
        assert (dict(file.index.meta), file.problems) == (meta, ())
    assert json.loads((tmp_path / "out" / "stats.json").read_text()) == {"quant_label": "INT8"}


def test_damaged_metadata_is_a_problem_and_the_tensors_are_read(tmp_path: Path) -> None:
    squish.save(tmp_path / "out", {"a": np.ones(4, np.float32)}, format="npydir", metadata={"x": Typed("u32", 1)})
    (tmp_path / "out" / "squish.meta").write_bytes(b"no CBOR")
    with squish.open(tmp_path / "out") as file:
        assert [(each.code, each.where) for each in file.problems] == [("meta", "squish.meta")]
        np.testing.assert_array_equal(file["a"].numpy(), np.ones(4, np.float32))


def test_mixed_precision_on_the_way_in(tmp_path: Path) -> None:
    weights = {f"layers__{number}__up__weight": RNG.normal(size=(64, 128)).astype(np.float32) for number in range(4)}
    weights["layers__1__up__weight"][3, 3] = 100
    weights |= {f"{name}__weight": RNG.normal(size=(64, 128)).astype(np.float32) for name in ("embed", "lm_head")}
    model_file = source(tmp_path / "s.safetensors", **weights)
    rules = ["mixed:bpw=6", "layers.3.*=int8"]
    report = squish.convert(model_file, tmp_path / "out", "npydir", rules)
    notes = {step.name: step.note for step in report.steps}
    assert "sensitive" in notes["embed.weight"]
    assert "outliers" in notes["layers.1.up.weight"]
    assert "by mixed" in notes["layers.0.up.weight"]
    assert not notes["layers.3.up.weight"]
    labels = {name: tensor.spec.encodings[0].label for name, tensor in squish.open(tmp_path / "out").items()}
    assert labels["layers.3.up.weight"] == "int8"
    assert {labels["layers.0.up.weight"], labels["layers.2.up.weight"]} <= {"int2", "int3 milo", "int4", "int8"}


def test_a_rule_for_some_tensors_may_leave_the_choice_as_well(tmp_path: Path) -> None:
    weights = {f"layers__{number}__up__weight": RNG.normal(size=(64, 128)).astype(np.float32) for number in range(4)}
    model_file = source(tmp_path / "s.safetensors", **weights)
    steps = squish.convert(model_file, tmp_path / "out", "npydir", ["int8", "layers.[01].*=mixed:bpw=6"]).steps
    assert ["by mixed" in step.note for step in steps] == [True, True, False, False]
    assert {step.spec.encodings[0].label for step in steps[2:]} == {"int8"}


def test_a_low_rank_correction_reduces_the_error(tmp_path: Path) -> None:
    low = RNG.normal(size=(64, 2)) @ RNG.normal(size=(2, 128))
    weights = {"layers__0__up__weight": (low + RNG.normal(size=(64, 128))).astype(np.float32)}
    model_file = source(tmp_path / "s.safetensors", **weights)
    snr = {}
    for rule in ("int3", "lowrank:rank=8(int3)"):
        report = squish.convert(model_file, tmp_path / rule, "npydir", rule)
        quality = report.steps[0].quality
        assert quality is not None
        snr[rule] = quality.snr
        assert squish.open(tmp_path / rule)["layers.0.up.weight"].spec.encodings[0].label == "int3 milo"
    assert snr["lowrank:rank=8(int3)"] > snr["int3"] + 1
    assert stored(tmp_path / "lowrank:rank=8(int3)", "layers__0__up__weight__lra") == ("<f4", (64, 8))
    with pytest.raises(TensorError) as caught:
        squish.convert(model_file, tmp_path / "out", "mlx", "*=lowrank:rank=8(int4)")
    assert caught.value.code == "refused"


@pytest.mark.parametrize("rule", ["int4", "int3", "int2", "int8"])
def test_the_search_for_scales_is_used(tmp_path: Path, rule: str) -> None:
    weights = {"layers__0__up__weight": RNG.standard_t(3, size=(64, 128)).astype(np.float32)}
    model_file = source(tmp_path / "s.safetensors", **weights)
    errors = []
    for search in ("", "search=mse"):
        spec = f"{rule}:{search}" if search else rule
        quality = squish.convert(model_file, tmp_path / f"out{search}", "npydir", spec).steps[0].quality
        assert quality is not None
        errors.append(quality.nmse)
    assert errors[1] < errors[0] or rule == "int8"
    assert squish.verify(tmp_path / "outsearch=mse", deep=True).clean


@pytest.mark.parametrize("rule", [None, "f32"])
def test_a_directory_goes_to_safetensors_shards_and_back(tmp_path: Path, rule: str | None) -> None:
    squish.convert(model(tmp_path), tmp_path / "one", "npydir", "layers.*=int8" if rule else None)
    to = "safetensors:max_shard_size=2KB"
    squish.convert(tmp_path / "one", tmp_path / "shards", to, rule)
    files = sorted(path.name for path in (tmp_path / "shards").glob("*.safetensors"))
    assert len(files) > 1
    index = json.loads((tmp_path / "shards" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == set(files)
    squish.convert(tmp_path / "shards", tmp_path / "two", "npydir")
    assert squish.diff(tmp_path / "shards", tmp_path / "two").same
    before = squish.open(tmp_path / "one")
    for name, tensor in squish.open(tmp_path / "two").items():
        np.testing.assert_array_equal(tensor.numpy(), before[name].numpy())


@pytest.mark.skipif(os.name != "posix", reason="no signals elsewhere")
def test_a_terminated_conversion_leaves_no_partial_files(tmp_path: Path) -> None:
    weights = {f"w{number}": np.ones((1024, 4096), np.float32) for number in range(6)}
    model_file = source(tmp_path / "s.safetensors", **weights)
    command = [sys.executable, "-m", "squish_core", "convert", str(model_file), str(tmp_path / "m"), "--to", "npydir"]
    with subprocess.Popen([*command, "--encode", "int8"], stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not list(tmp_path.glob(".m.*.part")):
            time.sleep(0.001)
        process.terminate()
    assert process.returncode == 143
    assert [path.name for path in tmp_path.iterdir()] == ["s.safetensors"]


@pytest.fixture
def doubly_encoded(tmp_path: Path) -> Path:
    """A directory whose matrix has codes of 8 bits and of 4, of which the latter are read."""
    source(tmp_path / "m.safetensors", up__weight=RNG.normal(size=(8, 128)).astype(np.float32))
    for rule in ("int8", "int4"):
        squish.convert(tmp_path / "m.safetensors", tmp_path / rule, "npydir", rule)
    for file in (tmp_path / "int4" / "tensors").glob("*4a.npy"):
        shutil.copy(file, tmp_path / "int8" / "tensors")
    return tmp_path / "int8"


def test_the_report_says_when_other_codes_are_converted_than_are_read(doubly_encoded: Path, tmp_path: Path) -> None:
    with squish.open(doubly_encoded) as file:
        assert [encoding.label for encoding in file["up.weight"].spec.encodings] == ["int4", "int8"]
    report = squish.convert(doubly_encoded, tmp_path / "out.zt", "ztensor")
    assert report.steps[0].note == "converted from int8, while reading the source gives int4"
    assert report.dropped == (Dropped("encoding", "int4", where="up.weight"),)
    assert not squish.diff(doubly_encoded, tmp_path / "out.zt").same


def test_the_report_has_no_note_when_the_first_encoding_is_converted(doubly_encoded: Path, tmp_path: Path) -> None:
    report = squish.convert(doubly_encoded, tmp_path / "mlx", "mlx")
    assert report.steps[0].note == ""
    assert report.dropped == (Dropped("encoding", "int8", where="up.weight"),)
    assert [item.state for item in squish.diff(doubly_encoded, tmp_path / "mlx").tensors] == ["values"]


def test_a_directory_is_not_deleted_for_one_of_its_encodings(doubly_encoded: Path, tmp_path: Path) -> None:
    with pytest.raises(SquishError) as caught:
        squish.convert(doubly_encoded, tmp_path / "out.zt", "ztensor", delete_source=True)
    assert caught.value.code == "delete"
    assert not (tmp_path / "out.zt").exists()
    assert len(list((doubly_encoded / "tensors").glob("*.npy"))) == 6


def test_int3_is_written_for_its_codec_and_not_for_a_label(tmp_path: Path) -> None:
    from attrs import evolve
    from squish_npydir.write.accept import accepts

    from squish_core.api import CodecSpec, Encoding, Refusal

    shape, files, _ = CASES["int3 of the sqint2 path"]
    spec = squish.open(make(tmp_path / "m", {"a": {**files, "shape": shape}})).index.tensors["a"]
    (encoding,) = spec.encodings
    assert encoding.codec == CodecSpec("npydir.int3", {"group_size": 32})
    relabeled = accepts(spec, evolve(encoding, label="x"))
    assert isinstance(relabeled, Encoding)
    assert relabeled.label == "int3"
    affine = CodecSpec("affine", {"bits": 8, "group_size": 32, "offset": "bias"})
    assert isinstance(accepts(spec, evolve(encoding, codec=affine)), Refusal)
