"""SQUIZD to SQUIZD keeps the draft head, the CoreML package, masks, names and shapes."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cbor2
import numpy as np
import pytest
from squish_cli import main

import squish_core as squish
from squish_core.api import SquishError, Typed


@pytest.fixture
def archive() -> bytes:
    spool = io.BytesIO()
    with zipfile.ZipFile(spool, "w") as package:
        package.writestr("Manifest.json", "{}")
        package.writestr("Data/model.mlmodel", bytes(range(256)) * 9)
    return spool.getvalue()


@pytest.fixture
def model(sq: SimpleNamespace, archive: bytes, tmp_path: Path) -> Path:
    """A file with every kind of section."""
    rng = sq.rng
    keep = [1, 0, 1, 1, 0, 1, 1, 1]
    layers = [
        [
            sq.int4(rng, 32, 64, 32, name=f"layers.{layer}.mlp.up.weight", keep=keep),
            sq.int4(rng, 64, 64, 32, name=f"layers.{layer}.attn.q.weight"),
            sq.npcl(rng, (64,), 2, name=f"layers.{layer}.norm.weight"),
        ]
        for layer in range(2)
    ]
    outside = [sq.npcl(rng, (20, 64), 2, name="embed.weight")]
    draft = [
        [sq.int4(rng, 16, 64, 32, name=f"d{layer}.fc.weight"), sq.npcl(rng, (16,), 1, name=f"d{layer}.norm")]
        for layer in range(3)
    ]

    def change(root: dict[str, Any]) -> dict[str, Any]:
        return {**root, "attrs": {"calibration": {"set": "wiki", "rows": [1, 2, 3]}, "tool": "x 1"}}

    path = tmp_path / "model.squizd"
    path.write_bytes(
        sq.build(layers, outside, names=True, side=16, draft=draft, archive=archive, change=change, arch=3)
    )
    return path


def converted(source: Path, **arguments: Any) -> tuple[squish.Conversion, squish.File]:
    target = source.with_name("again.squizd")
    report = squish.convert(source, target, **arguments)
    findings = squish.verify(target, deep=True)
    assert findings.clean, findings.problems
    assert report.size == target.stat().st_size
    return report, squish.open(target, strict=True)


@pytest.mark.parametrize("full", [0, 2])
def test_the_last_layers_are_kept_without_tensors(sq: SimpleNamespace, tmp_path: Path, full: int) -> None:
    source = tmp_path / "model.squizd"
    layers = [[sq.npcl(sq.rng, (4,), name=f"layers.{layer}.norm.weight")] for layer in range(full)]
    source.write_bytes(sq.build([*layers, [], []], names=True))
    report, file = converted(source)
    assert file.index.attrs["layers"] == full + 2
    assert list(file) == [f"layers.{layer}.norm.weight" for layer in range(full)]
    assert not report.dropped
    assert squish.diff(source, file).same
    assert squish.verify(file.path).ok


@pytest.mark.parametrize("count", [3, Typed("u32", 3)])
def test_the_number_of_layers_is_that_of_the_metadata(tmp_path: Path, count: object) -> None:
    arrays = {"layers.0.norm.weight": np.ones(4, np.float32)}
    squish.save(tmp_path / "model.squizd", arrays, metadata={"squizd.layer_count": count})
    assert squish.open(tmp_path / "model.squizd").index.attrs["layers"] == 3


@pytest.mark.parametrize("count", [-1, 1 << 16, True, "3", 0])
def test_a_number_of_layers_that_does_not_fit_is_ignored(tmp_path: Path, count: object) -> None:
    arrays = {"layers.0.norm.weight": np.ones(4, np.float32)}
    squish.save(tmp_path / "model.squizd", arrays, metadata={"squizd.layer_count": count})
    assert squish.open(tmp_path / "model.squizd").index.attrs["layers"] == 1


def sections(path: Path) -> dict[str, bytes]:
    """Return the bytes of the draft head's blocks and of the package."""
    data = path.read_bytes()
    return {part.kind: data[part.offset : part.offset + part.size] for part in squish.open(path).index.sections}


