"""Make the files beside this script with gguf-py (`make env` first).

PYTHONPATH=tests python plugins/gguf/tests/data/make_golden.py
"""

from __future__ import annotations

from pathlib import Path

import oracles

HERE = Path(__file__).parent


def types(path: str) -> None:
    """Runs in the peer: every metadata type that gguf-py writes, and dense tensors."""
    import gguf

    rng = np.random.default_rng(0)  # noqa: F821 - the peer has np
    value = gguf.GGUFValueType
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("t.u8", 255)
    writer.add_int8("t.i8", -128)
    writer.add_uint16("t.u16", 65535)
    writer.add_int16("t.i16", -32768)
    writer.add_uint32("t.u32", 4294967295)
    writer.add_int32("t.i32", -2147483648)
    writer.add_float32("t.f32", 0.1)
    writer.add_bool("t.bool", True)
    writer.add_string("t.str", "é")
    writer.add_uint64("t.u64", 18446744073709551615)
    writer.add_int64("t.i64", -9223372036854775808)
    writer.add_float64("t.f64", 0.1)
    writer.add_array("a.str", ["a", "", "日本"])
    writer.add_array("a.i32", [1, -1])
    writer.add_array("a.f32", [0.5, 0.1])
    writer.add_array("a.bool", [True, False])
    writer.add_key_value("a.u16", [1, 65535], value.ARRAY, sub_type=value.UINT16)
    for name, kind in (("f32", "float32"), ("f16", "float16"), ("f64", "float64"), ("i8", "int8"), ("i32", "int32")):
        writer.add_tensor(f"dense.{name}", rng.integers(-9, 9, (2, 3)).astype(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def blocks(path: str) -> None:
    """Runs in the peer: block tensors."""
    import gguf

    rng = np.random.default_rng(0)  # noqa: F821
    writer = gguf.GGUFWriter(path, "llama")
    for name in ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"):
        kind = gguf.GGMLQuantizationType[name]
        _, size = gguf.GGML_QUANT_SIZES[kind]
        # Small bytes make small f16 scales, so that no block decodes to NaN.
        stored = rng.integers(0, 60, (2, size), np.uint8)  # noqa: F821
        writer.add_tensor(f"block.{name.lower()}", stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def split(path: str) -> None:
    """Runs in the peer: a set of two parts."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=1)
    writer.add_name("split")
    writer.add_tensor("one", np.arange(8, dtype=np.float32))  # noqa: F821
    writer.add_tensor("two", np.arange(8, dtype=np.float32))  # noqa: F821
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    for make in (types, blocks, split):
        oracles.peer("gguf").run(make, path=str(HERE / f"{make.__name__}.gguf"))
