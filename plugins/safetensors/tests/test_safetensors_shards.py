"""Sharded sets and folders: one namespace, checked against the index; the model's other files as assets."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from squish_safetensors.api import CheckpointFiles, collect_layers, refine_layers

import squish_core as squish
from squish_core.api import Sink, TensorSpec
from squish_core.errors import FormatError, SquishError, UnknownFormatError

INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def shard(**tensors: bytes) -> bytes:
    entries, at = {}, 0
    for name, data in tensors.items():
        entries[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    raw = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    return len(raw).to_bytes(8, "little") + raw + b"".join(tensors.values())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / SHARDS[0]).write_bytes(shard(a=b"aa", b=b"b"))
    (tmp_path / SHARDS[1]).write_bytes(shard(c=b"cc"))
    (tmp_path / "config.json").write_text('{"model_type":"x"}')
    (tmp_path / "notes.txt").write_text("not an asset")
    change(tmp_path, lambda listing: None)
    return tmp_path


def change(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    listing: dict[str, Any] = {
        "metadata": {"total_size": 5},
        "weight_map": {"a": SHARDS[0], "b": SHARDS[0], "c": SHARDS[1]},
    }
    edit(listing)
    (folder / INDEX).write_text(json.dumps(listing))


@pytest.mark.parametrize("name", ["", INDEX])
def test_a_folder_or_its_index_opens_all_shards_as_one(model: Path, name: str) -> None:
    with squish.open(model / name) as file:
        assert {tensor: bytes(file[tensor].numpy()) for tensor in file} == {"a": b"aa", "b": b"b", "c": b"cc"}
        assert [ref.name for ref in file.index.files] == [*SHARDS, "config.json"]
        assert file.meta == {"format": "pt"}
        assert file.problems == ()


def test_assets_lie_beside_the_model(model: Path) -> None:
    with squish.open(model) as file:
        assert list(file.assets) == ["config.json"]
        assert bytes(file.assets["config.json"].raw) == b'{"model_type":"x"}'


def test_named_chat_templates_are_in_a_folder_of_their_own(model: Path, tmp_path: Path) -> None:
    (model / "chat_template.jinja").write_text("{{ x }}")
    assert "chat_template.jinja" in squish.open(model).assets
    named = model / "additional_chat_templates"
    named.mkdir()
    for name in ("rag.jinja", "tool_use.jinja", "notes.txt", ".hidden.jinja"):
        (named / name).write_text(name)
    expected = {"additional_chat_templates/rag.jinja": b"rag.jinja",
                "additional_chat_templates/tool_use.jinja": b"tool_use.jinja"}  # fmt: skip
    squish.convert(model, tmp_path / "copy", "safetensors:max_shard_size=1GB")
    for folder in (model, tmp_path / "copy"):
        with squish.open(folder) as file:
            found = {name: bytes(buffer.raw) for name, buffer in file.assets.items()}
            assert {**found, **expected} == found
            assert len(found) == 4


def test_one_shard_by_name_opens_alone_with_a_note(model: Path) -> None:
    with squish.open(model / SHARDS[1]) as file:
        assert list(file) == ["c"]
        (problem,) = file.problems
        assert problem.severity == "note"
        assert INDEX in problem.message


def test_a_folder_with_one_file_opens_it(tmp_path: Path) -> None:
    (tmp_path / "weights.safetensors").write_bytes(shard(a=b"aa"))
    assert list(squish.open(tmp_path)) == ["a"]


@pytest.mark.parametrize("other", ["consolidated.safetensors", "consolidated.safetensors.index.json"])
def test_a_folder_opens_the_file_of_transformers_whatever_lies_beside_it(other: str, tmp_path: Path) -> None:
    (tmp_path / other).write_bytes(shard(b=b"b"))
    (tmp_path / "model.safetensors").write_bytes(shard(a=b"aa"))
    assert list(squish.open(tmp_path)) == ["a"]


def test_a_file_of_another_name_has_no_assets(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "lora.safetensors").write_bytes(shard(a=b"aa"))
    (tmp_path / "model.safetensors").write_bytes(shard(a=b"aa"))
    assert not squish.open(tmp_path / "lora.safetensors").assets
    assert list(squish.open(tmp_path / "model.safetensors").assets) == ["config.json"]


def test_a_folder_with_several_files_and_no_index_names_them(tmp_path: Path) -> None:
    for name in ("one.safetensors", "two.safetensors"):
        (tmp_path / name).write_bytes(shard(a=b"aa"))
    with pytest.raises(FormatError) as caught:
        squish.open(tmp_path)
    assert (caught.value.code, caught.value.found) == ("folder", "one.safetensors, two.safetensors")


CASES: dict[str, tuple[Callable[[dict[str, Any]], object], str, str | None]] = {
    "shard missing": (
        lambda listing: listing["weight_map"].update(d="gone.safetensors"),
        "shard-missing",
        "d",
    ),
    "separator": (lambda listing: listing["weight_map"].update(b="../x.safetensors"), "path", "b"),
    "absolute path": (lambda listing: listing["weight_map"].update(b="/x.safetensors"), "path", "b"),
    "leading dot": (lambda listing: listing["weight_map"].update(b=".x.safetensors"), "path", "b"),
    "NUL": (lambda listing: listing["weight_map"].update(b="a\0b"), "path", "b"),
    "case clash": (lambda listing: listing["weight_map"].update(b=SHARDS[0].upper()), "path", "b"),
    "no file name": (lambda listing: listing["weight_map"].update(b=3), "index", "b"),
    "no weight_map": (lambda listing: listing.pop("weight_map"), "index", None),
    "weight_map a list": (lambda listing: listing.update(weight_map=[]), "index", None),
    "the index as its own shard": (lambda listing: listing["weight_map"].update(d=INDEX), "lookalike", None),
}


@pytest.mark.parametrize("case", CASES)
def test_contradictions_of_index_and_shards_are_errors(model: Path, case: str) -> None:
    edit, code, tensor = CASES[case]
    change(model, edit)
    with pytest.raises(SquishError) as caught:
        squish.open(model)
    assert (caught.value.code, caught.value.tensor) == (code, tensor)


def test_disk_space_is_reserved_for_exactly_each_shard(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: dict[str, int] = {}
    monkeypatch.setattr(Sink, "reserve", lambda sink, length: lengths.update({sink.name: length}))
    squish.convert(model, tmp_path / "copy", to="safetensors:max_shard_size=3")
    shards = {path.name: path.stat().st_size for path in (tmp_path / "copy").glob("*.safetensors")}
    assert lengths == shards
    assert len(shards) > 1


def test_a_name_in_two_shards_that_the_index_does_not_decide_names_both(model: Path) -> None:
    (model / SHARDS[1]).write_bytes(shard(c=b"cc", a=b"aa"))
    change(model, lambda listing: listing["weight_map"].pop("a"))
    with pytest.raises(FormatError) as caught:
        squish.open(model)
    assert (caught.value.tensor, caught.value.expected, caught.value.found) == ("a", *SHARDS[:2])


@pytest.mark.parametrize("text", ["[]", "{", '{"weight_map":{"a":"x","a":"y"}}', '{"a":' + "[" * 5000, "\ufeff{}"])
def test_a_damaged_index_is_a_typed_error(model: Path, text: str) -> None:
    (model / INDEX).write_text(text)
    with pytest.raises(FormatError) as caught:
        squish.open(model)
    assert caught.value.code != "plugin-bug"


@pytest.mark.parametrize("names", [SHARDS, ["model.safetensors"]])
def test_an_index_without_entries_hides_no_tensor(names: Sequence[str], tmp_path: Path) -> None:
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(shard(**{f"a{number}": b"aa"}))
    (tmp_path / INDEX).write_text('{"weight_map": {}}')
    with squish.open(tmp_path) as file:
        assert list(file) == [f"a{number}" for number in range(len(names))]
        assert all(problem.severity == "warning" for problem in file.problems)
        assert file.problems


def test_a_model_without_tensors_is_read_as_written(tmp_path: Path) -> None:
    (tmp_path / "empty.safetensors").write_bytes(shard())
    squish.convert(tmp_path / "empty.safetensors", tmp_path / "folder", "safetensors:max_shard_size=5GB")
    with squish.open(tmp_path / "folder") as file:
        assert (list(file), file.meta, file.problems) == ([], {"format": "pt"}, ())


def test_a_shard_of_the_set_that_the_index_leaves_out_is_a_warning(model: Path) -> None:
    (model / SHARDS[1]).unlink()
    change(model, lambda listing: (listing["weight_map"].pop("c"), listing["metadata"].pop("total_size")))
    for name in (SHARDS[1], "model-00001-of-00009.safetensors", "other-00002-of-00002.safetensors"):
        (model / name).write_bytes(shard(c=b"cc"))
    with squish.open(model) as file:
        found = {(problem.code, problem.where): problem.severity for problem in file.problems}
        assert found == {
            ("shard-unlisted", SHARDS[1]): "warning",
            ("shard-unlisted", "model-00001-of-00009.safetensors"): "note",
            ("shard-unlisted", "other-00002-of-00002.safetensors"): "note",
        }
        assert list(file) == ["a", "b"]


@pytest.mark.parametrize("name", ["config.json", "quantize_config.json", "quant_config.json", "hf_quant_config.json"])
@pytest.mark.parametrize(
    "text", ['{"quantization_config": {"bits"', "[]", "null", '"gptq"', "", '{"a": 1, "a": 2}', "\xff"]
)
def test_an_unreadable_declaration_is_an_error_and_tensors_are_read_as_stored(
    name: str, text: str, model: Path
) -> None:
    (model / name).write_text(text)
    with squish.open(model) as file:
        found = [(problem.code, problem.severity, problem.where) for problem in file.problems]
        # without squish-hf, a file of a quantization's method is also a mark of its plugin
        assert [each for each in found if each[0] != "not-installed"] == [("json", "error", name)]
        assert bytes(file["a"].numpy()) == b"aa"
    assert not squish.verify(model).ok
    with pytest.raises(FormatError):
        squish.open(model, strict=True)


def test_a_config_may_contain_pythons_constants(model: Path) -> None:
    (model / "config.json").write_text('{"time_step_limit": [0.0, Infinity], "x": NaN}')
    assert not squish.open(model).problems


def test_the_callers_limits_apply_to_a_declaration(model: Path) -> None:
    (model / "config.json").write_text('{"a": {"b": {"c": {}}}}')
    assert not squish.open(model).problems
    assert [problem.where for problem in squish.open(model, limits=squish.Limits(depth=2)).problems] == ["config.json"]


@pytest.mark.parametrize("size", [4, "5", 5.5, None])
def test_a_wrong_total_size_is_a_warning(model: Path, size: object) -> None:
    change(model, lambda listing: listing["metadata"].update(total_size=size))
    assert [problem.code for problem in squish.open(model).problems] == ([] if size is None else ["total-size"])


def test_a_shard_that_is_a_git_lfs_pointer_is_named(model: Path) -> None:
    (model / SHARDS[1]).write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(UnknownFormatError) as caught:
        squish.open(model)
    assert caught.value.code == "lookalike"
    assert SHARDS[1] in str(caught.value.file)


def test_a_shard_that_is_damaged_is_named(model: Path) -> None:
    (model / SHARDS[1]).write_bytes(shard(c=b"cc")[:-1])
    with pytest.raises(FormatError) as caught:
        squish.open(model)
    assert SHARDS[1] in str(caught.value.file)


def test_an_index_without_its_shards_is_an_error(model: Path) -> None:
    for name in SHARDS:
        (model / name).unlink()
    with pytest.raises(FormatError) as caught:
        squish.open(model)
    assert caught.value.code == "shard-missing"


def test_shards_may_be_links_as_in_a_download_cache(model: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    blob = tmp_path_factory.mktemp("blobs") / "0123"
    (model / SHARDS[1]).rename(blob)
    (model / SHARDS[1]).symlink_to(blob)
    assert bytes(squish.open(model)["c"].numpy()) == b"cc"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_in_place_of_a_shard_does_not_block(model: Path) -> None:
    (model / SHARDS[1]).unlink()
    os.mkfifo(model / SHARDS[1])
    with pytest.raises(SquishError):
        squish.open(model)


def test_metadata_that_differs_between_shards_is_a_warning(model: Path) -> None:
    data = shard(c=b"cc").replace(b'"pt"', b'"tf"')
    (model / SHARDS[1]).write_bytes(data)
    with squish.open(model) as file:
        assert file.meta == {"format": "pt"}
        assert [problem.code for problem in file.problems] == ["metadata"]


@pytest.mark.parametrize(("rank", "code"), [(100, None), (2, "shape")])
def test_the_callers_limits_apply_to_a_layer(rank: int, code: str | None, model: Path) -> None:
    shape = (1,) * 70 if rank > 70 else (1, 1, 1)
    with squish.open(model, "safetensors") as file:
        files = CheckpointFiles(file.index, file.source, squish.Limits(rank=rank))
        layers = collect_layers(file.index.tensors, ("",), bases=("",))
        refined = refine_layers(
            files,
            "x",
            "",
            {"a": layers["a"]},
            lambda name, _: TensorSpec(name=name, shape=shape, dtype="u8"),
            (),
            bases=("",),
        )
    assert [problem.code for problem in refined.problems] == ([] if code is None else [code])
    assert (refined.tensors["a"].shape == shape) is (code is None)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """A folder as PEFT writes it."""
    (tmp_path / "adapter_model.safetensors").write_bytes(shard(**{"q_proj.lora_A.weight": b"aaaa"}))
    (tmp_path / "adapter_config.json").write_text('{"r": 8, "lora_alpha": 16}')
    return tmp_path


@pytest.mark.parametrize("name", ["", "adapter_model.safetensors"])
def test_the_rank_and_alpha_of_an_adapter_are_an_asset(adapter: Path, name: str) -> None:
    with squish.open(adapter / name) as file:
        assert list(file.assets) == ["adapter_config.json"]


def test_the_rank_and_alpha_of_an_adapter_are_carried_or_reported(
    adapter: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    out = tmp_path_factory.mktemp("out")
    done = squish.convert(adapter, out / "folder", "safetensors:max_shard_size=1GB")
    assert done.dropped == ()
    assert (out / "folder" / "adapter_config.json").read_text() == '{"r": 8, "lora_alpha": 16}'
    done = squish.convert(adapter, out / "one.safetensors")
    assert [(item.kind, item.name) for item in done.dropped] == [("asset", "adapter_config.json")]
