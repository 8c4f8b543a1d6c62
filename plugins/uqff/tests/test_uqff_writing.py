"""What is written is UQFF 1.2: the tensors that mistral.rs writes, with the same bytes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import squish_core as squish

DATA = Path(__file__).with_name("data")
SETS = sorted(json.loads((DATA / "expected.json").read_text()))
BY_HAND = ("1.2.0-afq4-3shards", "1.2.0-hqq3-gs40")
NEWEST = [name for name in SETS if name.startswith("1.2.0") and name not in BY_HAND]


def stored(path: Path) -> tuple[dict[str, Any], bytes]:
    """Header, without the metadata, and data of a safetensors file."""
    raw = path.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:end])
    header.pop("__metadata__", None)
    return header, raw[end:]


@pytest.mark.parametrize("name", NEWEST)
def test_a_1_2_file_written_again_has_the_tensors_that_mistral_rs_wrote(name: str, tmp_path: Path) -> None:
    (source,) = (DATA / name).glob("*.uqff")
    squish.convert(source, tmp_path / "out", "uqff")
    assert stored(tmp_path / "out" / "model-0.uqff") == stored(source)


@pytest.mark.parametrize("name", SETS)
def test_every_generation_is_carried_to_1_2_without_touching_codes(name: str, expected: Any, tmp_path: Path) -> None:
    planned = squish.convert(DATA / name, tmp_path / "out", "uqff", dry_run=True)
    made = squish.convert(DATA / name, tmp_path / "out", "uqff")
    assert (made.size, {step.action for step in made.steps}) == (planned.size, {"copy"})
    with squish.open(tmp_path / "out") as file:
        assert (file.format, file.index.version) == ("uqff", "1.2.0")
        for key, (layer, _, wanted) in expected[name].items():
            values = file[key if key in file else layer].numpy().astype("<f4")
            assert hashlib.sha256(values.tobytes()).hexdigest() == wanted


def test_shards_are_cut_by_size_and_listed_in_the_report(tmp_path: Path) -> None:
    source = DATA / "1.2.0-moe-afq4"
    squish.convert(source, tmp_path / "out", "uqff:name=afq4,max_shard_size=40KB")
    report = json.loads((tmp_path / "out" / "uqff_report.json").read_text())
    (output,) = report["outputs"]
    shards = sorted(path.name for path in (tmp_path / "out").glob("*.uqff"))
    assert sorted(output["shards"]) == shards == [f"afq4-{number}.uqff" for number in range(len(shards))]
    assert len(shards) > 3
    assert (output["layers"], output["actual_counts"]) == (9, {"afq4": 7, "afq6": 2})
    with squish.open(tmp_path / "out" / shards[2]) as file, squish.open(source) as old:
        assert set(file) == set(old)
        np.testing.assert_array_equal(file["lm_head.weight"].numpy(), old["lm_head.weight"].numpy())


def test_what_is_no_layer_goes_into_the_residual_with_the_assets_beside_it(tmp_path: Path) -> None:
    squish.convert(DATA / "1.2.0-moe-afq4", tmp_path / "out", "uqff")
    assert stored(tmp_path / "out" / "residual.safetensors") == stored(DATA / "1.2.0-moe-afq4" / "residual.safetensors")
    config = (DATA / "1.2.0-moe-afq4" / "config.json").read_bytes()
    assert (tmp_path / "out" / "config.json").read_bytes() == config


@pytest.mark.parametrize(
    ("encoding", "counts"),
    [
        ("affine:bits=4,group_size=64,word=u32,offset=bias", "afq4"), ("mx", "mxfp4"), ("uqff.f8q8", "f8q8"),
        ("q4_0", "q4_0"),
    ],
)  # fmt: skip
def test_dense_weights_are_encoded_on_request(encoding: str, counts: str, tmp_path: Path, uqff: Any) -> None:
    values = np.random.default_rng(0).standard_normal((16, 128)).astype("<f4")
    (tmp_path / "m.safetensors").write_bytes(
        uqff.safetensors({"a.q_proj.weight": ("F32", [16, 128], values.tobytes())})
    )
    squish.convert(tmp_path / "m.safetensors", tmp_path / "out", "uqff", encode=encoding)
    report = json.loads((tmp_path / "out" / "uqff_report.json").read_text())
    assert report["outputs"][0]["actual_counts"] == {counts: 1}
    with squish.open(tmp_path / "out") as file:
        assert np.abs(file["a.q_proj.weight"].numpy() - values).mean() < 0.2


def test_an_unquantised_linear_layer_is_a_layer(tmp_path: Path, uqff: Any) -> None:
    raw = {name: ("F32", [2, 2], bytes(16)) for name in ("a.q_proj.weight", "model.embed_tokens.weight")}
    (tmp_path / "m.safetensors").write_bytes(uqff.safetensors(raw))
    squish.convert(tmp_path / "m.safetensors", tmp_path / "out", "uqff")
    assert "a.q_proj.weight.format" in stored(tmp_path / "out" / "model-0.uqff")[0]
    assert list(stored(tmp_path / "out" / "residual.safetensors")[0]) == ["model.embed_tokens.weight"]


def test_codecs_that_uqff_has_not_are_refused(tmp_path: Path, uqff: Any) -> None:
    source = tmp_path / "m.safetensors"
    source.write_bytes(uqff.safetensors({"a.q_proj.weight": ("F32", [16, 128], bytes(8192))}))
    with pytest.raises(squish.SquishError, match=r"AFQ has .* not 5 in 32"):
        squish.convert(source, tmp_path / "out", "uqff", encode="*=affine:bits=5,group_size=32")


@pytest.mark.parametrize("target", ["gguf", "ztensor"])
def test_ggml_blocks_keep_their_bytes_in_other_formats_and_back(target: str, tmp_path: Path) -> None:
    pytest.importorskip(f"squish_{target}")
    source = DATA / "1.2.0-q4_0"
    there = squish.convert(source, tmp_path / "there", target)
    back = squish.convert(tmp_path / "there", tmp_path / "back", "uqff")
    assert {step.action for made in (there, back) for step in made.steps} == {"copy"}
    old, new = squish.open(source), squish.open(tmp_path / "back")
    for name in old:
        assert old[name].parts()["data"].numpy().tobytes() == new[name].parts()["data"].numpy().tobytes()
