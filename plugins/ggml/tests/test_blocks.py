"""GGML block codecs match the reference's values and bytes, from any memory layout, in bounded memory."""

from __future__ import annotations

import ctypes
import importlib.util
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_ggml.blocks import BLOCKS, LONG_TAIL, Block
from squish_testing import expect_error

from squish_core.api import MissingPluginError

NAMES = sorted(BLOCKS)
BEYOND_GGUF_PY = ("nvfp4", "q1_0")  # encoders only in ggml
UNRELEASED = {"q2_0"}  # in llama.cpp since June 2026, not yet released in gguf-py
GOLDEN_NAMES = sorted(set(NAMES) - {"q8_1", "q8_k"} - UNRELEASED)
ENCODED_NAMES = sorted(name for name in NAMES if BLOCKS[name].encode)
DATA = Path(__file__).parent / "data"
GOLDEN = {**np.load(DATA / "golden.npz"), **np.load(DATA / "golden_ggml.npz")}


def decode(block: Block, blocks: np.ndarray) -> np.ndarray:
    """Decode into memory with other contents."""
    out = np.full((blocks.shape[0], blocks.shape[1] * block.elements), 12345.0, np.float32)
    block.decode(blocks, out)
    return out


def encode(block: Block, values: np.ndarray) -> np.ndarray:
    """Encode into memory with other contents."""
    assert block.encode is not None
    out = np.full((len(values), values.shape[1] // block.elements, block.nbytes), 0xA5, np.uint8)
    block.encode(values, out)
    return out


def random_blocks(block: Block, rows: int, count: int) -> np.ndarray:
    """Random bytes as blocks, including NaN, infinite and subnormal scales."""
    return np.random.default_rng(5).integers(0, 256, (rows, count, block.nbytes), dtype=np.uint8)


def assert_same_bits(ours: np.ndarray, expected: np.ndarray) -> None:
    """Assert bit equality, -0 and 0 included; NaN payloads depend on the processor."""
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(ours), nan)
    np.testing.assert_array_equal(ours.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


# An independent decoder, one weight at a time, from the block layouts.


def single(value: float) -> float:
    """Round to float32; double rounding of a sum or product of two float32 is safe."""
    return ctypes.c_float(value).value


def nibble(packed: bytes, index: int, width: int) -> int:
    """Element `index` if each `width` bytes hold `width` low nibbles, then `width` high ones."""
    group, within = divmod(index, 2 * width)
    high, place = divmod(within, width)
    return packed[group * width + place] >> (4 * high) & 15


def pair(packed: bytes, index: int) -> int:
    """Element `index` if each 32 bytes hold four runs of 32 two-bit elements."""
    group, within = divmod(index, 128)
    return packed[group * 32 + within % 32] >> (2 * (within // 32)) & 3


def scalar_legacy(name: str, raw: bytes) -> Iterator[float]:
    with_minimum, bits = name.endswith("1"), int(name[1])
    scale, minimum = struct.unpack_from("<ee", raw)
    packed = raw[4 if with_minimum else 2 :]
    fifth = int.from_bytes(packed[:4], "little") if bits == 5 else 0
    for index in range(32):
        level = nibble(packed[4 if bits == 5 else 0 :], index, 16) | (fifth >> index & 1) << 4
        if with_minimum:
            yield single(single(scale * level) + minimum)
        else:
            yield scale * (level - (16 if bits == 5 else 8))


def scalar_q8(layout: str, raw: bytes) -> Iterator[float]:
    scale, *_, quants = struct.unpack(layout, raw)
    for quant in struct.unpack(f"{len(quants)}b", quants):
        yield single(scale * quant)


def scalar_q2_k(raw: bytes) -> Iterator[float]:
    factors, quants, scale, minimum = struct.unpack("<16s64see", raw)
    for index in range(256):
        factor = factors[index // 16]
        product = single(scale * (factor & 15) * pair(quants, index))
        yield single(product - minimum * (factor >> 4))


def scalar_q3_k(raw: bytes) -> Iterator[float]:
    high, quants, factors, scale = struct.unpack("<32s64s12se", raw)
    for index in range(256):
        group = index // 16
        factor = factors[group % 8] >> (4 * (group // 8)) & 15
        factor |= (factors[8 + group % 4] >> (2 * (group // 4)) & 3) << 4
        third = high[index % 32] >> (index // 32) & 1
        yield single(scale * (factor - 32) * (pair(quants, index) - (0 if third else 4)))


def six_bits(factors: bytes, group: int) -> tuple[int, int]:
    """Scale and minimum of one Q4_K or Q5_K group of 32."""
    if group < 4:
        return factors[group] & 63, factors[group + 4] & 63
    shared = factors[group + 4]
    return shared & 15 | factors[group - 4] >> 6 << 4, shared >> 4 | factors[group] >> 6 << 4


def scalar_q45_k(layout: str, raw: bytes) -> Iterator[float]:
    scale, minimum, factors, *fifth, quants = struct.unpack(layout, raw)
    for index in range(256):
        level = nibble(quants, index, 32)
        for high in fifth:
            level |= (high[index % 32] >> (index // 32) & 1) << 4
        factor, offset = six_bits(factors, index // 32)
        yield single(single(scale * factor * level) - minimum * offset)


def scalar_q6_k(raw: bytes) -> Iterator[float]:
    low, high, factors, scale = struct.unpack("<128s64s16se", raw)
    for index in range(256):
        level = nibble(low, index, 64) | pair(high, index) << 4
        factor = struct.unpack_from("b", factors, index // 16)[0]
        yield single(scale * factor * (level - 32))


def scalar_q1_0(raw: bytes) -> Iterator[float]:
    (scale,), bits = struct.unpack_from("<e", raw), int.from_bytes(raw[2:], "little")
    for index in range(128):
        yield scale if bits >> index & 1 else -scale


def scalar_q2_0(raw: bytes) -> Iterator[float]:
    (scale,), bits = struct.unpack_from("<e", raw), int.from_bytes(raw[2:], "little")
    for index in range(64):
        yield scale * ((bits >> 2 * index & 3) - 1)


def scalar_tq1_0(raw: bytes) -> Iterator[float]:
    packed, (scale,) = raw[:52], struct.unpack_from("<e", raw, 52)
    for start, width, count in ((0, 32, 5), (32, 16, 5), (48, 4, 4)):
        for digit in range(count):
            for place in range(width):
                yield scale * ((packed[start + place] * 3**digit % 256 * 3 >> 8) - 1)


def scalar_tq2_0(raw: bytes) -> Iterator[float]:
    packed, (scale,) = raw[:64], struct.unpack_from("<e", raw, 64)
    for index in range(256):
        yield scale * (pair(packed, index) - 1)


FLOAT4 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)


def float4(code: int) -> float:
    return float(-FLOAT4[code & 7] if code & 8 else FLOAT4[code & 7])


def scalar_mxfp4(raw: bytes) -> Iterator[float]:
    for index in range(32):
        yield single(float4(nibble(raw[1:], index, 16)) * 2.0 ** (raw[0] - 127))


def scalar_nvfp4(raw: bytes) -> Iterator[float]:
    for index in range(64):
        code, packed = raw[index // 16], raw[4 + index // 16 * 8 :][:8]
        exponent, mantissa = code >> 3 & 15, code & 7
        scale = mantissa / 512 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        yield float4(nibble(packed, index % 16, 8)) * (0 if code == 0x7F else scale)


STEPS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def scalar_iq4_nl(raw: bytes) -> Iterator[float]:
    (scale,) = struct.unpack_from("<e", raw)
    for index in range(32):
        yield single(scale * STEPS[nibble(raw[2:], index, 16)])


def scalar_iq4_xs(raw: bytes) -> Iterator[float]:
    scale, high = struct.unpack_from("<eH", raw)
    for index in range(256):
        group = index // 32
        factor = (raw[4 + group // 2] >> 4 * (group % 2) & 15) | (high >> 2 * group & 3) << 4
        yield single(single(scale * (factor - 32)) * STEPS[nibble(raw[8:], index, 16)])


SCALAR: dict[str, Callable[[bytes], Iterator[float]]] = {
    "q4_0": lambda raw: scalar_legacy("q4_0", raw),
    "q4_1": lambda raw: scalar_legacy("q4_1", raw),
    "q5_0": lambda raw: scalar_legacy("q5_0", raw),
    "q5_1": lambda raw: scalar_legacy("q5_1", raw),
    "q8_0": lambda raw: scalar_q8("<e32s", raw),
    "q8_1": lambda raw: scalar_q8("<ee32s", raw),
    "q2_k": scalar_q2_k,
    "q3_k": scalar_q3_k,
    "q4_k": lambda raw: scalar_q45_k("<ee12s128s", raw),
    "q5_k": lambda raw: scalar_q45_k("<ee12s32s128s", raw),
    "q6_k": scalar_q6_k,
    "q8_k": lambda raw: scalar_q8("<f256s", raw[:260]),
    "q1_0": scalar_q1_0,
    "q2_0": scalar_q2_0,
    "tq1_0": scalar_tq1_0,
    "tq2_0": scalar_tq2_0,
    "mxfp4": scalar_mxfp4,
    "nvfp4": scalar_nvfp4,
    "iq4_nl": scalar_iq4_nl,
    "iq4_xs": scalar_iq4_xs,
}


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_arbitrary_bytes_decode_by_the_layout(name: str, data: st.DataObject) -> None:
    raw = data.draw(st.binary(min_size=BLOCKS[name].nbytes, max_size=BLOCKS[name].nbytes))
    ours = decode(BLOCKS[name], np.frombuffer(raw, np.uint8).reshape(1, 1, -1))
    assert_same_bits(ours, np.array([list(SCALAR[name](raw))], np.float32))


@pytest.mark.parametrize("name", NAMES)
def test_random_blocks_decode_by_the_layout(name: str) -> None:
    blocks = random_blocks(BLOCKS[name], 2, 5)
    expected = [[value for raw in row for value in SCALAR[name](raw.tobytes())] for row in blocks]
    assert_same_bits(decode(BLOCKS[name], blocks), np.array(expected, np.float32))


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_golden_blocks_decode_to_golden_values(name: str) -> None:
    assert_same_bits(decode(BLOCKS[name], GOLDEN[f"{name}_blocks"]), GOLDEN[f"{name}_values"])


@pytest.mark.parametrize("name", sorted(set(ENCODED_NAMES) - UNRELEASED))
def test_golden_inputs_encode_to_golden_blocks(name: str) -> None:
    elements, inputs = BLOCKS[name].elements, GOLDEN["inputs"]
    rows = inputs.reshape(-1)[: inputs.size // 256 * 256].reshape(-1, 256) if elements == 256 else inputs
    rows = inputs.reshape(-1, 128) if name in BEYOND_GGUF_PY else rows
    ours = encode(BLOCKS[name], rows)
    np.testing.assert_array_equal(ours.reshape(len(ours), -1), GOLDEN[f"{name}_encoded"])


@pytest.mark.parametrize("name", NAMES)
def test_values_do_not_depend_on_rows_and_panels(name: str) -> None:
    block = BLOCKS[name]
    count = 3 * (1 << 16) // block.elements + 7
    blocks = random_blocks(block, 1, count)
    huge_row = decode(block, blocks)
    in_parts = [decode(block, blocks[:, start : start + 101]) for start in range(0, count, 101)]
    assert_same_bits(huge_row, np.concatenate(in_parts, axis=1))
    many_rows = decode(block, blocks.reshape(count, 1, -1))
    assert_same_bits(huge_row.reshape(many_rows.shape), many_rows)


@pytest.mark.parametrize("name", NAMES)
def test_unaligned_read_only_input_decodes(name: str) -> None:
    block = BLOCKS[name]
    blocks = random_blocks(block, 3, 5)
    view = np.frombuffer(b"x" + blocks.tobytes(), np.uint8, offset=1).reshape(blocks.shape)
    assert not view.flags.writeable
    assert_same_bits(decode(block, view), decode(block, blocks))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [4, 3000])
def test_a_slice_of_columns_decodes(name: str, count: int) -> None:
    block = BLOCKS[name]
    blocks = random_blocks(block, 40, count + 2)
    sliced = blocks[::3, 1:-1]
    assert_same_bits(decode(block, sliced), decode(block, sliced.copy()))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
def test_empty_input_decodes_to_empty_output(name: str, shape: tuple[int, int]) -> None:
    block = BLOCKS[name]
    assert decode(block, np.empty((*shape, block.nbytes), np.uint8)).size == 0


@pytest.mark.parametrize("name", NAMES)
def test_work_memory_does_not_grow_with_the_tensor(name: str) -> None:
    block = BLOCKS[name]
    blocks = random_blocks(block, 1, (1 << 22) // block.elements)
    out = np.empty((1, 1 << 22), np.float32)
    tracemalloc.start()
    block.decode(blocks, out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 512 << 10  # the output has 16 MiB


@pytest.mark.parametrize("name", NAMES)
def test_invalid_arrays_are_refused(name: str) -> None:
    block = BLOCKS[name]
    blocks = random_blocks(block, 2, 3)
    out = np.empty((2, 3 * block.elements), np.float32)
    with pytest.raises(ValueError, match="blocks must be"):
        block.decode(blocks[..., :-1], out)
    with pytest.raises(ValueError, match="adjacent"):
        block.decode(np.repeat(blocks, 2, axis=2)[..., ::2], out)
    with pytest.raises(ValueError, match="values must be"):
        block.decode(blocks, out[:, :-1])
    with pytest.raises(ValueError, match="values must be"):
        block.decode(blocks, np.asfortranarray(out))


@pytest.mark.parametrize("name", ENCODED_NAMES)
def test_the_encoding_error_is_at_most_half_a_step(name: str) -> None:
    values = np.random.default_rng(6).standard_normal((3, 1 << 16)).astype(np.float32)
    elements = BLOCKS[name].elements
    error = np.abs(decode(BLOCKS[name], encode(BLOCKS[name], values)) - values).reshape(-1, elements).max(axis=1)
    magnitude = np.abs(values).reshape(-1, elements).max(axis=1)
    # Q4_0 has 7 levels on one side of zero and 8 on the other: an extreme value may be off by a full step.
    # MXFP4 clips values up to nearly 8 to 6.
    steps = {
        "q4_0": 1 / 8,
        "q4_1": 2 / 15 / 2,
        "q5_0": 1 / 16,
        "q5_1": 2 / 31 / 2,
        "q8_0": 1 / 127 / 2,
        "mxfp4": 1 / 4,
        "nvfp4": 1 / 6 + 1 / 16,  # half the last step plus the e4m3 rounding of the scale
        "q1_0": 1,
        "q2_0": 1 / 2,
        "tq1_0": 1 / 2,
        "tq2_0": 1 / 2,
    }[name]
    assert (error <= magnitude * (steps + 1e-3)).all()


@pytest.mark.parametrize("name", ENCODED_NAMES)
def test_encoding_refuses_scattered_output(name: str) -> None:
    block = BLOCKS[name]
    assert block.encode is not None
    with pytest.raises(ValueError, match="C-contiguous"):
        block.encode(np.zeros((2, block.elements), np.float32), np.zeros((2, 3, block.nbytes), np.uint8)[:, ::3])


def hard_values() -> Iterator[np.ndarray]:
    """Rows of 1280 float32: random, zero, constant, tied, huge, tiny, non-finite and arbitrary."""
    random = np.random.default_rng(7)
    normal = random.standard_normal((50, 1280)).astype(np.float32)
    ties = (random.integers(-254, 255, (50, 1280)) / 2).astype(np.float32)
    for largest in (127, -8, 7.5):
        ties[:, ::32] = largest
        yield ties.copy()
        yield ties * np.float32(1 / 16)
    for size in (1, 0, -0.0, 1e-44, 1e-39, 1e-7, 1e6, 1e30, 3e37):
        yield normal * np.float32(size)
    for choice in ([0.0, -0.0], [-1.0, 1.0], [3.4e38, -3.4e38, 1.0], [np.nan, np.inf, -np.inf, 1.0, 0.0]):
        yield random.choice(np.array(choice, np.float32), (50, 1280))
    yield random.integers(0, 1 << 32, (50, 1280), dtype=np.uint32).view(np.float32)


def dequantize(blocks: np.ndarray, kind: str) -> np.ndarray:
    """Runs in the peer."""
    import gguf

    with np.errstate(all="ignore"):
        return gguf.dequantize(blocks, gguf.GGMLQuantizationType[kind])


def quantize(values: np.ndarray, kind: str) -> np.ndarray:
    """Runs in the peer."""
    import gguf

    with np.errstate(all="ignore"):
        return gguf.quantize(values, gguf.GGMLQuantizationType[kind])


@pytest.mark.peers
@pytest.mark.oracle
@pytest.mark.parametrize("name", [name for name in GOLDEN_NAMES if name != "q1_0"])
def test_decoders_agree_with_gguf_py(name: str) -> None:
    import oracles

    blocks = random_blocks(BLOCKS[name], 37, (1 << 15) // BLOCKS[name].elements)
    expected = oracles.peer("gguf").run(dequantize, blocks=blocks.reshape(37, -1), kind=name.upper())
    assert_same_bits(decode(BLOCKS[name], blocks), expected)


@pytest.mark.parametrize("name", LONG_TAIL)
def test_iq_blocks_without_gguf_py_raise_missing_plugin(name: str) -> None:
    if importlib.util.find_spec("gguf"):
        assert decode(LONG_TAIL[name], random_blocks(LONG_TAIL[name], 1, 2)).shape == (1, 512)
    else:
        with expect_error(MissingPluginError, code="not-installed", hint="pip install gguf"):
            decode(LONG_TAIL[name], random_blocks(LONG_TAIL[name], 1, 2))


def table() -> dict[str, object]:
    """Return elements, bytes, can decode and can encode for every type of gguf-py; runs in the peer."""
    import gguf
    from gguf import quants

    def defines(kind: gguf.GGMLQuantizationType, what: str) -> bool:
        traits = quants._type_traits.get(kind)
        return bool(traits) and what in vars(traits)

    return {
        kind.name: [*gguf.GGML_QUANT_SIZES[kind], defines(kind, "dequantize_blocks"), defines(kind, "quantize_blocks")]
        for kind in gguf.GGMLQuantizationType
    }


@pytest.mark.oracle
def test_every_block_type_of_gguf_py_is_supported() -> None:
    """Fails when a later gguf-py adds a type or an encoder."""
    import oracles

    blocks = {**BLOCKS, **LONG_TAIL}
    theirs = {name.lower(): row for name, row in oracles.peer("gguf").run(table).items() if row[0] > 1}
    assert set(theirs) == set(blocks) - UNRELEASED
    # 36 bytes in ggml; gguf-py counts 40.
    sizes = {name: (elements, nbytes) for name, (elements, nbytes, *_) in theirs.items() if name != "q8_1"}
    assert sizes == {name: (blocks[name].elements, blocks[name].nbytes) for name in sizes}
    assert {name for name, row in theirs.items() if row[3]} == set(ENCODED_NAMES) - set(BEYOND_GGUF_PY) - UNRELEASED
    assert {name for name, row in theirs.items() if not row[2]} == {"q8_1", "q8_k", "q1_0"}


@pytest.mark.peers
@pytest.mark.oracle
@pytest.mark.parametrize("name", [name for name in ENCODED_NAMES if name not in {*BEYOND_GGUF_PY, *UNRELEASED}])
def test_encoders_agree_with_gguf_py(name: str) -> None:
    import oracles

    for values in hard_values():
        expected = oracles.peer("gguf").run(quantize, values=values, kind=name.upper())
        np.testing.assert_array_equal(encode(BLOCKS[name], values).reshape(expected.shape), expected)


def by_ggml(array: np.ndarray, template: np.ndarray, call: str) -> np.ndarray:
    """Apply a libggml function to an array; the result is like `template`; runs in the peer."""
    import ctypes
    from pathlib import Path

    import ggml

    library = ctypes.CDLL(str(Path(ggml.__file__).parent / "lib" / "libggml-base.so"))
    array, template = np.ascontiguousarray(array), np.array(template)
    elements = ctypes.c_int64(next(each.size for each in (array, template) if each.dtype == np.float32))
    getattr(library, call)(ctypes.c_void_p(array.ctypes.data), ctypes.c_void_p(template.ctypes.data), elements)
    return template


@pytest.mark.peers
@pytest.mark.oracle
@pytest.mark.parametrize("name", BEYOND_GGUF_PY)
def test_types_missing_in_gguf_py_agree_with_ggml(name: str) -> None:
    import oracles

    block, peer = BLOCKS[name], oracles.peer("ggml")
    blocks = random_blocks(block, 37, 100)
    ours = decode(block, blocks)
    assert_same_bits(ours, peer.run(by_ggml, array=blocks, template=ours, call=f"dequantize_row_{name}"))
    for values in hard_values():
        if not np.isnan(values).any():  # results for NaN depend on the compiler
            stored = encode(block, values)
            theirs = peer.run(by_ggml, array=values, template=stored, call=f"quantize_row_{name}_ref")
            np.testing.assert_array_equal(stored, theirs)