def package_of(file: squish.File) -> bytes:
    (whole,) = file.index.whole
    return b"".join(map(bytes, file.array(whole.parts["archive"]).chunks()))


def mask_of(file: squish.File, name: str) -> bytes:
    return bytes(file[name].parts()["mask"].raw)


@pytest.mark.parametrize("encode", [None, {"*.q.weight": "f32"}, {"*.q.weight": "bf16", "embed*": "int2"}])
def test_a_rewrite_drops_nothing(model: Path, archive: bytes, encode: Any) -> None:
    report, file = converted(model, encode=encode)
    source = squish.open(model)
    assert report.dropped == ()
    assert package_of(file) == archive
    assert list(file) == list(source)
    assert file.metadata == source.metadata
    ours, theirs = source.children["eagle"], file.children["eagle"]
    assert list(theirs) == list(ours)
    assert theirs.index.meta == ours.index.meta == {"squizd.draft_layers": 3, "squizd.draft_vocab": 100}
    for name in ours:
        assert theirs[name].codec == ours[name].codec
        parts = {role: bytes(part.raw) for role, part in ours[name].parts().items() if role != "table"}
        assert {role: bytes(part.raw) for role, part in theirs[name].parts().items() if role != "table"} == parts
        assert theirs[name].numpy().tobytes() == ours[name].numpy().tobytes()
    assert {"EAGLE", "ANE_COREML", "SPARSE", "INT4"} <= set(file.index.attrs["flags"])


def test_a_second_rewrite_gives_the_same_bytes(model: Path) -> None:
    converted(model)
    again = model.with_name("again.squizd")
    first = again.read_bytes()
    squish.convert(again, model.with_name("third.squizd"))
    assert model.with_name("third.squizd").read_bytes() == first
    assert sections(again)["draft head"] == sections(model)["draft head"]


def test_diff_finds_no_difference(model: Path) -> None:
    converted(model)
    assert squish.diff(model, model.with_name("again.squizd")).same


def test_attributes_of_other_software_survive(model: Path) -> None:
    _, file = converted(model)
    stored = file.index.meta["squizd.attrs"].value
    assert cbor2.loads(stored) == {"calibration": {"set": "wiki", "rows": [1, 2, 3]}, "tool": "x 1"}
    names = sections(model.with_name("again.squizd"))["names"]
    assert cbor2.loads(names[8:])["attrs"]["tool"] == "x 1"


@pytest.mark.parametrize("encode", [None, {"*.q.weight": "int2"}])
def test_pruned_int4_stays_pruned(model: Path, encode: Any) -> None:
    _, file = converted(model, encode=encode, requantize=True)
    source = squish.open(model)
    for name in ("layers.0.mlp.up.weight", "layers.1.mlp.up.weight"):
        assert str(file[name].bound.encoding.codec) == str(source[name].bound.encoding.codec)
        assert mask_of(file, name) == mask_of(source, name)
        assert file[name].numpy().tobytes() == source[name].numpy().tobytes()
    assert file.index.attrs["sparsity"] == source.index.attrs["sparsity"]


@pytest.mark.parametrize("encode", ["int4:group_size=32", "int2", "bf16", "f32"])
def test_another_encoding_keeps_the_mask(model: Path, encode: str) -> None:
    _, file = converted(model, encode={"*.up.weight": encode}, requantize=True)
    source, name = squish.open(model), "layers.0.mlp.up.weight"
    assert file[name].bound.encoding.codec.id == "masked"
    assert mask_of(file, name) == mask_of(source, name)
    pruned = source[name].numpy().reshape(2, 16, 4, 16).any(axis=(1, 3))
    assert (file[name].numpy().astype("f4").reshape(2, 16, 4, 16).any(axis=(1, 3)) == pruned).all()
    assert not pruned.all()


