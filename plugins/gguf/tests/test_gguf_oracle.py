"""gguf-py as the reference, in both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import squish_core as squish
from squish_core.api import Sink, Typed

pytestmark = [pytest.mark.oracle, pytest.mark.peers]
DATA = Path(__file__).parent / "data"


def fields(path: str) -> Any:
    """Return key, types and value of every field (as text, since JSON has no NaN); runs in the peer."""
    import gguf

    reader = gguf.GGUFReader(path)
    fields = [(name, field) for name, field in reader.fields.items() if not name.startswith("GGUF.")]
    return [[name, [kind.name for kind in field.types], repr(field.contents())] for name, field in fields]


def tensors(path: str) -> Any:
    """Return name, row-major shape, type and bytes of every tensor; runs in the peer."""
    import gguf

    tensors = []
    for item in gguf.GGUFReader(path).tensors:
        shape = [int(size) for size in reversed(item.shape)]
        tensors.append([item.name, shape, item.tensor_type.name, int(item.data_offset), item.data.tobytes()])
    return tensors


def write_types(path: str) -> Any:
    """Write a tensor of each type for which gguf-py has the right block size; returns their names; runs in the peer."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    names = []
    for kind, (_, size) in gguf.GGML_QUANT_SIZES.items():
        if kind.name == "Q8_1":  # 36 bytes in ggml; gguf-py counts 40
            continue
        stored = np.arange(6 * size, dtype=np.uint8).reshape(3, 2 * size)
        writer.add_tensor_info(kind.name, [3, 2 * size], stored.dtype, stored.nbytes, raw_dtype=kind)
        writer.tensors[-1][kind.name].tensor = stored
        names.append(kind.name)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return names


NAMES = {
    "u8": "UINT8", "i8": "INT8", "u16": "UINT16", "i16": "INT16", "u32": "UINT32", "i32": "INT32", "f32": "FLOAT32",
    "bool": "BOOL", "str": "STRING", "u64": "UINT64", "i64": "INT64", "f64": "FLOAT64",
}  # fmt: skip


def as_theirs(meta: dict[str, Typed]) -> list[list[Any]]:
    """Our metadata in the form of `fields`."""
    warnings = []
    for key, value in meta.items():
        kinds = [NAMES[value.type.removeprefix("array:")]]
        if value.type.startswith("array:"):
            warnings.append([key, ["ARRAY", *kinds], repr(list(value.value))])
        else:
            warnings.append([key, kinds, repr(value.value)])
    return warnings


def type_of(tensor: squish.Tensor) -> str:
    """GGML's name of the tensor's type."""
    return (str(tensor.dtype) if tensor.codec == "dense" else tensor.codec.removeprefix("ggml.")).upper()


@pytest.mark.parametrize("name", ["types.gguf", "blocks.gguf", "split-00001-of-00002.gguf"])
def test_golden_files_read_like_in_gguf_py(name):
    whole = DATA / name
    with squish.open(whole) as file:
        theirs = oracles.peer("gguf").run(fields, path=str(whole))
        theirs = [field for field in theirs if not field[0].startswith("split.")]
        assert theirs == as_theirs(file.index.meta)
        for each, shape, kind, offset, data in oracles.peer("gguf").run(tensors, path=str(whole)):
            part = file[each].spec.encodings[0].parts["data"]
            assert (file[each].shape, type_of(file[each])) == (tuple(shape), kind)
            assert (part.segments[0].offset, bytes(file[each].parts()["data"].raw)) == (offset, data)


def test_every_tensor_type_that_gguf_py_writes_reads_back(tmp_path):
    path = tmp_path / "theirs.gguf"
    names = oracles.peer("gguf").run(write_types, path=str(path))
    with squish.open(path) as file:
        assert list(file) == names
        assert not file.problems
        for name in file:
            tensor = file[name]
            stored = bytes(tensor.parts()["data"].raw)
            assert type_of(tensor) == name
            assert stored == np.arange(len(stored), dtype=np.uint8).tobytes()


