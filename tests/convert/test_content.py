"""`hash_content`: ids of the codes, whatever format stores them; manifests; the sums of gguf-hash."""

from __future__ import annotations

import hashlib
import json
import uuid
from pathlib import Path

import numpy as np
import pytest
import xxhash
from squish_convert.content import check_manifest, gguf_sums, hash_content, save_manifest

import squish_core as squish

RANDOM = np.random.default_rng(7)
WEIGHTS = {
    "layers.0.up.weight": RANDOM.standard_normal((64, 256), np.float32),
    "layers.0.down.weight": RANDOM.standard_normal((32, 512), np.float32),
    "norm": np.ones(5, np.float16),
}
FOLDERS = ("mlx", "npydir", "hf")


def target(folder: Path, to: str) -> Path:
    name = to.partition(":")[0]
    return folder / f"copy-{name}{'' if name in FOLDERS else '.' + name}"


@pytest.mark.parametrize(
    ("encoding", "to"),
    [
        ("q4_0", "ztensor:wire=2"),
        ("q4_0", "ztensor:encoding=zstd"),
        ("q4_0", "hf:method=gptq"),
        ("q4_0", "mlx"),
        ("q4_0", "uqff"),
        ("q4_0", "squizd"),
        ("q4_1", "mlx"),
        ("q4_1", "npydir"),
        ("q5_0", "mlx"),
        ("q8_0", "hf:method=gptq"),
        ("q4_k", "squizd"),
        ("q6_k", "uqff"),
        ("mxfp4", "mlx"),
        ("nvfp4", "mlx"),
        ("iq4_xs", "ztensor"),
        ("f16", "safetensors"),
        ("f16", "npydir"),
    ],
)
def test_copy_of_codes_keeps_the_ids(tmp_path: Path, encoding: str, to: str) -> None:
    source = tmp_path / "source.gguf"
    squish.save(source, WEIGHTS, encode={"*.weight": encoding}, metadata={"general.name": "one"})
    squish.convert(source, target(tmp_path, to), to, rename="keep")
    first, second = hash_content(source), hash_content(target(tmp_path, to))
    assert first.tensors == second.tensors
    assert first.content == second.content


def test_ids_depend_on_names_shapes_and_codes_alone(tmp_path: Path) -> None:
    def content(tensors: dict[str, np.ndarray], **options: object) -> str:
        squish.save(tmp_path / "m.gguf", tensors, **options)  # type: ignore[arg-type]
        return hash_content(tmp_path / "m.gguf").content

    base = content({"w": np.ones((2, 32), np.float32), "v": np.zeros(3, np.float32)})
    reordered = {"v": np.zeros(3, np.float32), "w": np.ones((2, 32), np.float32)}
    assert content(reordered, metadata={"general.name": "x"}) == base
    others = [
        content({"w": np.ones((2, 32), np.float32), "u": np.zeros(3, np.float32)}),
        content({"w": np.ones((1, 64), np.float32), "v": np.zeros(3, np.float32)}),
        content({"w": np.ones((2, 32), np.float16), "v": np.zeros(3, np.float32)}),
        content(reordered, encode={"w": "q8_0"}),
        content(reordered, encode={"w": "q4_0"}),
    ]
    assert len({base, *others}) == len(others) + 1


@pytest.mark.parametrize("encoding", ["q4_0", "q5_1", "q4_k", "iq4_nl", "mxfp4", "f32"])
def test_every_byte_counts(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "m.gguf"
    squish.save(path, {"w": RANDOM.standard_normal((1, 256), np.float32)}, encode=encoding)
    with squish.open(path) as file:
        (segment,) = file.index.tensors["w"].encodings[0].parts["data"].segments
    data, before = bytearray(path.read_bytes()), hash_content(path).content
    for place in range(segment.offset, segment.offset + segment.length, 7):
        data[place] ^= 4
        assert hash_content(bytes(data)).content != before, place
        data[place] ^= 4


def test_manifest_lists_what_differs(tmp_path: Path) -> None:
    one, other, manifest = tmp_path / "a.gguf", tmp_path / "b.zt", tmp_path / "m.json"
    squish.save(one, {"same": np.ones(2), "changed": np.ones(3), "gone": np.ones(4)}, encode="f32")
    squish.save(other, {"same": np.ones(2, "f4"), "changed": np.zeros(3, "f4"), "new": np.ones(4, "f4")})
    save_manifest(hash_content(one), manifest)
    assert check_manifest(one, manifest) == ()
    found = {(problem.code, problem.where) for problem in check_manifest(other, manifest)}
    assert found == {("digest", "changed"), ("name", "gone"), ("name", "new")}


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"manifest": "squish-manifest/2", "tensors": {}}', b"\xff", b"[" * 100_000]
)
def test_invalid_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    squish.save(tmp_path / "a.gguf", {"w": np.ones(2, "f4")})
    (tmp_path / "m.json").write_bytes(content)
    with pytest.raises(squish.FormatError) as caught:
        check_manifest(tmp_path / "a.gguf", tmp_path / "m.json")
    assert caught.value.code == "manifest"


def test_manifest_replaces_no_model(tmp_path: Path) -> None:
    squish.save(tmp_path / "a.gguf", {"w": np.ones(2, "f4")})
    before = (tmp_path / "a.gguf").read_bytes()
    with pytest.raises(squish.UsageError) as refused:
        save_manifest(hash_content(tmp_path / "a.gguf"), tmp_path / "a.gguf")
    assert (refused.value.code, (tmp_path / "a.gguf").read_bytes()) == ("exists", before)


def test_gguf_sums_are_of_the_stored_bytes(tmp_path: Path) -> None:
    squish.save(tmp_path / "m.gguf", WEIGHTS, encode={"*.weight": "q4_k"})
    with squish.open(tmp_path / "m.gguf") as file:
        lines = gguf_sums(file)
        stored = {
            name: b"".join(file.array(file.index.tensors[name].encodings[0].parts["data"]).chunks()) for name in file
        }
        path = file.name
    sums = {(line.kind, line.name): line.hex for line in lines}
    for name, data in {
        **{f"{path}:{name}": data for name, data in stored.items()},
        path: b"".join(stored.values()),
    }.items():
        assert sums["xxh64", name] == xxhash.xxh64(data).hexdigest()
        assert sums["sha256", name] == hashlib.sha256(data).hexdigest()
        assert sums["sha1", name] == hashlib.sha1(data).hexdigest()
    namespace = uuid.uuid5(uuid.NAMESPACE_URL, "en.wikipedia.org/wiki/Llama.cpp").bytes
    digest = hashlib.sha1(namespace + b"".join(stored.values())).digest()
    assert sums["uuid", path] == str(uuid.UUID(bytes=digest[:16], version=5))
    assert len(lines) == 3 * len(stored) + 4


def test_manifest_is_json(tmp_path: Path) -> None:
    squish.save(tmp_path / "a.gguf", {"w": np.ones(2, "f4")})
    content = hash_content(tmp_path / "a.gguf")
    save_manifest(content, tmp_path / "m.json")
    document = json.loads((tmp_path / "m.json").read_text())
    assert document["content"] == content.content
    assert document["tensors"] == dict(content.tensors)