def test_the_options_replace_the_draft_head_and_the_package(model: Path, tmp_path: Path) -> None:
    package = tmp_path / "m.mlpackage"
    package.mkdir()
    (package / "Manifest.json").write_text("{}")
    squish.convert(model, tmp_path / "draft.squizd", only=["layers.0.norm*"])
    report = squish.convert(
        model, tmp_path / "again.squizd", f"squizd:draft={tmp_path / 'draft.squizd'},coreml={package}"
    )
    assert {(item.kind, item.name) for item in report.dropped} == {("child", "eagle"), ("encoding", "ane.mlpackage")}


def test_a_conversion_of_some_tensors_drops_the_companions(model: Path, tmp_path: Path) -> None:
    report = squish.convert(model, tmp_path / "part.squizd", only="embed*")
    assert {(item.kind, item.name) for item in report.dropped} == {("child", "eagle"), ("encoding", "ane.mlpackage")}
    assert not squish.open(tmp_path / "part.squizd").children


def test_the_source_can_be_deleted(model: Path) -> None:
    report = squish.convert(model, model.with_name("again.squizd"), delete_source=True)
    assert report.deleted == (str(model),)
    assert not model.exists()


def test_a_draft_head_with_unsupported_blocks_is_reported_as_dropped(sq: SimpleNamespace, tmp_path: Path) -> None:
    rng = sq.rng
    data = sq.build([[sq.int2(rng, 4, 4)]], draft=[[sq.int2(rng, 4, 4)]])
    (tmp_path / "a.squizd").write_bytes(data)
    report = squish.convert(tmp_path / "a.squizd", tmp_path / "b.squizd")
    assert [(item.kind, item.name) for item in report.dropped] == [("child", "eagle")]
    assert "squizd.int2" in report.dropped[0].reason
    assert squish.verify(tmp_path / "b.squizd", deep=True).clean


