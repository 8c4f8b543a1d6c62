"""Habits of Squish's architecture document: what stays as it is, float16, sizes of INT4, manifest, tiers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
from npydir_samples import int8, make, source
from squish_cli import main
from squish_npydir.tiers import background, cache, choice, resources

import squish_core as squish
from squish_core.api import FormatError, SquishError

RNG = np.random.default_rng(11)


def model(folder: Path, columns: int = 256) -> Path:
    return source(
        folder / "model.safetensors",
        model__embed_tokens__weight=RNG.normal(size=(16, columns)).astype(np.float32),
        model__layers__0__up__weight=RNG.normal(size=(16, columns)).astype(np.float32),
        model__norm__weight=RNG.normal(size=columns).astype(np.float32),
        lm_head__weight=RNG.normal(size=(16, columns)).astype(np.float32),
    )


def first_labels(folder: Path) -> dict[str, str]:
    with squish.open(folder) as file:
        return {name: file[name].spec.encodings[0].label for name in file}


@pytest.mark.parametrize("rule", ["int8", "int4", "nf4"])
def test_a_rule_without_a_pattern_leaves_embeddings_and_heads(tmp_path: Path, rule: str) -> None:
    squish.convert(model(tmp_path), tmp_path / "out", "npydir", rule)
    labels = first_labels(tmp_path / "out")
    assert labels.pop("model.layers.0.up.weight") == rule
    assert set(labels.values()) == {"passthrough"}


def test_a_rule_with_a_pattern_quantizes_embeddings_and_heads(tmp_path: Path) -> None:
    squish.convert(model(tmp_path), tmp_path / "out", "npydir", ["*embed*=int8", "lm_head*=int4"])
    labels = first_labels(tmp_path / "out")
    assert labels["model.embed_tokens.weight"] == "int8"
    assert labels["lm_head.weight"] == "int4"


@pytest.mark.parametrize("encode", [None, "int8", "mixed:bits=8"])
def test_passthrough_stores_what_no_rule_changes_as_float16(tmp_path: Path, encode: str | None) -> None:
    report = squish.convert(model(tmp_path), tmp_path / "out", "npydir:passthrough=f16", encode)
    with squish.open(tmp_path / "out") as file, squish.open(tmp_path / "model.safetensors") as origin:
        for name in ("model.norm.weight", "lm_head.weight", "model.embed_tokens.weight"):
            assert file[name].dtype == "f16"
            np.testing.assert_array_equal(file[name].numpy(), origin[name].numpy().astype(np.float16))
    assert {step.exactness.kind for step in report.steps} == {"bounded"}


def test_passthrough_refuses_values_beyond_float16_and_keeps_tensors_by_name(tmp_path: Path) -> None:
    origin = source(tmp_path / "m.safetensors", big__weight=np.full((2, 4), 1e6, np.float32))
    with pytest.raises(SquishError) as caught:
        squish.convert(origin, tmp_path / "out", "npydir:passthrough=f16")
    assert (caught.value.code, caught.value.tensor) == ("range", "big.weight")
    squish.convert(origin, tmp_path / "out", "npydir:passthrough=f16", "big.*=keep")
    assert squish.open(tmp_path / "out")["big.weight"].dtype == "f32"


def test_an_option_has_few_values(tmp_path: Path) -> None:
    for target in ("npydir:passthrough=i8", "npydir:scales=f64"):
        with pytest.raises(SquishError) as caught:
            squish.convert(model(tmp_path), tmp_path / "out", target, "int4")
        assert caught.value.code == "option"


def code_bytes(folder: Path) -> int:
    """Bytes of the codes, scales and biases of the quantized tensor."""
    with squish.open(folder) as file:
        spec = file["model.layers.0.up.weight"].spec
        return sum(part.nbytes for part in spec.encodings[0].parts.values())


def test_int4_takes_half_of_int8(tmp_path: Path) -> None:
    """In groups of 128 with f16 scales, against INT8 in groups of 64; by rows, against INT8 by rows."""
    origin = model(tmp_path, 1536)
    sizes = {}
    for name, target, rule in (
        ("groups8", "npydir", "int8:group_size=64"),
        ("groups4", "npydir:scales=f16", "int4:group_size=128"),
        ("rows8", "npydir", "int8"),
        ("rows4", "npydir", "affine:bits=4,zero=7"),
        ("default4", "npydir", "int4"),
    ):
        squish.convert(origin, tmp_path / name, target, rule)
        sizes[name] = code_bytes(tmp_path / name)
        assert squish.verify(tmp_path / name, deep=True).ok
    assert sizes["groups4"] / sizes["groups8"] == 0.5
    assert sizes["rows4"] / sizes["rows8"] == pytest.approx(0.5, abs=0.002)
    assert sizes["default4"] / sizes["groups8"] == pytest.approx(0.706, abs=0.001)


def test_scales_of_float16_decode_to_what_they_hold(tmp_path: Path) -> None:
    squish.convert(model(tmp_path), tmp_path / "out", "npydir:scales=f16", "int4:group_size=128")
    stem = tmp_path / "out" / "tensors" / "model__layers__0__up__weight"
    packed, scale, bias = (np.load(f"{stem}__{suffix}.npy") for suffix in ("q4a", "s4a", "z4a"))
    assert scale.dtype == bias.dtype == np.float16
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(16, 256)
    values = codes * np.repeat(scale.astype(np.float32), 128, 1) + np.repeat(bias.astype(np.float32), 128, 1)
    np.testing.assert_array_equal(squish.open(tmp_path / "out")["model.layers.0.up.weight"].numpy(), values)


def test_int8_becomes_int4_of_half_the_size_in_place(tmp_path: Path) -> None:
    squish.convert(model(tmp_path, 1536), tmp_path / "out", "npydir", "int8:group_size=64")
    before = code_bytes(tmp_path / "out")
    copytree(tmp_path / "out", tmp_path / "symmetric")
    cache.build(tmp_path / "out", "int4a:group_size=128,scales=f16")
    built = cache.build(tmp_path / "symmetric", "int4")
    assert built.savings_pct == 50
    assert code_bytes(tmp_path / "out") / before == code_bytes(tmp_path / "symmetric") / before == 0.5
    for tier in ("4bit:group_size=64", "int4:bits=3"):
        with pytest.raises(FormatError) as caught:
            cache.build(tmp_path / "out", tier)
        assert caught.value.code == "option"


def test_a_manifest_from_keys_to_names_is_read(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", {"a.weight": int8((4, 64)), "b.c": int8((4, 64), 1), "plain": int8((4, 64), 2)})
    expected = {name: tensor.numpy() for name, tensor in squish.open(folder).items()}
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({key: name for name, key in manifest.items()}))
    with squish.open(folder) as file:
        assert list(file) == list(expected)
        assert not file.problems
        for name, values in expected.items():
            np.testing.assert_array_equal(file[name].numpy(), values)


def test_a_manifest_whose_keys_squish_does_not_make_is_not_inverted(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", {"a__b": int8((4, 64)), "c": int8((4, 64), 1)})
    (folder / "manifest.json").write_text(json.dumps({"a__b": "a__b", "c": "c"}))
    assert list(squish.open(folder)) == ["a__b", "c"]


@pytest.mark.parametrize("direction", ["names", "keys"])
def test_a_manifest_of_other_keys_is_read_in_the_direction_of_its_files(tmp_path: Path, direction: str) -> None:
    """The document does not say how a safe key is made of a name."""
    keys = {"a.weight": "t0", "b.c": "t1"}
    folder = make(tmp_path / "m", {name: int8((4, 64), seed) for seed, name in enumerate(keys)})
    for name, key in keys.items():
        for path in list((folder / "tensors").glob(f"{name.replace('.', '__')}__*")):
            path.rename(path.with_name(path.name.replace(name.replace(".", "__"), key)))
    pairs = keys if direction == "names" else {key: name for name, key in keys.items()}
    (folder / "manifest.json").write_text(json.dumps(pairs))
    with squish.open(folder) as file:
        assert list(file) == ["a.weight", "b.c"]
        assert not file.problems


def test_names_without_dots_are_not_taken_for_keys(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", {"x": int8((4, 64))})
    for path in list((folder / "tensors").glob("x__*")):
        path.rename(path.with_name(path.name.replace("x__", "x.1__")))
    (folder / "manifest.json").write_text(json.dumps({"x": "x.1"}))
    with squish.open(folder) as file:
        assert list(file) == ["x"]
        assert not file.problems


def test_finalized_arrays_may_have_the_tensors_names(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", {"a.weight": int8((4, 64)), "x": int8((4, 64), 1)})
    (folder / "manifest.json").write_text(json.dumps({"a.weight": "a__weight", "../x": "x"}))
    (folder / "finalized").mkdir()
    for path in ("finalized/a.weight.npy", "x.npy"):
        np.save(folder / path, np.full((4, 64), 3, np.float16))
    (folder / "finalized" / ".ready").touch()
    with squish.open(folder) as file:
        assert file["a.weight"].spec.encodings[0].label == "finalized"
        assert (file["a.weight"].numpy() == 3).all()
        assert file["../x"].spec.encodings[0].label == "int8"


def test_an_interrupted_conversion_to_int4_is_told_from_a_finished_one(tmp_path: Path) -> None:
    squish.convert(model(tmp_path), tmp_path / "out", "npydir", "int8")
    cache.build(tmp_path / "out", "int4")
    assert not squish.open(tmp_path / "out").problems
    (tmp_path / "out" / ".squish_int4_ready").unlink()
    (problem,) = squish.open(tmp_path / "out").problems
    assert (problem.code, problem.where) == ("tier", "int4")


@pytest.mark.parametrize(("packed", "finished", "reported"), [
    ((), False, False), ((), True, True), (("b",), False, True), (("b", "c"), False, True), (("b",), True, False),
    (("b", "c"), True, False),
])  # fmt: skip
def test_the_arrays_of_the_document_show_whether_a_conversion_to_int4_is_finished(
    tmp_path: Path, packed: tuple[str, ...], finished: bool, reported: bool
) -> None:
    """The document stores q4 and s4 beside q and s, and writes the sentinel at the end."""
    codes = {"q4": np.zeros((4, 32), np.uint8), "s4": np.ones((4, 1), np.float32)}
    folder = make(tmp_path / "m", {name: {**int8((4, 64)), **(codes if name in packed else {})} for name in ("b", "c")})
    if finished:
        (folder / ".squish_int4_ready").touch()
    with squish.open(folder) as file:
        assert [problem.where for problem in file.problems] == ["int4"] * reported


@pytest.mark.parametrize(
    ("encode", "family", "memory", "tiers"),
    [
        ("int4", "llama", 1 << 40, ("squish_4bit",)), ("int8", "llama", 1 << 40, ("squish_weights", "finalized")),
        ("int8", "llama", 1 << 10, ("finalized",)), ("int3", "qwen3", 1 << 40, ("squish_3bit",)),
        ("int3", "llama", 1 << 40, ("squish_weights", "finalized")),
        ("int3", None, 1 << 40, ("squish_weights", "finalized")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("setting", [True, False])
def test_the_first_load_builds_the_next_tier(
    tmp_path: Path,
    encode: str,
    family: str | None,
    memory: int,
    tiers: tuple[str, ...],
    setting: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "out"
    squish.convert(model(tmp_path), folder, "npydir", encode)
    if family:
        (folder / "config.json").write_text(json.dumps({"model_type": family}))
    monkeypatch.setattr(choice, "machine_memory", lambda: (memory, None))
    if setting:
        monkeypatch.setenv("SQUISH_TIERS", "build")
    with squish.open(folder, None if setting else "npydir:tiers=build") as file:
        assert file.index.caches == ()
        assert len(file.index.pending_caches) == (len(tiers) if setting else 0)
        assert (background.wait(folder) is None) == setting  # opening and plans read no values
        file.plan("numpy")
        values = {name: tensor.numpy() for name, tensor in file.items()}
    build = background.wait(folder)
    assert build is not None
    assert build.error is None
    with squish.open(folder, "npydir:tiers=build") as file:
        assert file.index.caches == tiers
        assert file.index.pending_caches == ()
        np.testing.assert_allclose(file["lm_head.weight"].numpy(), values["lm_head.weight"], rtol=0.01)
    assert background.start(folder) is None


def test_without_squish_convert_only_building_tiers_fails(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    squish.convert(model(tmp_path), folder, "npydir", "int8")
    code = f"""
