"""Sources are deleted only if the written file contains all of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from squish_cli import main
from squish_convert import delete_source
from squish_safetensors.api import dump_header
from squish_testing import expect_error

import squish_core as squish
from squish_core.api import SquishError, Typed
from squish_core.io import sink

RNG = np.random.default_rng(0)
WEIGHTS = {"a.weight": RNG.normal(size=(32, 64)).astype(np.float32), "norm": np.ones(64, np.float32)}


def shard(path: Path, names: tuple[str, ...] = ("a.weight", "norm"), meta: dict[str, str] | None = None) -> Path:
    listing = [(name, "f32", WEIGHTS[name].shape) for name in names]
    path.write_bytes(dump_header(listing, meta or {}) + b"".join(WEIGHTS[name].tobytes() for name in names))
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A sharded model with its config."""
    folder = tmp_path / "model"
    folder.mkdir()
    files = {"a.weight": "model-00001-of-00002.safetensors", "norm": "model-00002-of-00002.safetensors"}
    for name, file in files.items():
        shard(folder / file, (name,), {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    (folder / "config.json").write_text("{}")
    return folder


def kept(source: Path) -> bool:
    files = list(source.glob("*.safetensors")) if source.is_dir() else [source]
    return len(files) == (2 if source.is_dir() else 1)


LAYER = {
    "self_attn.q_proj": (64, 64), "self_attn.k_proj": (64, 64), "self_attn.v_proj": (64, 64),
    "self_attn.o_proj": (64, 64), "mlp.gate_proj": (128, 64), "mlp.up_proj": (128, 64), "mlp.down_proj": (64, 128),
    "input_layernorm": (64,), "post_attention_layernorm": (64,),
}  # fmt: skip
LLAMA = {
    "model.embed_tokens.weight": (96, 64),
    "lm_head.weight": (96, 64),
    "model.norm.weight": (64,),
    **{f"model.layers.{layer}.{name}.weight": shape for layer in (0, 1) for name, shape in LAYER.items()},
}
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 128, "vocab_size": 96,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "rope_theta": 10000.0,
}  # fmt: skip
TOKENIZER = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}, "added_tokens": [],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
}  # fmt: skip
WRITERS = sorted(entry.info.id for entry in squish.registry().find("container", can_write=True))
OPTIONS = {
    "uqff": ("", "version=0.1.3"), "ztensor": ("", "wire=2", "encoding=zstd"),
    "safetensors": ("", "max_shard_size=20KB"),
    "hf": ("method=awq", "method=gptq", "method=gptq_v2", "method=compressed-tensors"),
}  # fmt: skip
ENCODED = {"hf": "*_proj.weight=int4", "mlx": "*_proj.weight=int4"}
"""Formats that declare what is quantized, and what is asked for."""


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A small model as torch saves it: one file, with its config beside it."""
    folder = tmp_path / "llama"
    folder.mkdir()
    values = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in LLAMA.items()}
    header = dump_header([(name, "f32", array.shape) for name, array in values.items()], {"format": "pt"})
    (folder / "model.safetensors").write_bytes(header + b"".join(array.tobytes() for array in values.values()))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    return folder


@pytest.mark.parametrize("to", [f"{to}:{options}".rstrip(":") for to in WRITERS for options in OPTIONS.get(to, ("",))])
def test_every_format_that_is_written_can_replace_a_source(tmp_path: Path, llama: Path, to: str) -> None:
    form = to.partition(":")[0]
    report = squish.convert(llama, tmp_path / "out", to, ENCODED.get(form), delete_source=True)
    assert [Path(path).name for path in report.deleted] == ["model.safetensors"]
    assert not list(llama.glob("*.safetensors"))
    assert json.loads((llama / "config.json").read_text()) == CONFIG
    with squish.open(tmp_path / "out", form) as file:
        assert form == "gguf" or LLAMA.keys() <= set(file)
        assert len(file) >= len(LLAMA)


@pytest.mark.parametrize("to", ["mlx", "hf"])
def test_a_folder_of_floats_can_replace_a_source(to: str, tmp_path: Path, llama: Path) -> None:
    report = squish.convert(llama, tmp_path / "out", to, delete_source=True)
    assert [Path(path).name for path in report.deleted] == ["model.safetensors"]


@pytest.mark.parametrize("encode", [None, "int8", "a.weight=bf16"])
@pytest.mark.parametrize("to", ["npydir", "ztensor"])
def test_delete_source_removes_weights_and_keeps_assets(
    tmp_path: Path, model: Path, to: str, encode: str | None
) -> None:
    if to == "ztensor" and encode == "int8":
        encode = "int4"
    report = squish.convert(model, tmp_path / "out", to, encode, delete_source=True)
    assert sorted(map(os.path.basename, report.deleted)) == [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    assert not list(model.glob("*.safetensors"))
    assert (model / "config.json").exists()
    with squish.open(tmp_path / "out") as file:
        assert np.abs(file["a.weight"].numpy().astype(np.float32) - WEIGHTS["a.weight"]).max() < 0.3


def test_nothing_is_deleted_by_default_or_on_a_dry_run(tmp_path: Path, model: Path) -> None:
    assert squish.convert(model, tmp_path / "out", "npydir").deleted == ()
    assert len(squish.convert(model, tmp_path / "out2", "npydir", dry_run=True, delete_source=True).deleted) == 2
    assert kept(model)


def flipped(target: Path) -> None:
    """Damage that only the values show."""
    path = next(path for path in target.rglob("*") if path.is_file() and "a__weight__" in path.name)
    raw = bytearray(path.read_bytes())
    raw[-200] ^= 0x40
    path.write_bytes(raw)


@pytest.mark.parametrize("encode", [None, "int8"])
@pytest.mark.parametrize("damage", ["values", "cut", "a tensor lost"])
def test_a_wrongly_written_target_keeps_the_source(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, damage: str, encode: str | None
) -> None:
    target = tmp_path / "out"
    harm = {
        "values": lambda: flipped(target),
        "cut": lambda: os.truncate(next((target / "tensors").glob("a__weight__[qp]*.npy")), 130),
        "a tensor lost": lambda: (target / "manifest.json").write_text('{"norm": "norm"}'),
    }[damage]
    delete = delete_source.delete
    monkeypatch.setattr("squish_convert.convert.delete", lambda *arguments: (harm(), delete(*arguments)))
    with expect_error(SquishError, code="delete"):
        squish.convert(model, target, "npydir", encode, delete_source=True)
    assert kept(model)


@pytest.mark.parametrize(("dtype", "numbers", "byte"), [
    ("complex64", np.array([1 + 2j, 3 + 4j], "c8"), -2), ("i64", np.array([1, 2**53], "i8"), -8),
    ("u64", np.array([1, 2**63], "u8"), -8),
])  # fmt: skip
def test_the_source_stays_when_the_target_differs_in_one_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, numbers: np.ndarray, byte: int
) -> None:
    source, target, delete = tmp_path / "m.safetensors", tmp_path / "out.safetensors", delete_source.delete
    source.write_bytes(dump_header([("w", dtype, numbers.shape)], {}) + numbers.tobytes())

    def damage_and_delete(*args: object) -> None:
        content = bytearray(target.read_bytes())
        content[byte] ^= 1
        target.write_bytes(content)
        delete(*args)

    monkeypatch.setattr("squish_convert.convert.delete", damage_and_delete)
    with pytest.raises(SquishError) as caught:
        squish.convert(source, target, delete_source=True)
    assert caught.value.code == "delete"
    assert kept(source)


def test_a_write_that_fails_deletes_nothing(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(sink: object, data: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sink.Sink, "write", full)
    with pytest.raises((SquishError, OSError)):
        squish.convert(model, tmp_path / "out", "npydir", delete_source=True)
    assert kept(model)


def test_a_source_replaced_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = shard(tmp_path / "m.safetensors")
    agrees = delete_source._agrees

    def replacing(*arguments: object) -> bool:
        shard(tmp_path / "new").replace(source)
        return agrees(*arguments)

    monkeypatch.setattr(delete_source, "_agrees", replacing)
    with expect_error(SquishError, code="delete"):
        squish.convert(source, tmp_path / "out", "npydir", delete_source=True)
    assert kept(source)


@pytest.mark.parametrize(
    "what", ["itself", "its folder's place", "part", "a link", "one shard", "bytes", "metadata", "asset"]
)
def test_delete_source_is_refused_before_anything_is_written(tmp_path: Path, model: Path, what: str) -> None:
    source, target, options = model, tmp_path / "out", {}
    if what == "itself":
        source = target = shard(tmp_path / "m.safetensors")
        options = {"to": "safetensors"}
    elif what == "its folder's place":
        target = model
    elif what == "part":
        options = {"only": "norm"}
    elif what == "a link":
        real = (model / "model-00001-of-00002.safetensors").rename(tmp_path / "blob")
        (model / "model-00001-of-00002.safetensors").symlink_to(real)
    elif what == "one shard":
        source = model / "model-00001-of-00002.safetensors"
    elif what == "metadata":
        source = tmp_path / "m.zt"
        squish.save(source, {"a": np.ones(4, np.float32)}, metadata={"note": Typed("u32", 1)})
        options = {"to": "safetensors"}
    elif what == "asset":
        source = tmp_path / "m.zt"
        squish.convert(model, source, "ztensor")
        options = {"to": "safetensors"}
    argument = (model / "model-00001-of-00002.safetensors").read_bytes() if what == "bytes" else source
    with expect_error(SquishError, code="delete"):
        squish.convert(argument, target, **{"to": "npydir", "delete_source": True, **options})
    assert kept(source)
    assert target == source or not (tmp_path / "out").exists()


def test_the_command_lists_deleted_files(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(model), str(tmp_path / "out"), "--to", "npydir", "--delete-source"]) == 0
    assert "deleted:" in (out := capsys.readouterr().out)
    assert "model-00002-of-00002.safetensors" in out
