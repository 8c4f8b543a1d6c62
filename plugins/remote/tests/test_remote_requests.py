"""How many requests it takes to open, list and summarize a model, and that what was not read is compared first."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import pytest

pytest.importorskip("squish_npydir")
pytest.importorskip("squish_squizd")

import squish_core as squish
from squish_core.errors import FormatError
from squish_core.testing import expect_error

FEW = 10
LAYERS = 30
SHAPES = {
    "self_attn.q_proj": (3, 3), "self_attn.k_proj": (1, 3), "self_attn.v_proj": (1, 3), "self_attn.o_proj": (3, 3),
    "mlp.gate_proj": (8, 3), "mlp.up_proj": (8, 3), "mlp.down_proj": (3, 8),
}  # fmt: skip
"""The matrices of a layer of SmolLM2 135M, in units of its 192 channels."""


def weights(unit: int, layers: int = LAYERS) -> dict[str, np.ndarray]:
    """A model with the tensors of SmolLM2: 272 with thirty layers."""
    random = np.random.default_rng(0)
    tensors = {"model.embed_tokens.weight": random.normal(size=(9 * unit, 3 * unit)).astype("f4")}
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        for name, (rows, columns) in SHAPES.items():
            values = random.normal(size=(rows * unit, columns * unit)).astype("f4")
            tensors[f"{prefix}.{name}.weight"] = values
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{name}.weight"] = np.ones(3 * unit, "f4")
    return tensors | {"model.norm.weight": np.ones(3 * unit, "f4")}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    squish.save(path, weights(32))
    return path


def served(path: Path, server: Any) -> str:
    """The address of a file or folder."""
    server.files.clear()
    if path.is_dir():
        for file in path.rglob("*"):
            if file.is_file():
                server.files[f"{path.name}/{file.relative_to(path).as_posix()}"] = file.read_bytes()
        return str(server.url(f"{path.name}/"))
    server.files[path.name] = path.read_bytes()
    return str(server.url(path.name))


FORMATS = {
    "gguf": ("model.gguf", "q8_0"),
    "ztensor": ("model.zt", None),
    "safetensors": ("copy.safetensors", None),
    "npydir": ("npy", None),
    "npydir int8": ("npy", "int8"),
    "squizd": ("model.squizd", None),
    "squizd int4": ("model.squizd", "int4:group_size=32"),
    "squizd int2": ("model.squizd", "int2:group_size=16"),
    "squizd without groups": ("model.squizd", "int4"),
    "squizd tca_tbe": ("model.squizd", "tca_tbe"),
    "squizd astc": ("model.squizd", "astc:footprint=6x6"),
    "squizd:sparsity=0.5": ("model.squizd", "int4:group_size=32"),
}


@pytest.mark.parametrize("label", FORMATS)
def test_a_model_of_272_tensors_opens_in_few_requests(label: str, model: Path, server: Any, tmp_path: Path) -> None:
    name, encode = FORMATS[label]
    source = model
    if encode == "tca_tbe":
        source = tmp_path / "bf16.safetensors"
        squish.convert(model, source, encode="bf16")
    squish.convert(source, tmp_path / name, label.partition(" ")[0], encode=encode)
    with squish.open(tmp_path / name) as local, squish.open(served(tmp_path / name, server)) as remote:
        assert len(remote) == 272
        facts = [
            [(t.name, t.shape, str(t.dtype), t.codec, t.nbytes) for t in file.values()] for file in (local, remote)
        ]
        assert facts[0] == facts[1]
        assert [str(section) for section in remote.index.sections] == [str(each) for each in local.index.sections]
        assert dict(remote.meta) == dict(local.meta)
        if not label.startswith("npydir"):
            assert str(remote.summary()).splitlines()[1:] == str(local.summary()).splitlines()[1:]
        assert len(server.requests) < FEW
        assert {problem.code for problem in remote.problems} <= {"unpinned"}
        for tensor in list(local)[::40]:
            np.testing.assert_array_equal(remote[tensor].numpy(), local[tensor].numpy())
            np.testing.assert_array_equal(remote[tensor][1:2], local[tensor][1:2])


def test_headers_that_are_far_apart_need_no_requests_of_their_own(server: Any, tmp_path: Path) -> None:
    """Blocks of 2 MB each: nothing but the directory is near anything else."""
    tensors = {f"model.layers.{n}.mlp.up_proj.weight": np.full((512, 1024), n, "f4") for n in range(12)}
    squish.save(tmp_path / "in.safetensors", tensors)
    squish.convert(tmp_path / "in.safetensors", tmp_path / "big.squizd")
    with squish.open(served(tmp_path / "big.squizd", server)) as remote:
        assert len(server.requests) < FEW
        assert server.sent < 200_000
        server.forget()
        assert (remote["model.layers.7.mlp.up_proj.weight"].numpy() == 7).all()
        assert len(server.requests) == 1  # the header of the block comes with its data
        assert (remote["model.layers.9.mlp.up_proj.weight"][500:510] == 9).all()
        assert len(server.requests) == 3  # and apart from data in the middle of the block


def test_a_conversion_reads_the_headers_with_the_data(server: Any, tmp_path: Path) -> None:
    tensors = {f"model.layers.{n}.mlp.up_proj.weight": np.full((256, 512), n, "f4") for n in range(6)}
    squish.save(tmp_path / "in.safetensors", tensors)
    squish.convert(tmp_path / "in.safetensors", tmp_path / "m.squizd", encode="int4:group_size=32")
    url = served(tmp_path / "m.squizd", server)
    squish.convert(url, tmp_path / "remote.gguf", encode="q8_0", requantize=True)
    squish.convert(tmp_path / "m.squizd", tmp_path / "local.gguf", encode="q8_0", requantize=True)
    assert (tmp_path / "remote.gguf").read_bytes() == (tmp_path / "local.gguf").read_bytes()
    assert len(server.requests) < 40


def squizd(path: Path, *, draft: bool = False, coreml: bool = False) -> Path:
    """A file with masks, sub-blocks and, on request, the two sections that follow the names."""
    options = "squizd:sparsity=0.5"
    squish.save(path.with_name("in.safetensors"), weights(32, 3))
    if draft:
        squish.save(path.with_name("draft.safetensors"), {"layers.0.w": np.ones((4, 8), "f4"), "d": np.ones(3, "f4")})
        options += f",draft={path.with_name('draft.safetensors')}"
    if coreml:
        package = path.with_name("p.mlpackage")
        for name, size in (("Manifest.json", 40), ("Data/model.mlmodel", 300_000), ("Data/weight.bin", 500_000)):
            (package / name).parent.mkdir(parents=True, exist_ok=True)
            (package / name).write_bytes(bytes(size))
        options += f",coreml={package}"
    squish.convert(path.with_name("in.safetensors"), path, options, encode="int4:group_size=32")
    return path


@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize("coreml", [False, True])
def test_a_file_with_every_section_opens_in_few_requests(
    server: Any, tmp_path: Path, draft: bool, coreml: bool
) -> None:
    path = squizd(tmp_path / "model.squizd", draft=draft, coreml=coreml)
    with squish.open(path) as local, squish.open(served(path, server)) as remote:
        assert str(remote.summary()).splitlines()[1:] == str(local.summary()).splitlines()[1:]
        assert len(server.requests) < FEW
        assert [str(section) for section in remote.index.sections] == [str(each) for each in local.index.sections]
        assert remote.index.whole == local.index.whole
        files = [(remote, local), *zip(remote.children.values(), local.children.values(), strict=True)]
        for one, other in files:
            for name, values in other.numpy().items():
                np.testing.assert_array_equal(one[name].numpy(), values)
    assert squish.verify(path).problems == ()
    assert {problem.code for problem in squish.verify(served(path, server)).problems} <= {"unpinned"}


def section(data: bytes) -> tuple[int, dict[str, Any]]:
    """The place and content of SQXT."""
    at = data.rindex(b"SQXT")
    return at, cbor2.loads(data[at + 8 : at + 8 + int.from_bytes(data[at + 4 : at + 8], "little")])


def with_section(data: bytes, root: dict[str, Any]) -> bytes:
    at, _ = section(data)
    packed = cbor2.dumps(root)
    return data[:at] + struct.pack("<4sI", b"SQXT", len(packed)) + packed


def without_directory(data: bytes) -> bytes:
    """The file as other software would write it."""
    root = section(data)[1]
    return with_section(data, {key: value for key, value in root.items() if key not in ("directory", "at")})


def test_a_file_of_other_software_is_read_block_by_block(server: Any, tmp_path: Path) -> None:
    path = squizd(tmp_path / "model.squizd")
    path.write_bytes(without_directory(path.read_bytes()))
    with squish.open(path) as local, squish.open(served(path, server)) as remote:
        assert remote.index.tensors == local.index.tensors
        assert remote.index.sections == local.index.sections
        assert len(server.requests) < 3 * len(local)


@pytest.mark.parametrize("kind", ["header", "table"])
def test_blocks_that_contradict_the_directory_are_refused_when_they_are_read(
    kind: str, server: Any, tmp_path: Path
) -> None:
    path = squizd(tmp_path / "model.squizd")
    data = bytearray(path.read_bytes())
    name = "model.layers.1.mlp.up_proj.weight"
    with squish.open(path) as file:
        parts = file[name].spec.encodings[0].parts
        start = parts["codes"].segments[0].offset - 12
        rows, columns = struct.unpack_from("<II", data, start + 4)
        if kind == "header":
            struct.pack_into("<II", data, start + 4, columns, rows)
        else:
            data[parts["table"].segments[0].offset] ^= 1
    path.write_bytes(data)
    with squish.open(served(path, server)) as remote:
        assert remote[name].shape == (rows, columns)  # as stated: the block was not read
        for _ in range(2):
            with expect_error(squish.SquishError, code="P9"):
                remote[name].numpy()
        other = "model.layers.2.mlp.up_proj.weight"
        assert remote[other].numpy().shape == (rows, columns)
    assert [problem.code for problem in squish.verify(path).problems if problem.code == "P9"] or kind == "table"


BROKEN: dict[str, Callable[[dict[str, Any]], None]] = {
    "not a map": lambda root: root.update(directory=7),
    "no blocks": lambda root: root["directory"].pop("blocks"),
    "a block elsewhere": lambda root: root["directory"]["blocks"][1][0].__setitem__(0, 300),
    "a block of another kind": lambda root: root["directory"]["blocks"][1][1].__setitem__(1, b"NPCL" + bytes(8)),
    "a missing block": lambda root: root["directory"]["blocks"][1].pop(),
    "masks of another size": lambda root: root["directory"]["masks"].update({1: b"\1"}),
    "a table elsewhere": lambda root: root["directory"]["tables"][0].__setitem__(0, 512),
    "a huge table": lambda root: root["directory"]["tables"][0].__setitem__(1, 1 << 60),
    "other numbers of entries": lambda root: root["directory"]["blocks"][1][1].__setitem__(2, 1),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_directory_that_contradicts_the_file_is_ignored_with_a_warning(
    kind: str, server: Any, tmp_path: Path
) -> None:
    path = squizd(tmp_path / "model.squizd")
    data = path.read_bytes()
    root = section(data)[1]
    BROKEN[kind](root)
    path.write_bytes(with_section(data, root))
    with squish.open(path) as local, squish.open(served(path, server)) as remote:
        assert not local.problems
        assert remote.index.tensors == local.index.tensors
        assert [problem.code for problem in remote.problems if problem.severity == "warning"] == ["P9"]
    verified = squish.verify(path)
    assert verified.ok
    assert {problem.code for problem in verified.problems} == {"P9"}


def npy_folder(model: Path, path: Path) -> Path:
    squish.convert(model, path, "npydir", encode="int8")
    return path


def test_a_npy_folder_without_its_list_says_what_to_do(model: Path, server: Any, tmp_path: Path) -> None:
    path = npy_folder(model, tmp_path / "npy")
    (path / "squish.files.json").unlink()
    with pytest.raises(FormatError) as caught:
        squish.open(served(path, server))
    assert caught.value.code == "folder"
    assert "squish convert DIR NEW --to npydir" in str(caught.value.hint)
    assert len(server.requests) < 2 * FEW


@pytest.mark.parametrize("kind", ["head", "smaller", "missing"])
def test_a_file_that_contradicts_the_list_is_refused_when_it_is_read(
    kind: str, model: Path, server: Any, tmp_path: Path
) -> None:
    path = npy_folder(model, tmp_path / "npy")
    name = "model.layers.1.mlp.up_proj.weight"
    array = path / "tensors" / f"{name.replace('.', '__')}__q.npy"
    if kind == "head":
        np.save(array, np.load(array).T.copy())
    elif kind == "smaller":
        np.save(array, np.load(array)[:-1])
    else:
        array.unlink()
    with squish.open(served(path, server)) as remote:
        with pytest.raises(squish.SquishError) as caught:
            remote[name].numpy()
        assert caught.value.code == {"head": "files", "smaller": "changed", "missing": "missing"}[kind]
        assert remote["model.layers.2.mlp.up_proj.weight"].numpy().any()
    assert "files" in {problem.code for problem in squish.verify(path).problems}


@pytest.mark.parametrize(
    "change",
    [
        lambda root: root.pop("files"),
        lambda root: root["heads"].__setitem__(0, "?"),
        lambda root: root["files"].update({"../x": [1, 0]}),
        lambda root: root["files"].update({"a/b/c": [1, 0]}),
        lambda root: root["files"].update({"x": [1, 10**9]}),
        lambda root: root["files"].update({"x": [-1, 0]}),
        lambda root: root["files"].update({"x": "1"}),
    ],
)
def test_an_invalid_list_of_files_is_refused(change: Any, model: Path, server: Any, tmp_path: Path) -> None:
    path = npy_folder(model, tmp_path / "npy")
    listing = path / "squish.files.json"
    root = json.loads(listing.read_text())
    change(root)
    listing.write_text(json.dumps(root))
    with pytest.raises(FormatError) as caught:
        squish.open(served(path, server))
    assert caught.value.code in ("files", "path")
    assert "files" in {problem.code for problem in squish.verify(path).problems}


def test_the_list_follows_a_tier_that_is_built_in_place(model: Path, server: Any, tmp_path: Path) -> None:
    from squish_npydir.tiers.cache import build

    path = npy_folder(model, tmp_path / "npy")
    build(path, "int4", delete_source=True)
    assert squish.verify(path).problems == ()
    with squish.open(path) as local, squish.open(served(path, server)) as remote:
        name = "model.layers.1.mlp.up_proj.weight"
        assert [encoding.label for encoding in remote[name].spec.encodings] == ["int4 symmetric"]
        assert len(server.requests) < FEW
        np.testing.assert_array_equal(remote[name].numpy(), local[name].numpy())
