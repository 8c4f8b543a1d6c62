"""Malformed files: a bad layer is refused alone; a bad set or an unknown version refuses the file."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from squish_testing import expect_error, mutants
from squish_testing.suite import typed_errors_only

import squish_core as squish


def u32(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def f32(count: int) -> bytes:
    return bytes(4 * count)


@pytest.fixture
def blobs(uqff: SimpleNamespace) -> dict[str, bytes]:
    """A small blob of each type, with a bias."""
    head, tensor = uqff.head, uqff.tensor
    bias = tensor(6, [2], f32(2))
    cfg = u32(2, 2, 64) + b"\4" + u32(64) + b"\0" + u32(0) + b"\1\0"
    return {
        "gguf": head(0) + u32(36) + b"\1" + u32(2, 2, 2, 32) + bytes(36) + bias,
        "unquant": head(1) + b"\1" + tensor(6, [2, 3], f32(6)) + bias,
        "hqq": head(2) + b"\1" + tensor(0, [32, 2], bytes(64)) + tensor(6, [1, 2], f32(2)) * 2 + cfg + bias,
        "fp8": head(3) + b"\1" + tensor(9, [2, 3], bytes(6)) + f32(3) + u32(9) + bias,
        "afq": head(4) + b"\1" + tensor(1, [2, 8], f32(16)) + tensor(6, [2, 1], f32(2)) * 2 + b"\4\x40" + bias,
        "f8q8": head(5) + b"\1" + u32(2, 2, 2, 30) + bytes(66) + bias,
        "mxfp4": head(6) + b"\1" + tensor(0, [2, 16], bytes(32)) + tensor(0, [2, 1], bytes(2)) + bias,
    }


GOOD = ("gguf", "unquant", "hqq", "fp8", "afq", "f8q8", "mxfp4")


@pytest.mark.parametrize("kind", GOOD)
def test_the_unmodified_blobs_are_valid(kind: str, blobs: dict[str, bytes], uqff: SimpleNamespace) -> None:
    with squish.open(uqff.legacy(blobs[kind])) as file:
        assert list(file) == ["0.weight", "0.bias"]
        assert uqff.codes(file) == ["names"]
        file["0.weight"].numpy()


def refused(blob: bytes, good: bytes, uqff: SimpleNamespace) -> squish.SquishError:
    """The error of layer 0, after checking layer 1 is readable."""
    with squish.open(uqff.legacy(blob, good)) as file:
        file["1.weight"].numpy()
        (problem,) = [problem for problem in file.problems if problem.severity == "error"]
        assert problem.where == "0.weight"
        assert file["0.weight"].parts()["blob"].nbytes == len(blob)
        with pytest.raises(squish.TensorError) as caught:
            file["0.weight"].numpy()
        return caught.value


# kind, offset, new bytes, field that the message names
CHANGES = [
    ("gguf", 0, u32(0x010000), "version"), ("gguf", 0, u32(0x000300), "version"), ("gguf", 4, b"\7", "ISQ type"),
    ("gguf", 4, b"\xff", "ISQ type"), ("gguf", 9, b"\2", "has_bias"), ("gguf", 5, u32(37), "weight length"),
    ("gguf", 5, u32(2**32 - 1), "weight length"), ("gguf", 10, u32(4), "weight.dtype"),
    ("gguf", 10, u32(16), "weight.dtype"), ("gguf", 14, u32(2**32 - 1), "shape rank"),
    ("gguf", 18, u32(3), "weight length"), ("gguf", 22, u32(31), "weight.shape"),
    ("gguf", 18, u32(2**32 - 1, 2**32 - 1), "weight.shape"), ("unquant", 5, b"\2", "has_bias"),
    ("unquant", 6, u32(25), "weight length"), ("unquant", 10, u32(14), "weight dtype"),
    ("unquant", 10, u32(10), "weight dtype"), ("unquant", 10, u32(4), "weight length"),
    ("unquant", 14, u32(2**32 - 1), "weight rank"), ("unquant", 18, u32(2**31, 2**31), "weight length"),
    ("unquant", 6, u32(0, 6, 2, 2**31, 2**31), "weight"), ("hqq", 6, u32(63), "weight length"),
    ("hqq", 10, u32(2), "weight length"), ("hqq", -36, b"\5", "bits"), ("hqq", -36, b"\3", "weight"),
    ("hqq", -35, u32(0), "group_size"), ("hqq", -35, u32(48), "group"), ("hqq", -31, b"\2", "axis"),
    ("hqq", -31, b"\1", "weight"), ("hqq", -26, b"\2", "round_zeros"), ("hqq", -25, b"\2", "channel_wise"),
    ("hqq", -44, u32(3), "weight"), ("fp8", 10, u32(0), "weight"),
    ("afq", 10, u32(2), "weight"), ("afq", -26, b"\5", "bits"), ("afq", -26, b"\3", "weight"),
    ("afq", -25, b"\x30", "group_size"), ("afq", -25, b"\x20", "weight.scales"), ("f8q8", 6, u32(1), "count"),
    ("f8q8", 6, u32(2**32 - 1), "weight"), ("f8q8", 18, u32(33), "num_blocks"), ("mxfp4", 10, u32(9), "weight"),
    ("mxfp4", 22, u32(1), "weight"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "offset", "new", "field"), CHANGES)
def test_a_bad_field_refuses_its_layer_only_with_a_message_about_it(
    kind: str, offset: int, new: bytes, field: str, blobs: dict[str, bytes], uqff: SimpleNamespace
) -> None:
    blob = bytearray(blobs[kind])
    at = offset % len(blob)
    blob[at : at + len(new)] = new
    error = refused(bytes(blob), blobs["unquant"], uqff)
    assert (error.code, error.tensor) == ("unreadable", "0.weight")
    assert field.split()[0] in error.message or field == "count"


@pytest.mark.parametrize("kind", GOOD)
def test_the_message_about_trailing_bytes_names_them(kind: str, blobs: Any, uqff: SimpleNamespace) -> None:
    error = refused(blobs[kind] + b"\0", blobs["unquant"], uqff)
    assert (error.code, error.tensor) == ("unreadable", "0.weight")
    assert error.message.startswith("bytes follow the last field (at byte ")
    assert error.message.endswith(", expected the end of the blob, found 1 bytes)")


@pytest.mark.parametrize("kind", GOOD)
def test_a_truncated_blob_is_refused_at_every_length(kind: str, blobs: Any, uqff: SimpleNamespace) -> None:
    for length in range(len(blobs[kind])):
        refused(blobs[kind][:length], blobs["unquant"], uqff)


@pytest.mark.parametrize("kind", GOOD)
@pytest.mark.parametrize("other", range(7))
def test_a_blob_with_the_wrong_type_is_refused(kind: str, other: int, blobs: Any, uqff: SimpleNamespace) -> None:
    blob = blobs[kind]
    if blob[4] != other:
        refused(blob[:4] + bytes([other]) + blob[5:], blobs["unquant"], uqff)


def test_a_type_newer_than_the_blobs_version_is_a_warning(blobs: Any, uqff: SimpleNamespace) -> None:
    with squish.open(uqff.legacy(u32(0x000102) + blobs["f8q8"][4:])) as file:
        (problem,) = [problem for problem in file.problems if problem.code == "isq-type"]
        assert (problem.severity, "0.1.2" in problem.message) == ("warning", True)
        assert file["0.weight"].numpy().shape == (2, 30)


def test_float8_belongs_to_0_1_0(blobs: Any, uqff: SimpleNamespace) -> None:
    with squish.open(uqff.legacy(u32(0x000100) + blobs["fp8"][4:])) as file:
        assert [problem for problem in file.problems if problem.severity != "note"] == []
        assert file["0.weight"].numpy().shape == (2, 3)


def test_the_reason_for_a_length_modulo_4_gib_depends_on_the_version(uqff: SimpleNamespace, blobs: Any) -> None:
    wrapped = uqff.head(1) + b"\0" + u32(4, 0, 2, 2, 2**31 + 2) + b"1234"
    assert refused(wrapped, blobs["unquant"], uqff).message.startswith("weight length: has an illegal value ")
    before = u32(0x000103) + wrapped[4:]
    assert refused(before, blobs["unquant"], uqff).message.startswith("weight: runs past the end of the blob ")


def test_a_tensor_that_is_not_a_blob_is_refused_alone(uqff: SimpleNamespace, blobs: Any) -> None:
    good = blobs["unquant"]
    with squish.open(uqff.safetensors({"0": ("U8", [len(good)], good), "1": ("F32", [1], f32(1))})) as file:
        assert "not a blob" in (file["1.weight"].spec.problem or "")


FIELDS: dict[str, dict[str, Any]] = {
    "gguf": {"weight": ("U8", [36], bytes(36)), "weight__format": ("U8", [], b"\0"),
             "weight__dtype": ("U32", [], u32(2)), "weight__shape": ("U32", [2], u32(2, 32))},
    "afq": {"weight": ("U32", [2, 8], f32(16)), "weight__format": ("U8", [], b"\4"),
            "weight__scales": ("F16", [2, 1], bytes(4)), "weight__biases": ("F16", [2, 1], bytes(4)),
            "weight__bits": ("U8", [], b"\4"), "weight__group_size": ("U8", [], b"\x40")},
    "fp8": {"weight": ("F8_E4M3", [2, 3], bytes(6)), "weight__format": ("U8", [], b"\3"),
            "weight__dequant_w_scale": ("F32", [], f32(1)), "weight__dequant_x_scale": ("F32", [], f32(1)),
            "weight__quant_scale": ("F32", [], f32(1)), "weight__dtype": ("U32", [], u32(9))},
}  # fmt: skip
WRONG = [
    ("gguf", "weight__format", ("U8", [], b"\7")), ("gguf", "weight__format", ("U32", [], u32(0))),
    ("gguf", "weight__format", ("U8", [1], b"\0")), ("gguf", "weight__dtype", ("U32", [], u32(30))),
    ("gguf", "weight__dtype", ("U32", [], u32(99))), ("gguf", "weight__shape", ("U32", [2], u32(2, 64))),
    ("gguf", "weight__shape", ("U8", [2], b"\2\x20")), ("gguf", "weight__shape", ("U32", [], u32(2))),
    ("gguf", "weight__shape", ("U32", [65], bytes(260))), ("gguf", "weight", ("U8", [35], bytes(35))),
    ("gguf", "weight", ("I8", [36], bytes(36))),
    ("afq", "weight__bits", ("U8", [], b"\3")), ("afq", "weight__bits", ("U8", [], b"\5")),
    ("afq", "weight__group_size", ("U32", [], u32(64))), ("afq", "weight__group_size", ("U8", [], b"\x10")),
    ("afq", "weight__scales", ("F16", [2, 2], bytes(8))), ("afq", "weight__scales", ("F32", [2, 1], bytes(8))),
    ("afq", "weight", ("I32", [2, 8], f32(16))), ("afq", "weight", ("U32", [16], f32(16))),
    ("fp8", "weight", ("I8", [2, 3], bytes(6))), ("fp8", "weight__dtype", ("U8", [], b"\6")),
    ("fp8", "weight__dequant_w_scale", ("F32", [1], f32(1))), ("fp8", "weight__dequant_w_scale", ("F16", [], bytes(2))),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "field", "value"), WRONG)
def test_a_bad_1_x_tensor_refuses_its_layer_only(kind: str, field: str, value: Any, uqff: SimpleNamespace) -> None:
    with squish.open(uqff.named(**{**FIELDS[kind], field: value})) as file:
        assert file.format == "uqff"
        with expect_error(squish.TensorError, code="unreadable", tensor="a.weight"):
            file["a.weight"].numpy()
        assert set(file["a.weight"].parts()) == {name.replace("__", ".") for name in FIELDS[kind]}


@pytest.mark.parametrize(
    ("kind", "field"), [(kind, field) for kind in FIELDS for field in FIELDS[kind] if field != "weight__format"]
)  # fmt: skip
def test_the_message_about_a_missing_tensor_of_1_x_names_it(kind: str, field: str, uqff: SimpleNamespace) -> None:
    rest = {name: value for name, value in FIELDS[kind].items() if name != field}
    with (
        squish.open(uqff.named(**rest)) as file,
        expect_error(squish.TensorError, code="unreadable", tensor="a.weight") as caught,
    ):
        file["a.weight"].numpy()
    assert caught.value.message.startswith(f"{field.replace('__', '.')}: missing in a layer of type {kind}")


def test_a_tensor_outside_the_layers_is_kept_and_reported(uqff: SimpleNamespace) -> None:
    extra = {"other": ("F32", [1], f32(1)), "weight__odd": ("F32", [1], f32(1))}
    with squish.open(uqff.named(**FIELDS["gguf"], **extra)) as file:
        assert list(file) == ["a.weight", "a.other"]
        assert {problem.code for problem in file.problems} == {"key", "field"}
        assert list(file["a.weight"].spec.extras) == ["weight.odd"]


def version(**numbers: Any) -> dict[str, Any]:
    fields = {"major": u32(1), "minor": u32(2), "patch": u32(0), **numbers}
    return {f"uqff.version.{key}": ("U32", [], raw) for key, raw in fields.items() if raw is not None}


@pytest.mark.parametrize(
    ("blob", "field", "found", "hint"),
    [
        (version(major=u32(2)), "major", "2.2.0", "format='safetensors'"),
        (version(major=u32(0)), "major", "0.2.0", "format='safetensors'"),
        (version(minor=u32(3)), "major", "1.3.0", "format='safetensors'"),
        (version(patch=None), "patch", None, "shard 0"),
        ({**version(), "uqff.version.minor": ("U8", [], b"\2")}, "minor", "u8 []", None),
        ({**version(), "uqff.version.major": ("U32", [1], u32(1))}, "major", "u32 [1]", None),
    ],
)  # fmt: skip
def test_an_unsupported_version_refuses_the_file(
    blob: Any, field: str, found: str | None, hint: str | None, uqff: SimpleNamespace
) -> None:
    raw = uqff.safetensors({"a.weight": ("F32", [1], f32(1)), "a.weight.format": ("U8", [], b"\1"), **blob})
    with expect_error(squish.FormatError, code="version", tensor=f"uqff.version.{field}", found=found, hint=hint):
        squish.open(raw)
    assert squish.open(raw, "safetensors")["a.weight"].shape == (1,)


def test_a_file_named_uqff_without_a_version_is_refused(uqff: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "q.uqff").write_bytes(uqff.safetensors({"a.weight": ("F32", [1], f32(1))}))
    with expect_error(squish.FormatError, code="version", tensor="uqff.version.major"):
        squish.open(tmp_path / "q.uqff")


@pytest.mark.parametrize("order", [("old", "new"), ("new", "old")])
def test_shards_of_both_generations_in_one_folder_are_refused(
    order: tuple[str, str], uqff: SimpleNamespace, blobs: Any, data: Path, tmp_path: Path
) -> None:
    content = {
        "old": uqff.legacy(blobs["unquant"].replace(u32(0x000200), u32(0x000103), 1)),
        "new": (data / "1.2.0-q8_0/q8_0-0.uqff").read_bytes(),
    }
    for number, kind in enumerate(order):
        (tmp_path / f"q-{number}.uqff").write_bytes(content[kind])
    old = tmp_path / f"q-{order.index('old')}.uqff"
    for target in (tmp_path, tmp_path / "q-0.uqff", tmp_path / "q-1.uqff"):
        with pytest.raises(squish.FormatError) as caught:
            squish.open(target)
        assert (caught.value.code, caught.value.tensor, caught.value.file) == ("generation", "0", str(old))
    with squish.open(old, "safetensors") as file:
        assert file["0"].dtype == "u8"


@pytest.mark.parametrize("text", ["[]", "{", '{"outputs": 3}', '{"outputs": [{"shards": [1]}]}', "[" * 10**5])
def test_a_damaged_report_or_config_is_not_used(text: str, uqff: SimpleNamespace, blobs: Any, tmp_path: Path) -> None:
    for name in ("uqff_report.json", "config.json"):
        (tmp_path / name).write_text(text)
    (tmp_path / "q-0.uqff").write_bytes(uqff.legacy(blobs["unquant"]))
    with squish.open(tmp_path) as file:
        assert list(file) == ["0.weight", "0.bias"]


@pytest.mark.parametrize("name", ["../q-1.uqff", "/etc/passwd", "a/b.uqff"])
def test_a_report_cannot_name_a_file_outside_the_folder(
    name: str, uqff: SimpleNamespace, blobs: Any, tmp_path: Path
) -> None:
    (tmp_path / "uqff_report.json").write_text(f'{{"outputs": [{{"shards": ["q-0.uqff", "{name}"]}}]}}')
    (tmp_path / "q-0.uqff").write_bytes(uqff.legacy(blobs["unquant"]))
    with expect_error(squish.FormatError, code="path", expected="a file name without a path"):
        squish.open(tmp_path)


@pytest.mark.parametrize("model", ["llama", "qwen3_moe"])
def test_a_hostile_config_is_bounded(model: str, uqff: SimpleNamespace, blobs: Any, tmp_path: Path) -> None:
    keys = ("hidden_size", "num_attention_heads", "vocab_size", "num_hidden_layers", "num_experts",
            "moe_intermediate_size", "intermediate_size")  # fmt: skip
    numbers = ", ".join(f'"{key}": {10**18}' for key in keys)
    (tmp_path / "config.json").write_text(f'{{"model_type": "{model}", {numbers}}}')
    (tmp_path / "q-0.uqff").write_bytes(uqff.legacy(blobs["unquant"]))
    with squish.open(tmp_path) as file:
        assert uqff.codes(file) == ["names"]


@pytest.mark.parametrize("kind", GOOD)
def test_mutated_blobs_raise_only_typed_errors(kind: str, blobs: Any, uqff: SimpleNamespace) -> None:
    for changed in mutants(blobs[kind], 200):
        with squish.open(uqff.legacy(changed, blobs["unquant"])) as file:
            for name in file:
                with typed_errors_only(f"{kind}: reading {name}"):
                    file[name].numpy()


@pytest.mark.parametrize("kind", GOOD)
def test_a_changed_byte_is_refused_with_its_offset_or_decodes(kind: str, blobs: Any, uqff: SimpleNamespace) -> None:
    good = blobs[kind]
    refusals = set()
    for place, byte in enumerate(good):
        for other in (byte ^ 0xFF, byte + 1 & 0xFF):
            blob = good[:place] + bytes([other]) + good[place + 1 :]
            file = squish.open(uqff.legacy(blob, blobs["unquant"]))
            (problem,) = [problem for problem in file.problems if problem.severity == "error"] or [None]
            if problem is None:
                file["0.weight"].numpy()
            else:
                assert problem.where == "0.weight"
                assert "at byte" in problem.message, problem.message
                refusals.add(place)
    assert {0, 1, 4, 5} & refusals  # version, type, and what comes first
    assert len(refusals) > 20