import sys
sys.modules["squish_convert"] = None
import squish_core as squish
print(squish.open({str(folder)!r})["lm_head.weight"].numpy().shape[0])
try:
    squish.open({str(folder)!r}, "npydir:tiers=build")
except squish.MissingPluginError as error:
    print("squish-convert" in str(error))
"""
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.split() == ["16", "True"]


LOAD = """
import sys
import squish_core as squish
if sys.argv[2] == "slow":
    import time
    from squish_npydir.tiers import cache
    cache.check_resources = lambda *_: time.sleep(1)
if sys.argv[2] == "interrupted":
    from squish_npydir.tiers import cache
    real = cache.build
    def build(folder, tier):
        if tier == "finalized":
            import os
            os._exit(7)
        return real(folder, tier)
    cache.build = build
squish.open(sys.argv[1]).numpy()
if sys.argv[2] == "interrupted":
    import time
    time.sleep(60)
"""


def load_in_a_process(folder: Path, how: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SQUISH_TIERS": "build"}
    return subprocess.run(
        [sys.executable, "-c", LOAD, str(folder), how], capture_output=True, text=True, env=environment, timeout=120
    )


def test_a_short_process_finishes_its_tiers_before_it_ends(tmp_path: Path) -> None:
    squish.convert(model(tmp_path), tmp_path / "out", "npydir", "int8")
    ran = load_in_a_process(tmp_path / "out", "slow")
    assert (ran.returncode, ran.stdout) == (0, "")
    assert f"squish: finishing the tiers mlx and finalized of {tmp_path / 'out'}; if interrupted" in ran.stderr
    assert squish.open(tmp_path / "out").index.caches == ("squish_weights", "finalized")


def test_a_build_that_was_killed_goes_on_at_the_next_load(tmp_path: Path) -> None:
    squish.convert(model(tmp_path), tmp_path / "out", "npydir", "int8")
    assert load_in_a_process(tmp_path / "out", "interrupted").returncode == 7
    assert squish.open(tmp_path / "out").index.caches == ("squish_weights",)
    assert load_in_a_process(tmp_path / "out", "").returncode == 0
    assert squish.open(tmp_path / "out").index.caches == ("squish_weights", "finalized")


def test_info_and_plan_say_what_the_first_load_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    squish.convert(model(tmp_path), tmp_path / "out", "npydir", "int8")
    for command in ("info", "plan"):
        monkeypatch.delenv("SQUISH_TIERS", raising=False)
        assert main([command, str(tmp_path / "out")]) == 0
        assert "first load" not in capsys.readouterr().out
        monkeypatch.setenv("SQUISH_TIERS", "build")
        assert main([command, str(tmp_path / "out")]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert {"info": "mlx, finalized to be built by the first load", "plan": "first load builds mlx, finalized"}[
            command
        ] in shown
    assert background.wait(tmp_path / "out") is None
    monkeypatch.setenv("SQUISH_TIERS", "always")
    with pytest.raises(squish.UsageError) as caught:
        squish.open(tmp_path / "out")
    assert (caught.value.code, caught.value.expected) == ("option", "build")


def test_a_tier_that_cannot_be_built_leaves_the_model_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    squish.convert(model(tmp_path), tmp_path / "out", "npydir", "int8")
    monkeypatch.setattr(resources, "machine_memory", lambda: (1 << 30, 1 << 20))
    with squish.open(tmp_path / "out", "npydir:tiers=build") as file:
        assert file["lm_head.weight"].numpy().shape == (16, 256)
    build = background.wait(tmp_path / "out")
    assert build is not None
    assert build.error is not None
    assert build.error.code == "memory"


def test_tiers_are_built_on_this_machine_only(tmp_path: Path) -> None:
    squish.convert(model(tmp_path), tmp_path / "out", "npydir", "int8")
    with pytest.raises(SquishError) as caught:
        squish.open(tmp_path / "out", "npydir:tiers=keep")
    assert caught.value.code == "option"


def test_a_sealed_tier_loads_without_importing_what_decodes(tmp_path: Path) -> None:
    """What a fresh process waits for: the imports of a load."""
    folder = tmp_path / "out"
    squish.convert(model(tmp_path), folder, "npydir", "int8")
    cache.build(folder, "mlx")
    code = f"""
import sys
import squish_core as squish
arrays = squish.open({str(folder)!r}).numpy()
prefixes = (
    "squish_codecs.", "squish_core.backends", "squish_convert.", "squish_core.display", "squish_core.io.atomic",
    "squish_core.io.pin", "email", "hashlib", "importlib_metadata", "shutil", "lzma",
)
print(len(arrays), *(name for name in sys.modules if name.startswith(prefixes) or name.endswith(".writer")))
"""
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.split() == ["4"]