def test_a_rewritten_file_equals_gguf_pys(tmp_path):
    path = tmp_path / "theirs.gguf"
    oracles.peer("gguf").run(write_types, path=str(path))
    squish.convert(path, tmp_path / "ours.gguf")
    assert (tmp_path / "ours.gguf").read_bytes() == path.read_bytes()
    assert oracles.peer("gguf").run(tensors, path=str(tmp_path / "ours.gguf"))


def write_scaled(path: str, blocks: np.ndarray, scale: float) -> np.ndarray:
    """Write NVFP4 blocks and their global scale as llama.cpp's converter does; returns the product of the dequantized
    blocks and the scale; runs in the peer."""
    import gguf

    kind = gguf.GGMLQuantizationType.NVFP4
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("blk.0.attn_q.weight", blocks, raw_dtype=kind)
    writer.add_tensor("blk.0.attn_q.scale", np.array([scale], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return gguf.dequantize(blocks, kind) * np.float32(scale)


@pytest.mark.parametrize(("scale", "ulp"), [(0.25, 0), (0.0371, 1)])
def test_nvfp4_with_a_global_scale_has_gguf_pys_values(tmp_path, scale, ulp):
    """Both scales are multiplied first here, so that values equal those of the checkpoint: one rounding apart."""
    blocks = np.random.default_rng(3).integers(0, 256, (4, 2, 36), np.uint8)
    blocks[..., :4] &= 0x7F
    blocks[blocks[..., 0] == 0x7F, 0] = 0
    path = tmp_path / "theirs.gguf"
    expected = oracles.peer("gguf").run(write_scaled, path=str(path), blocks=blocks.reshape(4, 72), scale=scale)
    with squish.open(path) as file:
        np.testing.assert_array_max_ulp(file["blk.0.attn_q.weight"].numpy(), expected, ulp)
    squish.convert(path, tmp_path / "ours.gguf")
    assert (tmp_path / "ours.gguf").read_bytes() == path.read_bytes()


SCALARS = {
    "u8": st.integers(0, 255), "i8": st.integers(-128, 127), "u16": st.integers(0, 65535),
    "i16": st.integers(-(1 << 15), (1 << 15) - 1), "u32": st.integers(0, (1 << 32) - 1),
    "i32": st.integers(-(1 << 31), (1 << 31) - 1), "u64": st.integers(0, (1 << 64) - 1),
    "i64": st.integers(-(1 << 63), (1 << 63) - 1), "f32": st.floats(width=32), "f64": st.floats(),
    "bool": st.booleans(), "str": st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
}  # fmt: skip
# gguf-py misreports nested and empty arrays.
TYPED = st.one_of(
    [st.builds(Typed, st.just(kind), values) for kind, values in SCALARS.items()]
    + [
        st.builds(Typed, st.just(f"array:{kind}"), st.lists(each, min_size=1, max_size=5))
        for kind, each in SCALARS.items()
    ]
)
KEYS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)


@given(meta=st.dictionaries(KEYS, TYPED, max_size=8))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_gguf_py_reads_the_metadata_that_we_write(tmp_path, meta):
    path = tmp_path / "ours.gguf"
    with path.open("wb") as file:
        squish.registry().container("gguf").write(Sink(file, None, None), [], meta, {}, {})
    assert oracles.peer("gguf").run(fields, path=str(path)) == as_theirs(meta)


def test_gguf_py_reads_the_tensors_that_we_encode(tmp_path):
    values = np.linspace(-1, 1, 512, dtype=np.float32).reshape(2, 256)
    header = b'{"w":{"dtype":"F32","shape":[2,256],"data_offsets":[0,2048]}}'
    source = len(header).to_bytes(8, "little") + header + values.tobytes()
    squish.convert(source, tmp_path / "ours.gguf", encode="f16")
    ((name, shape, kind, offset, data),) = oracles.peer("gguf").run(tensors, path=str(tmp_path / "ours.gguf"))
    assert (name, shape, kind, offset % 32) == ("w", [2, 256], "F16", 0)
    assert data == values.astype(np.float16).tobytes()
