"""Every layout and type that is written, on each wire, in each released package that knows the wire.

One table: `CASES` are the layouts, written by the packages themselves, `WIRES` what they are converted to and who reads
that. A pair is right when the package gives equal arrays and, for v2, its `verify` passes with every part digested;
what it cannot hold or give stands in `EXCEPT` with the words it refuses it with.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import oracles
import pytest
from attrs import frozen
from squish_ztensor.edit import edit

import squish_core as squish
from squish_core import dtypes
from squish_core.errors import SquishError

pytestmark = pytest.mark.oracle

RNG = np.random.default_rng(29)
Array = np.ndarray


@frozen
class Case:
    """An object as v2 has it: layout, shape, parts (role -> array as stored, and its logical type), attributes.

    `values` are what it means, where that is not the one part; `writer` the package that writes it.
    """

    layout: str
    shape: tuple[int, ...]
    parts: dict[str, tuple[Array, str | None]]
    attributes: dict[str, Any] | None = None
    values: Array | None = None
    writer: str = "2.1.2"


def dense(array: Array, logical: str | None = None, shape: tuple[int, ...] | None = None) -> Case:
    return Case("dense", array.shape if shape is None else shape, {"data": (array, logical)})


def sparse(kind: str, values: Array, index: str = "u8") -> Case:
    """`values`, stored by its cells that are not zero."""
    stored = values[values != 0]
    if kind == "coo":
        indices = {"coords": np.array(np.nonzero(values)).astype(index)}
    else:
        ends = np.cumsum([0, *(values != 0).sum(1)])
        indices = {"indices": np.nonzero(values)[1].astype(index), "indptr": ends.astype(index)}
    parts = {"values": (stored, None), **{role: (array, None) for role, array in indices.items()}}
    # Only the earlier wires have narrow indices.
    return Case(f"zt.sparse_{kind}/1", values.shape, parts, None, values, "2.1.2" if index in ("u8", "u4") else "1.2.3")


def group(bits: int, word: str, zero: str, order: str = "lsb_first", scale: str = "f2", axis: int = 0) -> Case:
    """Codes of [64, 32] in groups of 16 along `axis`: value = (code - zero) * scale."""
    codes = np.moveaxis(RNG.integers(0, 1 << bits, (64, 32)), axis, -1).astype(np.uint64)
    width, grid = 8 * np.dtype(word).itemsize, (codes.shape[0], codes.shape[1] // 16)
    packed = pack(codes, bits, width, order)
    scales = (RNG.integers(1, 9, grid) / 8).astype(scale)
    zeros = RNG.integers(0, 1 << bits, grid).astype(np.uint64)
    parts: dict[str, tuple[Array, str | None]] = {
        "data": (np.moveaxis(packed, -1, axis).astype(word), None), "scales": (np.moveaxis(scales, -1, axis), None),
    }  # fmt: skip
    zero_point: dict[str, Any] = {"form": zero}
    if zero == "plain":
        parts["zeros"], zero_point = (
            (np.moveaxis(zeros, -1, axis).astype(scale), None),
            {"form": "tensor", "packing": "plain"},
        )
    elif zero == "packed":  # across the groups
        across = np.moveaxis(pack(zeros.T, bits, width, order).T, -1, axis)
        parts["zeros"], zero_point = (across.astype(word), None), {"form": "tensor", "packing": "same_as_data"}
    elif zero == "implied":
        zeros[...], zero_point["value"] = 8, 8
    else:
        zeros[...] = 0
    values = (codes.astype("f4") - zeros.astype("f4").repeat(16, 1)) * scales.astype("f4").repeat(16, 1)
    attributes = {
        "bits": bits, "group_size": 16, "axis": axis, "zero_point": zero_point,
        "packing": {"word": dtypes.from_numpy(np.dtype(word)), "order": order, "per_word": width // bits},
        "scale_form": "f32_factors" if scale == "f4" else "f16_factors",
    }  # fmt: skip
    return Case("zt.quant_group/1", (64, 32), parts, attributes, np.moveaxis(values, -1, axis))


def pack(codes: Array, bits: int, width: int, order: str) -> Array:
    """Words of consecutive codes of the last axis."""
    lanes = codes.reshape(*codes.shape[:-1], -1, width // bits)
    places = np.arange(width // bits, dtype=np.uint64) * np.uint64(bits)
    return np.bitwise_or.reduce(lanes << (places if order == "lsb_first" else places[::-1]), -1)


def mx(element: str, axis: int = 1) -> Case:
    """[64, 64] elements in blocks of 32 with a power of two each, one of which is NaN."""
    codes = RNG.integers(0, 16 if element == "f4_e2m1" else 256, (64, 64)).astype("u1")
    kind: Any = {
        "f4_e2m1": ml_dtypes.float4_e2m1fn,
        "f8_e4m3fn": ml_dtypes.float8_e4m3fn,
        "f8_e5m2": ml_dtypes.float8_e5m2,
        "i8": np.int8,
    }[element]
    scales = RNG.integers(100, 150, (64, 2)).astype("u1")
    factors = np.ldexp(np.float32(1), scales.astype(int) - 127)
    scales[3, 1], factors[3, 1] = 255, np.nan
    scales, factors = (scales, factors) if axis == 1 else (scales.T, factors.T)
    values = codes.view(kind).astype("f4") * factors.repeat(32, axis)
    stored = codes[:, ::2] | codes[:, 1::2] << 4 if element == "f4_e2m1" else codes
    data = (stored.view("i1"), None) if element == "i8" else (stored, element)
    attributes = {"block_size": 32, "scale_form": "e8m0_exponent", **({} if axis == 1 else {"axis": axis})}
    return Case(
        "zt.mx/1", (64, 64), {"data": data, "scales": (np.ascontiguousarray(scales), "f8_e8m0")}, attributes, values
    )


def codes(count: int) -> Array:
    """Every byte that is a number in all types of one byte."""
    return np.arange(count, dtype="u1")


MATRIX = np.where(RNG.random((9, 13)) < 0.3, RNG.integers(1, 99, (9, 13)), 0).astype("f4")
KINDS = ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1")
BLOCKS = {"q4_0": (32, 18), "q8_0": (32, 34), "q4_k": (256, 144), "mxfp4": (32, 17)}
CASES: dict[str, Case] = {
    **{f"dense {kind}": dense((RNG.random((5, 3)) * 99).astype(kind)) for kind in KINDS},
    "dense bf16": Case("dense", (4, 3), {"data": ((RNG.random((4, 3)) * 9).astype(ml_dtypes.bfloat16), None)}),
    "bool": dense(np.array([[0, 1, 1], [1, 0, 0]], "u1"), "bool"),
    **{kind: dense(codes(120).reshape(6, 20), kind)
       for kind in ("f8_e4m3fn", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz", "f8_e8m0")},
    "f4_e2m1": dense(codes(8), "f4_e2m1", (5, 3)),
    "complex64": dense(RNG.random((2, 3, 2)).astype("f4"), "complex64", (2, 3)),
    "complex128": dense(RNG.random((2, 3, 2)), "complex128", (2, 3)),
    "scalar": dense(np.array(7, "i8")),
    "scalar f4": dense(np.array([5], "u1"), "f4_e2m1", ()),
    "zero-size": dense(np.zeros((0, 7), "f4")),
    "zero-size in the middle": dense(np.zeros((3, 0, 2), "u2")),
    "rank 5": dense(RNG.random((1, 2, 1, 3, 2)).astype("f4")),
    "several frames": dense(np.arange(1_200_000, dtype="f4").reshape(1200, 1000)),
    **{f"csr {index}": sparse("csr", MATRIX, index) for index in ("u8", "u4", "u2", "u1", "i4")},
    **{f"coo {index}": sparse("coo", MATRIX, index) for index in ("u8", "u4", "u2", "u1", "i4")},
    "csr without a value": sparse("csr", np.zeros((4, 5), "f4")),
    "csr f2": sparse("csr", MATRIX.astype("f2")),
    "coo of rank 3": sparse("coo", np.stack([MATRIX, MATRIX[::-1]])),
    "group q4 plain zeros": group(4, "u4", "plain"),
    "group q4 packed zeros": group(4, "u4", "packed"),
    "group q4 msb": group(4, "u4", "packed", "msb_first"),
    "group q4 along rows": group(4, "u1", "plain", axis=1, scale="f4"),
    "group q8": group(8, "u1", "none"),
    "group q2": group(2, "u2", "plain"),
    "group q4 implied": group(4, "u8", "implied"),
    **{f"mx {element}": mx(element) for element in ("f4_e2m1", "f8_e4m3fn", "f8_e5m2", "i8")},
    "mx along columns": mx("f8_e4m3fn", axis=0),
    **{f"gguf {name}": Case(f"gguf.{name}/1", (3, 2 * size),
                            {"data": (RNG.integers(0, 256, (3, 2 * width)).astype("u1"), None)},
                            {"elems_per_block": size, "block_bytes": width}) for name, (size, width) in BLOCKS.items()},
}  # fmt: skip

WIRES = {
    "wire=1.1": ("1.1.1", "1.2.3"), "encoding=zstd,digest=sha256": ("1.1.1", "1.2.3"),
    "flavor=compatible": ("1.1.1", "1.2.3"), "flavor=compatible,encoding=zstd,digest=crc32c": ("1.1.1", "1.2.3"),
    "wire=2": ("2.1.2",), "wire=2,flavor=aligned": ("2.1.2",), "wire=2,encoding=zstd": ("2.1.2",),
    "wire=2,digest=sha256": ("2.1.2",),
}  # fmt: skip

FIRST, LITERAL, COMPATIBLE = "(?!wire=2).*", "(?!wire=2|flavor=compatible).*", "flavor=compatible.*"
EXCEPT = [
    # What 1.x cannot store is refused here ("ours"), before anything is written.
    ("mx.*", FIRST, "ours", "zTensor 1.1 has no layout for codec zt.mx"),
    ("f8_e8m0|f4_e2m1|scalar f4", FIRST, "ours", "zTensor 1.1 has no dtype"),
    ("f8_.*fnuz", LITERAL, "ours", "zTensor 1.1 has no dtype"),
    # Types of the 1.1 text that no released package knows; the compatible flavor gives float8 as bytes.
    ("f8_e4m3fn|f8_e5m2|complex.*", LITERAL, "1.1.1|1.2.3", "unknown variant"),
    ("complex.*", COMPATIBLE, "1.1.1|1.2.3", "cannot reshape array|failed to write whole buffer"),
    ("dense bf16", FIRST, "1.2.3", "bfloat16 tensors require the 'ml_dtypes' package"),
    # 1.1.1 takes indices for u64, as the compatible flavor has them, and asks SciPy for the rest.
    ("(csr|coo) (u4|u2|u1|i4)", LITERAL, "1.1.1", "index pointer size|buffer size must be|cannot reshape array"),
    ("csr f2", FIRST, "1.1.1", "Output dtype not compatible"),
    ("coo of rank 3", FIRST, "1.1.1", "Scipy COO only supports 2D"),
    ("group.*|gguf.*", FIRST, "1.1.1", "Unsupported layout"),
]  # fmt: skip
"""Case, options, package, and the reason of its failure: regular expressions."""


def exception(case: str, options: str, package: str) -> str | None:
    reasons = [why for *where, why in EXCEPT if all(map(re.fullmatch, where, (case, options, package)))]
    return reasons[0] if reasons else None


def write_2(path, name, layout, shape, parts, attributes):  # type: ignore[no-untyped-def] # runs in the peer
    import ztensor

    writer = ztensor.Writer(path, canonical=False, align=4096)
    stored = {}
    for role, (dtype, logical, data) in parts.items():
        stored[role] = {"dtype": dtype, "data": data, **({"logical": logical} if logical else {})}
    writer.add_object(name, shape, stored, layout=layout, attributes=attributes)
    writer.finish()


def write_1_2(path, name, layout, shape, parts, attributes):  # type: ignore[no-untyped-def] # runs in the peer
    import ztensor

    kinds = {"f32": "f4", "u8": "u1", "u16": "u2", "i32": "i4"}
    arrays = {role: np.frombuffer(data, kinds[dtype]) for role, (dtype, _, data) in parts.items()}
    with ztensor.Writer(path) as writer:
        layout = layout.removeprefix("zt.").removesuffix("/1")
        writer.write(name, ztensor.Tensor(arrays, shape=shape, dtype="float32", format=layout))


def read_2(path):  # type: ignore[no-untyped-def] # runs in the peer
    import ztensor

    report = ztensor.verify(path, deep=True)
    [tensor] = ztensor.open(path).values()
    parts = {role: tensor[role] for role in tensor.parts}
    kinds = {role: [part.dtype, part.logical] for role, part in parts.items()}
    data = {role: part.tobytes() for role, part in parts.items()}
    return [report.checked, report.undigested, tensor.layout, list(tensor.shape), kinds, data]


def read_1_2(path):  # type: ignore[no-untyped-def] # runs in the peer
    import ztensor

    reader = ztensor.Reader(path)
    [name] = reader.keys()
    return list(reader.metadata(name).shape), {
        role: np.array(array) for role, array in reader.read(name, copy=True).components.items()
    }


def read_1_1(path):  # type: ignore[no-untyped-def] # runs in the peer
    import ztensor

    reader = ztensor.Reader(path)
    [name] = reader.tensor_names
    values = reader.read_tensor(name, verify_checksum=True)
    values = np.array(values.toarray() if hasattr(values, "toarray") else values)
    return list(values.shape), {"": values}


def written(folder: Path, name: str) -> Path:
    """The case as its package writes it."""
    case, path = CASES[name], folder / "theirs.zt"
    write = {"2.1.2": write_2, "1.2.3": write_1_2}[case.writer]
    parts = {
        role: [dtypes.from_numpy(array.dtype), logical, array.tobytes()]
        for role, (array, logical) in case.parts.items()
    }
    oracles.peer(f"ztensor-{case.writer}").run(
        write,
        path=str(path),
        name=name,
        layout=case.layout,
        shape=list(case.shape),
        parts=parts,
        attributes=case.attributes,
    )
    return path


@pytest.mark.parametrize("name", CASES)
def test_the_reference_reads_every_layout_in_every_version_or_the_message_says_why(tmp_path: Path, name: str) -> None:
    case, source, target = CASES[name], written(tmp_path, name), tmp_path / "ours.zt"
    assert {problem.code for problem in squish.verify(source, deep=True).problems} <= {
        "not-finite",
        "zeros",
    }  # of the values
    with squish.open(source) as file:
        values = file[name].numpy()
    assert values.shape == case.shape
    if case.values is not None:
        np.testing.assert_array_equal(values, case.values)
    for options, packages in WIRES.items():
        if why := exception(name, options, "ours"):
            with pytest.raises(SquishError) as caught:
                squish.convert(source, target, to=f"ztensor:{options}")
            assert re.search(why, str(caught.value))
            continue
        squish.convert(source, target, to=f"ztensor:{options}")
        with squish.open(target) as file:
            np.testing.assert_array_equal(file[name].numpy(), values)
        for package in packages:
            reference = oracles.peer(f"ztensor-{package}")
            if why := exception(name, options, package):
                with pytest.raises(oracles.PeerError, match=why):
                    reference.run(READERS[package], path=str(target))
            else:
                CHECKS[package](case, reference.run(READERS[package], path=str(target)))


def check_2(case: Case, result: Any) -> None:
    """`verify` has found a digest for every part, and these are the parts."""
    checked, undigested, layout, shape, kinds, data = result
    assert (checked, undigested) == (len(case.parts), 0)
    assert (layout, shape) == (case.layout, list(case.shape))
    assert set(data) == set(case.parts)
    for role, (array, logical) in case.parts.items():
        dtype, as_type = kinds[role]
        assert as_type == logical
        # Narrow indices are widened.
        np.testing.assert_array_equal(
            np.frombuffer(data[role], storage(dtype)), array.view(native_dtype(array)).reshape(-1)
        )


def check_1(case: Case, result: Any) -> None:
    """1.2.3 gives components: flat where there are several, codes under another name, zero points always."""
    shape, arrays = result
    stored = {
        ("packed_weight" if case.layout.startswith("zt.quant") and role == "data" else role): array
        for role, (array, _) in case.parts.items()
    }
    if "packed_weight" in stored and "zeros" not in stored:
        assert case.attributes is not None
        zero = case.attributes["zero_point"].get("value", 0)
        assert np.unique(arrays.pop("zeros")).tolist() == [zero]
    assert shape == list(case.shape)
    assert set(arrays) == set(stored)
    for role, array in stored.items():
        words = arrays[role].reshape(-1)
        if words.dtype != array.dtype and words.nbytes == array.nbytes:  # the same codes in narrower words
            rows, columns = array.shape  # which lie along axis 0, low code first
            words = words.reshape(rows, -1, columns).swapaxes(1, 2).copy().view(array.dtype)
        np.testing.assert_array_equal(words.reshape(-1), array.reshape(-1))


def check_1_1(case: Case, result: Any) -> None:
    """1.1.1 gives the whole tensor, sparse ones through SciPy."""
    shape, arrays = result
    assert shape == list(case.shape)
    expected = case.parts["data"][0] if case.values is None else case.values
    np.testing.assert_array_equal(arrays[""].reshape(-1), expected.reshape(-1))


def storage(dtype: str) -> Any:
    return "u2" if dtype == "bf16" else dtypes.to_numpy(dtype)


def native_dtype(array: Array) -> Any:
    return "u2" if array.dtype == ml_dtypes.bfloat16 else array.dtype


READERS: dict[str, Any] = {"1.1.1": read_1_1, "1.2.3": read_1_2, "2.1.2": read_2}
CHECKS = {"1.1.1": check_1_1, "1.2.3": check_1, "2.1.2": check_2}


def test_every_row_of_the_exceptions_is_used() -> None:
    for row in EXCEPT:
        *where, _ = row
        assert any(
            all(map(re.fullmatch, where, (case, options, package)))
            for case in CASES
            for options, packages in WIRES.items()
            for package in ("ours", *packages)
        ), row


def check_all(path):  # type: ignore[no-untyped-def] # runs in the peer
    import ztensor

    report = ztensor.verify(path, deep=True)
    source = ztensor.open(path)
    tensors = {name: {role: tensor[role].tobytes() for role in tensor.parts} for name, tensor in source.items()}
    return [report.checked, report.undigested, source.attributes, tensors]


def test_the_reference_verifies_an_edited_v2_file(tmp_path: Path) -> None:
    grown = written(tmp_path, "scalar").rename(tmp_path / "grown.zt")
    cases = {name: case for name, case in CASES.items() if case.writer == "2.1.2" and name != "scalar"}
    for name in cases:
        before = grown.read_bytes()
        with squish.open(written(tmp_path, name)) as more:
            edit(grown, add=more)
        assert grown.read_bytes()[: len(before)] == before
    gone = ("mx i8", "group q8", "csr u8")
    edit(grown, remove=gone, attributes={"license": "MIT", "note": "x"})
    edit(grown, add={"array": CASES["dense f4"].parts["data"][0]}, attributes={"license": "none", "note": None})
    checked, undigested, attributes, tensors = oracles.peer("ztensor-2.1.2").run(check_all, path=str(grown))
    assert attributes == {"license": "none"}
    assert set(tensors) == {"scalar", "array", *cases} - {*gone}
    assert (checked, undigested) == (sum(map(len, tensors.values())), 0)
    for name in set(tensors) - {"array"}:
        stored = {role: array.tobytes() for role, (array, _) in CASES[name].parts.items()}
        assert tensors[name] == stored, name


@pytest.mark.parametrize("package", ["1.1.1", "1.2.3"])
@pytest.mark.parametrize("flavor", ["literal", "compatible"])
def test_an_edited_1_x_file_is_read(tmp_path: Path, package: str, flavor: str) -> None:
    edited, arrays = tmp_path / "edited.zt", {"kept": np.arange(6, dtype="f4"), "gone": np.zeros(3, "i2")}
    squish.convert(written(tmp_path, "csr u8"), edited, to=f"ztensor:flavor={flavor}")
    edit(edited, add=arrays, attributes={"license": "MIT"})
    edit(edited, add={"more": arrays["kept"] + 1}, remove=["gone"], attributes={"license": None, "note": "x"})
    names, read_arrays = oracles.peer(f"ztensor-{package}").run(read_edited, path=str(edited), names=["kept", "more"])
    assert names == ["csr u8", "kept", "more"]
    for array, expected in zip(read_arrays, (arrays["kept"], arrays["kept"] + 1)):
        np.testing.assert_array_equal(array, expected)


def read_edited(path, names):  # type: ignore[no-untyped-def] # runs in the peer
    import ztensor

    reader = ztensor.Reader(path)
    if hasattr(reader, "tensor_names"):
        return sorted(reader.tensor_names), [np.array(reader.read_tensor(name)) for name in names]
    return sorted(reader.keys()), [np.array(reader.read_numpy(name, copy=True)) for name in names]