def test_pruned_int4_is_shown_as_pruned(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = squish.open(model).summary()
    kinds = {kind.stored_as: kind.zeros for kind in summary.codecs}
    assert kinds == {"pruned squizd.int4": 0.25, "squizd.int4": None, "bf16": None}
    assert "25.0% zeros" in str(summary)
    assert main(["ls", str(model)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "pruned squizd.int4, 25.0% zeros" in line and "up.weight" in line]


@pytest.mark.parametrize("encode", ["int4:group_size=9", "int2:group_size=9", "tca_tbe", "bf16"])
def test_convolutions_keep_their_shape(tmp_path: Path, encode: str) -> None:
    import ml_dtypes

    values = np.random.default_rng(0).standard_normal((8, 4, 3, 3)).astype(ml_dtypes.bfloat16)
    arrays = dict.fromkeys(("layers.0.conv.weight", "stem.conv.weight"), values)
    squish.save(tmp_path / "a.squizd", arrays, encode=encode)
    squish.convert(tmp_path / "a.squizd", tmp_path / "b.squizd")
    squish.convert(tmp_path / "b.squizd", tmp_path / "c.safetensors", encode="bf16")
    for path in ("a.squizd", "b.squizd", "c.safetensors"):
        with squish.open(tmp_path / path) as file:
            assert [file[name].shape for name in arrays] == [(8, 4, 3, 3)] * 2
            assert [file[name].numpy().shape for name in arrays] == [(8, 4, 3, 3)] * 2
            assert squish.verify(tmp_path / path, deep=True).clean
    first, second = squish.open(tmp_path / "a.squizd"), squish.open(tmp_path / "b.squizd")
    assert all(first[name].numpy().tobytes() == second[name].numpy().tobytes() for name in arrays)


def eagle_head(hidden: int = 64, vocabulary: int = 512, draft: int = 128) -> dict[str, np.ndarray]:
    """A draft head with the names and shapes of EAGLE-3: `fc` takes the features of three layers of the model."""
    rng = np.random.default_rng(6)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return rng.normal(size=(rows, columns)).astype(np.float32)

    attention = {"q": (hidden, 2 * hidden), "k": (hidden // 2, 2 * hidden), "v": (hidden // 2, 2 * hidden)}
    return {
        "fc.weight": matrix(hidden, 3 * hidden),
        **{f"midlayer.self_attn.{name}_proj.weight": matrix(*shape) for name, shape in attention.items()},
        "midlayer.self_attn.o_proj.weight": matrix(hidden, hidden),
        "midlayer.mlp.gate_proj.weight": matrix(2 * hidden, hidden),
        "midlayer.mlp.up_proj.weight": matrix(2 * hidden, hidden),
        "midlayer.mlp.down_proj.weight": matrix(hidden, 2 * hidden),
        **{
            f"midlayer.{name}.weight": np.ones(hidden, np.float32)
            for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")
        },
        "norm.weight": np.ones(hidden, np.float32),
        "lm_head.weight": matrix(draft, hidden),
        "d2t": rng.integers(0, vocabulary, draft),
        "t2d": rng.random(vocabulary) < 0.25,
    }


def test_a_draft_head_keeps_the_names_and_shapes_of_eagle_3(tmp_path: Path) -> None:
    head = eagle_head()
    squish.save(tmp_path / "draft.safetensors", head)
    squish.save(tmp_path / "model.safetensors", {"model.layers.0.mlp.up_proj.weight": np.ones((64, 128), np.float32)})
    target = f"squizd:draft={tmp_path / 'draft.safetensors'}"
    squish.convert(tmp_path / "model.safetensors", tmp_path / "out.squizd", target)
    squish.convert(tmp_path / "out.squizd", tmp_path / "again.squizd")
    for path in (tmp_path / "out.squizd", tmp_path / "again.squizd"):
        with squish.open(path) as file:
            draft = file.draft()
            assert not file.problems
            assert set(draft) == set(head)
            for name, values in head.items():
                assert draft[name].shape == values.shape
                np.testing.assert_array_equal(draft[name].numpy(), values.astype(np.float32))


def test_a_draft_head_keeps_its_config(tmp_path: Path) -> None:
    """Its tensors do not state heads and positions, so what runs it reads its config.json."""
    config = b'{"num_attention_heads": 2, "rope_theta": 10000.0}'
    (tmp_path / "head").mkdir()
    squish.save(tmp_path / "head" / "model.safetensors", eagle_head())
    (tmp_path / "head" / "config.json").write_bytes(config)
    squish.save(tmp_path / "model.safetensors", {"model.layers.0.mlp.up_proj.weight": np.ones((64, 128), np.float32)})
    squish.convert(tmp_path / "model.safetensors", tmp_path / "a.squizd", f"squizd:draft={tmp_path / 'head'}")
    report = squish.convert(tmp_path / "a.squizd", tmp_path / "b.squizd")
    assert report.dropped == ()
    for name in ("a.squizd", "b.squizd"):
        with squish.open(tmp_path / name) as file:
            assert bytes(file.draft().assets["config.json"].raw) == config
            assert "config.json" not in file.assets
            assert not file.index.meta
        assert squish.verify(tmp_path / name, deep=True).clean
    (tmp_path / "head" / "config.json").write_bytes(b" " * (1 << 20) + config)
    with pytest.raises(SquishError) as caught:
        squish.convert(tmp_path / "model.safetensors", tmp_path / "c.squizd", f"squizd:draft={tmp_path / 'head'}")
    assert (caught.value.code, caught.value.part) == ("draft", "config.json")
    assert not (tmp_path / "c.squizd").exists()


def test_integers_that_float32_cannot_hold_are_no_draft_head(tmp_path: Path) -> None:
    squish.save(tmp_path / "draft.safetensors", {"d2t": np.array([1 << 40])})
    squish.save(tmp_path / "model.safetensors", {"w": np.ones((64, 128), np.float32)})
    target = f"squizd:draft={tmp_path / 'draft.safetensors'}"
    with pytest.raises(SquishError) as caught:
        squish.convert(tmp_path / "model.safetensors", tmp_path / "out.squizd", target)
    assert (caught.value.code, caught.value.tensor) == ("draft", "d2t")
    assert not (tmp_path / "out.squizd").exists()


def test_a_draft_head_without_tensors_is_copied(sq: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "model.squizd").write_bytes(sq.build([[sq.npcl(sq.rng, (2,))]], draft=[[], []]))
    report, file = converted(tmp_path / "model.squizd")
    assert report.dropped == ()
    assert file.children["eagle"].index.meta == {"squizd.draft_layers": 2, "squizd.draft_vocab": 100}


def test_a_draft_head_may_have_the_tensor_names_of_the_model(sq: SimpleNamespace, tmp_path: Path) -> None:
    draft = [[sq.int4(sq.rng, 3, 5)]]
    (tmp_path / "model.squizd").write_bytes(sq.build([[sq.npcl(sq.rng, (4, 2, 3))]], draft=draft))
    report, file = converted(tmp_path / "model.squizd", encode="int4:group_size=6")
    assert report.dropped == ()
    assert file["layers.0.w0"].shape == (4, 2, 3)
    np.testing.assert_array_equal(file.children["eagle"]["layers.0.w0"].numpy(), draft[0][0].values())


def test_tensors_of_one_name_and_size_share_a_shape(sq: SimpleNamespace, tmp_path: Path) -> None:
    """SQXT has one shape per name, so a draft head that contradicts it is dropped."""
    draft = [[sq.int4(sq.rng, 4, 6)]]
    (tmp_path / "model.squizd").write_bytes(sq.build([[sq.npcl(sq.rng, (4, 2, 3))]], draft=draft))
    report, file = converted(tmp_path / "model.squizd", encode="int4:group_size=6")
    assert [(item.kind, item.name) for item in report.dropped] == [("child", "eagle")]
    assert file["layers.0.w0"].shape == (4, 2, 3)


def test_fields_of_an_older_header_become_metadata(sq: SimpleNamespace, tmp_path: Path) -> None:
    data = bytearray(sq.build([[sq.npcl(sq.rng, (2,))]]))
    struct.pack_into("<IHIffQ", data, 26, 512, 8, 32000, 4.5, 0.25, 77)
    (tmp_path / "model.squizd").write_bytes(data)
    fields = {
        "squizd.legacy.hidden_dim": 512, "squizd.legacy.num_heads": 8, "squizd.legacy.vocab_size": 32000,
        "squizd.legacy.compression_bpw": 4.5, "squizd.legacy.sparsity_ratio": 0.25,
        "squizd.legacy.calibration_hash": 77,
    }  # fmt: skip
    assert squish.open(tmp_path / "model.squizd").metadata == fields
    report, file = converted(tmp_path / "model.squizd")
    assert report.dropped == ()
    assert file.metadata == fields


@pytest.mark.parametrize("encode", [None, {"c": "f32"}, {"a*": "int4:group_size=10"}])
def test_tensors_stay_in_their_layers_whatever_their_names(
    sq: SimpleNamespace, tmp_path: Path, encode: dict[str, str] | None
) -> None:
    layers = [
        [sq.int4(sq.rng, 10, 10, 20, name="a.w", keep=[1, 0, 1, 1, 1] * 5), sq.npcl(sq.rng, (3,), name="b")],
        [sq.int4(sq.rng, 4, 4, name="c")],
    ]
    (tmp_path / "model.squizd").write_bytes(sq.build(layers, [sq.npcl(sq.rng, (5,), name="d")], side=2, names=True))
    _, file = converted(tmp_path / "model.squizd", encode=encode, requantize=True)
    source = squish.open(tmp_path / "model.squizd")
    assert mask_of(file, "a.w") == mask_of(source, "a.w")
    assert file.index.attrs["layers"] == 2
    assert [file[name].spec.attrs.get("squizd.layer") for name in "bcd"] == [0, 1, None]
    kinds = [section.kind for section in file.index.sections]
    assert (kinds.count("layer"), kinds.count("globals")) == (2, 1)
