"""Writing keeps names, shapes, order and metadata; encodings, masks, draft heads and appendices follow the options."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import squish_core as squish


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def bf16(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(ml_dtypes.bfloat16)

    model = {"model.embed_tokens.weight": bf16(50, 64)}
    for layer in (1, 0):
        model[f"model.layers.{layer}.mlp.up_proj.weight"] = bf16(96, 64)
        model[f"model.layers.{layer}.self_attn.q_proj.weight"] = bf16(64, 66)
        model[f"model.layers.{layer}.input_layernorm.weight"] = bf16(64)
    model["model.norm.weight"] = bf16(64)
    return model


@pytest.fixture
def source(arrays: dict[str, np.ndarray], sq: SimpleNamespace) -> bytes:
    """The arrays as a SQUIZD file of dense tensors, from the builder."""
    tensors = [
        sq.Tensor("NPCL", array.shape, dtype_code=2, raw=array.tobytes(), name=name) for name, array in arrays.items()
    ]

    layers = [[t for t in tensors if f".layers.{layer}." in t.name] for layer in (0, 1)]
    outside = [t for t in tensors if ".layers." not in t.name]
    data: bytes = sq.build(layers, outside, names=True)
    return data


def written(
    source: Any, folder: Path, to: str = "squizd", encode: Any = None, warnings: tuple[str, ...] = ()
) -> squish.File:
    squish.convert(source, folder / "out.squizd", to, encode)
    report = squish.verify(folder / "out.squizd", deep=True)
    assert report.ok
    assert tuple(problem.code for problem in report.problems if problem.severity != "note") == warnings
    return squish.open(folder / "out.squizd", strict=True)


@pytest.mark.parametrize(("encode", "codec", "error"), [
    ("int4:group_size=32", "squizd.int4", 0.25), ("int2:group_size=32", "squizd.int2", 1.2),
    ("int4:search=mse", "squizd.int4", 0.9),
    ("astc:footprint=4x4", "astc", 0.5),
    ("tca_tbe", "tca_tbe", 0.0), ("bf16", "dense", 0.0), ("f32", "dense", 0.0), (None, "dense", 0.0),
])  # fmt: skip
def test_matrices_are_encoded_and_vectors_stay_dense(
    source: bytes, arrays: dict[str, np.ndarray], tmp_path: Path, encode: str | None, codec: str, error: float
) -> None:
    file = written(source, tmp_path, encode=encode)
    assert set(file) == set(arrays)
    for name, array in arrays.items():
        assert file[name].codec == (codec if array.ndim > 1 else "dense")
        assert np.abs(file[name].numpy().astype("f4") - array.astype("f4")).max() <= error


FOOTPRINTS = {
    "4x4": 0x04, "5x4": 0x54, "5x5": 0x05, "6x5": 0x65, "6x6": 0x06, "8x5": 0x08, "8x6": 0x86, "8x8": 0x88,
    "10x5": 0xA5, "10x6": 0xA6, "10x8": 0xA8, "10x10": 0x0A, "12x10": 0xCA, "12x12": 0x0C,
}  # fmt: skip
"""Footprint -> its code in an ASTW block (specification 5.1, profile P5)."""


@pytest.mark.parametrize("footprint", FOOTPRINTS)
def test_astc_footprints_have_the_codes_of_the_specification(
    source: bytes, arrays: dict[str, np.ndarray], tmp_path: Path, footprint: str
) -> None:
    name = "model.embed_tokens.weight"
    file = written(source, tmp_path, encode={name: f"astc:footprint={footprint}"})
    data = (tmp_path / "out.squizd").read_bytes()
    at = data.index(b"ASTW")
    assert struct.unpack_from("<3I", data, at + 4) == (64, 50, FOOTPRINTS[footprint])

    x, y = map(int, footprint.split("x"))
    by_sizes = data[: at + 12] + struct.pack("<I", x << 4 | y) + data[at + 16 :]
    again = squish.open(by_sizes, strict=True)
    assert (again[name].numpy() == file[name].numpy()).all()
    notes = [problem.message for problem in again.problems]
    assert len(notes) == (FOOTPRINTS[footprint] < 16)
    assert all(f"expected {FOOTPRINTS[footprint]:#04x} for {footprint}, found {x << 4 | y:#04x}" in n for n in notes)


def test_the_mse_search_lowers_the_error(source: bytes, arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    def error(encode: str) -> float:
        file = written(source, tmp_path, encode=encode)
        return sum(
            float(np.square(file[name].numpy().astype("f4") - array.astype("f4")).sum())
            for name, array in arrays.items()
        )

    assert error("int4:search=mse") < error("int4")


def test_activations_weigh_the_errors_of_their_columns(
    sq: SimpleNamespace, source: bytes, arrays: dict[str, np.ndarray], tmp_path: Path
) -> None:
    matrices = {name: array.astype("f4") for name, array in arrays.items() if array.ndim > 1}
    seen = {name: np.where(np.arange(array.shape[1]) % 8, 0.01, 10).astype("f4") for name, array in matrices.items()}
    stats = sq.build(
        [], [sq.Tensor("NPCL", (len(one),), raw=one.tobytes(), name=name) for name, one in seen.items()], names=True
    )

    def error(encode: str, **options: Any) -> float:
        squish.convert(source, tmp_path / "out.squizd", "squizd", encode, **options)
        file = squish.open(tmp_path / "out.squizd")
        gaps = (seen[name] * (file[name].numpy().astype("f4") - array) for name, array in matrices.items())
        return sum(float(np.square(gap).sum()) for gap in gaps)

    unweighted = error("int4:search=mse")
    assert error("int4:search=activations", activations=bytes(stats)) < unweighted
    with pytest.raises(squish.SquishError) as caught:
        error("int4:search=activations")
    assert caught.value.code == "encode"


def test_patterns_choose_encodings(source: bytes, tmp_path: Path) -> None:
    file = written(source, tmp_path, encode=["int4", "*q_proj*=tca_tbe", "*embed*=keep"])
    assert file["model.layers.0.self_attn.q_proj.weight"].codec == "tca_tbe"
    assert file["model.layers.0.mlp.up_proj.weight"].codec == "squizd.int4"
    assert file["model.embed_tokens.weight"].codec == "dense"


def test_nan_payloads_survive_tca_tbe(sq: SimpleNamespace, tmp_path: Path) -> None:
    every = np.arange(1 << 16, dtype="<u2").reshape(256, 256)
    data = sq.build([[sq.Tensor("NPCL", (256, 256), dtype_code=2, raw=every.tobytes())]])
    file = written(data, tmp_path, encode="tca_tbe", warnings=("not-finite",))
    assert (file["layers.0.w0"].numpy().view("u2") == every).all()
    with written(tmp_path / "out.squizd", tmp_path, warnings=("not-finite",)) as again:
        assert again["layers.0.w0"].codec == "tca_tbe"


def test_sparsity_zeroes_the_share_of_tiles_in_ffn_matrices(source: bytes, tmp_path: Path) -> None:
    file = written(source, tmp_path, "squizd:sparsity=0.5,block_size=16", "int4:group_size=16")
    up = file["model.layers.0.mlp.up_proj.weight"].numpy()
    tiles = np.abs(up).reshape(6, 16, 4, 16).max(axis=(1, 3))
    assert (tiles == 0).sum(axis=1).tolist() == [2] * 6
    assert file.index.attrs["sparsity"] == {
        "block_size": 16,
        "n_sparse_layers": 2,
        "mean_sparsity": pytest.approx(24 / 88),
    }
    assert (file["model.layers.0.self_attn.q_proj.weight"].numpy() != 0).mean() > 0.99


def test_sparsity_works_on_dense_tensors(source: bytes, arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    file = written(source, tmp_path, "squizd:sparsity=0.25,block_size=16")
    name = "model.layers.1.mlp.up_proj.weight"
    kept = file[name].numpy() != 0
    assert kept.mean() == pytest.approx(0.75)
    assert (file[name].numpy()[kept] == arrays[name][kept]).all()


def test_a_draft_head_comes_from_a_second_file(source: bytes, arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    squish.convert(source, tmp_path / "draft.squizd", encode="int4", only=["*layers.0*"])
    file = written(source, tmp_path, f"squizd:draft={tmp_path / 'draft.squizd'}", "int4")
    eagle = file.children["eagle"]
    with squish.open(tmp_path / "draft.squizd") as draft:
        assert list(eagle) == list(draft)
        assert all((eagle[name].numpy() == draft[name].numpy()).all() for name in draft)


def test_a_coreml_package_becomes_the_appendix(source: bytes, tmp_path: Path) -> None:
    package = tmp_path / "m.mlpackage"
    (package / "Data").mkdir(parents=True)
    (package / "Manifest.json").write_text("{}")
    (package / "Data" / "model.mlmodel").write_bytes(bytes(1000))
    file = written(source, tmp_path, f"squizd:coreml={package}")
    assert [encoding.label for encoding in file.index.whole] == ["ANE_COREML"]
    assert "ANE_COREML" in file.index.attrs["flags"]


def test_order_and_metadata_survive(sq: SimpleNamespace, tmp_path: Path) -> None:
    def shuffle(root: dict[str, Any]) -> dict[str, Any]:
        from squish_core.api import Typed, dump_meta

        packed = dump_meta({"b": Typed("u32", 7), "a": "x"}, {"config.json": b'{"model_type": "qwen2"}'})
        return {**root, "attrs": {"order": [2, 0, 1], "squish.meta": packed}}

    rng = sq.rng
    layer = [sq.npcl(rng, (2, 2), name="blk.0.x"), sq.npcl(rng, (2,), name="blk.0.y")]
    data = sq.build([layer], [sq.npcl(rng, (3,), name="out")], names=True, change=shuffle)
    file = written(data, tmp_path)
    assert list(file) == ["out", "blk.0.x", "blk.0.y"]
    assert file.meta == {"b": 7, "a": "x", "squizd.arch_id": 3}
    assert bytes(file.assets["config.json"].raw) == b'{"model_type": "qwen2"}'
    assert file.index.attrs["arch"] == "qwen"


def test_affine_codes_are_repacked_without_loss(sq: SimpleNamespace, tmp_path: Path) -> None:
    from squish_squizd.write.accept import accepts_codes
    from squish_squizd.write.place import WriteOptions

    from squish_core.api import Encoding, TensorSpec

    registry = squish.registry()
    spec = TensorSpec(name="layers.0.w", shape=(4, 64), dtype="f32")
    params = {"bits": 4, "group_size": 32, "offset": "bias"}
    affine = registry.codec_type("affine")
    stored = affine.from_params(params).encode(np.random.default_rng(0).standard_normal((4, 64), np.float32))
    answer = accepts_codes(spec, affine.from_params(params).code_layout(spec), WriteOptions())
    assert isinstance(answer, Encoding)
    assert answer.codec.id == "squizd.int4"
    whole = (slice(0, 4), slice(0, 64))
    result = registry.codec(answer.codec).from_codes(affine.from_params(params).codes(stored, spec, whole), spec)
    if result is not None:  # unsigned codes need a bias that is shifted by 8 scales, which float32 may not hold
        assert result[1].kind == "values"


@pytest.mark.parametrize("options", ["sparsity=1", "sparsity=-1", "block_size=0", "arch=zzz", "sparsity=x"])
def test_invalid_options_are_refused(source: bytes, tmp_path: Path, options: str) -> None:
    with pytest.raises(squish.SquishError) as caught:
        squish.convert(source, tmp_path / "out.squizd", f"squizd:{options}")
    assert caught.value.code == "option"
    assert not list(tmp_path.iterdir())


def test_dtypes_without_a_block_are_refused(sq: SimpleNamespace) -> None:
    from squish_squizd.write.accept import accepts
    from squish_squizd.write.place import WriteOptions

    from squish_core.api import DENSE, Encoding, Part, Refusal, TensorSpec

    spec = TensorSpec(name="ids", shape=(4,), dtype="i64")
    answer = accepts(spec, Encoding(codec=DENSE, parts={"data": Part(dtype="i64", shape=(4,))}), WriteOptions())
    assert isinstance(answer, Refusal)
    assert "i64" in answer.why


def test_written_header(source: bytes, tmp_path: Path) -> None:
    written(source, tmp_path, "squizd:arch=llama", "int4")
    head = (tmp_path / "out.squizd").read_bytes()[:256]
    assert struct.unpack("<4sHIHHIQ", head[:26]) == (b"SQZD", 1, 4, 2, 1, 0, 0)
    assert not any(head[26:])
