"""The worked examples of `docs/formats` are files: each is built from its page alone, and reads as the page says. The
README and the pages for a start do what they say, and what they say to install can be installed."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import numpy as np
import pages
import pytest
import stand_ins

import squish_core as squish
from squish_core import dtypes

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "formats"
# "  128  00 1f ...   what it is": an offset, bytes, remarks.
ROW = re.compile(r"^ *(\d+)  ((?:[0-9a-f]{2} )*[0-9a-f]{2})(?: {3,}|$)", re.MULTILINE)
# "w.scales  f16  [1, 2]  0.5   what it is": an array, of the values that follow or filled with one.
ARRAY = re.compile(r"^(\S+) +(\w+) +(\[[\d, ]*\]) +(0x\w+|[-\d.\[\], ]+?)(?: {3,}|$)", re.MULTILINE)
MATRIX = [[127.0, 64.0, -127.0, 1.0], [254.0, 0.0, 2.0, -254.0]]
JSON = re.compile(r"^(\S+\.json) +(\{.*\})$", re.MULTILINE)


def page(name: str) -> str:
    """The worked example of a page."""
    return (PAGES / f"{name}.md").read_text().partition("\n## A small ")[2]


def bytes_of(text: str, size: int) -> bytes:
    """The file whose rows a page shows, zero elsewhere."""
    data = bytearray(size)
    for place, row in ROW.findall(text):
        piece = bytes.fromhex(row)
        data[int(place) : int(place) + len(piece)] = piece
    assert len(data) == size
    return bytes(data)


def arrays_of(text: str) -> dict[str, tuple[str, np.ndarray]]:
    """The arrays that a page lists, by name, with their dtypes."""
    examples = {}
    for name, dtype, shape, values in ARRAY.findall(text):
        stored = np.array(int(values, 16) if values.startswith("0x") else json.loads(values), dtypes.to_numpy(dtype))
        examples[name] = (dtype, np.broadcast_to(stored, json.loads(shape)))
    return examples


def safetensors(text: str) -> bytes:
    """A safetensors file of the arrays that a page lists."""
    header, data = {}, b""
    for name, (dtype, array) in arrays_of(text).items():
        header[name] = {
            "dtype": dtype.upper(), "shape": array.shape, "data_offsets": [len(data), len(data) + array.nbytes],
        }  # fmt: skip
        data += array.tobytes()
    head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + data


def checkpoint(text: str, folder: Path) -> Path:
    """A folder with the config.json and the arrays of a page."""
    ((name, config),) = JSON.findall(text)
    (folder / name).write_text(config)
    (folder / "model.safetensors").write_bytes(safetensors(text))
    return folder


def read(source: bytes | Path) -> dict[str, object]:
    """Codec and values of every tensor of a file without a fault."""
    assert squish.verify(source, deep=True).clean
    with squish.open(source, strict=True) as file:
        return {name: (tensor.codec, tensor.numpy().tolist()) for name, tensor in file.items()}


def test_squizd() -> None:
    tensors = read(bytes_of(page("squizd"), 472))
    assert tensors == {
        "layers.0.w0": ("squizd.int4", [[0.5, -0.5], [3.5, -4.0]]),
        "layers.1.w0": ("dense", [1.0, -2.0]),
    }


def test_gguf() -> None:
    data = bytes_of(page("gguf"), 256)
    assert read(data) == {"norm": ("dense", [1.0, -2.0]), "w": ("ggml.q8_0", [[code / 2 for code in range(32)]])}
    assert squish.open(data).meta == {"general.architecture": "llama"}


def test_safetensors() -> None:
    text = page("safetensors")
    (header,) = re.findall(r"^ *8  (\{.*\})", text, re.MULTILINE)
    data = bytearray(bytes_of(text, 164))
    data[8:152] = header.encode().ljust(144)
    assert read(bytes(data)) == {"w": ("dense", [[1.0, 2.0], [3.0, -4.0]]), "b": ("dense", [0.5])}
    assert squish.open(bytes(data)).meta == {"note": "two"}


def test_ztensor() -> None:
    data = bytes_of(page("ztensor"), 182)
    assert read(data) == {"w": ("dense", [[1.0, 2.0], [3.0, -4.0]])}
    assert squish.open(data).index.version == "1.1.0"


def test_uqff() -> None:
    data = safetensors(page("uqff"))
    assert read(data) == {"lm_head.weight": ("ggml.q8_0", [[code / 2 for code in range(32)]])}


def test_npydir(tmp_path: Path) -> None:
    text = page("npydir")
    ((name, manifest),) = JSON.findall(text)
    (tmp_path / name).write_text(manifest)
    (tmp_path / "tensors").mkdir()
    (tmp_path / "tensors" / ".manifest_ready").touch()
    for name, (_, array) in arrays_of(text).items():
        np.save(tmp_path / name, array)
    assert read(tmp_path) == {"layers.0.w": ("affine", MATRIX)}


def test_mlpackage(tmp_path: Path) -> None:
    source, package = tmp_path / "w.safetensors", tmp_path / "w.mlpackage"
    values = np.array(MATRIX, np.float16)
    header = b'{"w":{"dtype":"F16","shape":[2,4],"data_offsets":[0,16]}}'
    source.write_bytes(len(header).to_bytes(8, "little") + header + values.tobytes())
    squish.convert(source, package, encode="int8")
    (weights,) = package.glob("Data/*/weights/weight.bin")
    assert weights.read_bytes() == bytes_of(page("mlpackage"), 320)
    assert squish.open(package)["w"].numpy().tolist() == MATRIX


def test_mlx(tmp_path: Path) -> None:
    file = squish.open(checkpoint(page("mlx"), tmp_path))
    assert file.format == "mlx"
    assert file["fc.weight"].numpy().tolist() == [[code / 2 - 1 for code in range(8)] * 4]


def test_hf(tmp_path: Path) -> None:
    file = squish.open(checkpoint(page("hf"), tmp_path))
    assert file.format == "hf"
    assert file["fc.weight"].numpy().tolist() == [[(code - 8) / 2 for code in range(8)] * 4] * 8


STARTS = (
    "README.md",
    "docs/start/install.md",
    "docs/start/ten-minutes.md",
    "docs/explain/chains.md",
    "CONTRIBUTING.md",
)
PIPX = re.compile(r"^pipx install (\.)\n((?:pipx inject .*\n)+)", re.MULTILINE)


@pytest.mark.parametrize("name", STARTS)
def test_every_block_of_a_page_for_a_start_runs(
    name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On small models under the names of the text; a block that needs the network has commands that exist."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    if not stand_ins.PLACE:
        stand_ins.PLACE.append(tmp_path_factory.mktemp("stand-ins"))
    shutil.copy2(stand_ins.stand_in("smollm2.gguf"), tmp_path)
    pages.run_page(ROOT / name)


@pytest.mark.parametrize("name", STARTS[:2])
def test_a_page_installs_what_its_plugins_need(name: str) -> None:
    """pip looks for dependencies in an index, not in the checkout: every `pip install` of folders names them all."""
    projects = {}
    for file in (ROOT / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml")):
        projects[file.parent] = tomllib.loads(file.read_text())["project"]
    ours = {project["name"] for project in projects.values()}
    text = (ROOT / name).read_text(encoding="utf-8")
    injected = (" ".join([first, *re.findall(r"\./\S+", rest)]) for first, rest in PIPX.findall(text))
    lines = [*re.findall(r"^pip install ([^#\n]*)", text, re.MULTILINE), *injected]
    assert lines
    for line in lines:
        named = [projects[(ROOT / folder.partition("[")[0]).resolve()] for folder in shlex.split(line)]
        needed = {re.split(r"\W*[<>=\[;]", need)[0] for project in named for need in project["dependencies"]}
        assert needed & ours <= {project["name"] for project in named}, line


def test_every_shared_codec_has_a_page() -> None:
    """Hints of errors lead to docs/codecs for the parameters."""
    pages = "".join(path.read_text() for path in (ROOT / "docs" / "codecs").glob("*.md"))
    registry = squish.registry()
    ids = [
        entry.id for kind in ("codec", "allocator") for entry in registry.find(kind) if entry.dist == "squish-codecs"
    ]
    assert ids
    assert [name for name in ids if f"# {name}:" not in pages and f"`{name}" not in pages] == []
