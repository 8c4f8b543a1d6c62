"""Big-endian files: the same metadata and values as their little-endian twins."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import oracles
import pytest

import squish_core as squish


def string(value: str, order: str) -> bytes:
    raw = value.encode()
    return struct.pack(f"{order}Q", len(raw)) + raw


def twin(order: str) -> bytes:
    """A file with every kind of value, a dense tensor and blocks, in one byte order."""

    def pack(form: str, *values: object) -> bytes:
        return struct.pack(order + form, *values)

    def pair(key: str, code: int, payload: bytes) -> bytes:
        return string(key, order) + pack("I", code) + payload

    pairs = [
        pair("a.u16", 2, pack("H", 513)), pair("b.f32", 6, pack("f", 1.5)), pair("c.i64", 11, pack("q", -5)),
        pair("d.bool", 7, b"\1"), pair("e.str", 8, string("höhe", order)),
        pair("f.numbers", 9, pack("IQ3i", 5, 3, 1, -2, 70000)),
        pair("g.words", 9, pack("IQ", 8, 2) + string("one", order) + string("x" * 200, order)),
        pair("h.nested", 9, pack("IQ", 9, 2) + pack("IQ2H", 2, 2, 1, 2) + pack("IQH", 2, 1, 770)),
    ]  # fmt: skip
    dense = np.arange(8, dtype=f"{order}f4").tobytes()
    rng = np.random.default_rng(0)
    blocks = b"".join(pack("e", 0.25 + n) + rng.integers(0, 256, 16, np.uint8).tobytes() for n in range(4))
    k_blocks = rng.integers(0, 256, 208, np.uint8).tobytes() + pack("e", 0.125)
    table, data = b"", b""
    for name, dims, code, raw in (
        ("dense", (4, 2), 0, dense),
        ("blocks", (64, 2), 2, blocks),
        ("k", (256,), 14, k_blocks),
    ):
        table += string(name, order) + pack(f"I{len(dims)}QIQ", len(dims), *dims, code, len(data))
        data += raw + bytes(-len(raw) % 32)
    head = b"GGUF" + pack("IQQ", 3, 3, len(pairs)) + b"".join(pairs) + table
    return head + bytes(-len(head) % 32) + data


def test_a_big_endian_file_has_the_metadata_and_values_of_its_twin() -> None:
    with squish.open(twin("<")) as little, squish.open(twin(">")) as big:
        assert big.index.meta == little.index.meta
        assert big.meta["h.nested"][1][0] == 770
        assert list(big) == list(little)
        for name in little:
            np.testing.assert_array_equal(big[name].numpy(), little[name].numpy())
            np.testing.assert_array_equal(big[name][:1], little[name].numpy()[:1])
        np.testing.assert_array_equal(big.numpy()["dense"], little.numpy()["dense"])


def test_dense_values_and_simple_blocks_are_written_little_endian(tmp_path: Path) -> None:
    for name, order in (("little", "<"), ("big", ">")):
        squish.convert(twin(order), tmp_path / name, "gguf", only=["dense", "blocks"])
    assert (tmp_path / "big").read_bytes() == (tmp_path / "little").read_bytes()


@pytest.mark.parametrize(("dims", "shape"), [((0,), (0,)), ((32, 0), (0, 32)), ((0, 3), (3, 0))])
def test_blocks_without_rows_or_columns_decode(dims: tuple[int, ...], shape: tuple[int, ...]) -> None:
    entry = string("w", ">") + struct.pack(f">I{len(dims)}QIQ", len(dims), *dims, 2, 0)
    head = b"GGUF" + struct.pack(">IQQ", 3, 1, 0) + entry
    with squish.open(head + bytes(-len(head) % 32)) as file:
        assert file["w"].numpy().shape == shape


def write_big(path: str) -> None:
    """Write a big-endian file with gguf-py; runs in the peer."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_uint32("llama.block_count", 7)
    writer.add_array("words", ["a", "bc"])
    writer.add_tensor("w", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.oracle
def test_big_endian_files_of_gguf_py_are_read(tmp_path: Path) -> None:
    oracles.peer("gguf").run(write_big, path=str(tmp_path / "big.gguf"))
    with squish.open(tmp_path / "big.gguf") as file:
        assert (file.meta["llama.block_count"], list(file.meta["words"])) == (7, ["a", "bc"])
        np.testing.assert_array_equal(file["w"].numpy(), np.arange(6).reshape(2, 3))
