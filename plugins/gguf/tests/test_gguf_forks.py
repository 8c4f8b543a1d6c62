"""Types of ik_llama.cpp: listed by name, refused when read, copied byte for byte from GGUF to GGUF."""

from __future__ import annotations

import pytest
from squish_testing import expect_error

import squish_core as squish
from squish_core.errors import SquishError, TensorError

SIZES = [
    (139, "iq4_k", 256, 144), (144, "iq4_ks", 512, 4 + 2 * 136), (154, "iq3_kt", 256, 104), (133, "q6_0", 64, 52),
    (212, "q4_k_r4", 256, 144), (135, "iq2_bn", 128, 4 + 2 * 16), (230, "bf16_r16", 8, 16),
]  # fmt: skip
"""Code, name, columns, bytes per row."""


@pytest.fixture
def fork_file(raw, tmp_path):
    """A file of ik_llama.cpp: a vector, then four rows of a type, then another vector."""

    def write(code: int, columns: int, row_size: int, order: str = "<") -> squish.File:
        after = 32 + -(-4 * row_size // 32) * 32
        tensors = (
            raw.tensor("a.weight", (8,)), raw.tensor("odd.weight", (columns, 4), code, 32),
            raw.tensor("b.weight", (8,), 0, after),
        )  # fmt: skip
        pairs = (raw.text("general.architecture", "llama"), raw.scalar("general.file_type", "u32", 141))
        rows = bytes(range(1, 251)) * (4 * row_size // 250 + 1)
        data = b"\1" * 32 + rows[: 4 * row_size].ljust(after - 32, b"\0") + b"\3" * 32
        path = tmp_path / "fork.gguf"
        path.write_bytes(raw.file(pairs, tensors, data, order=order))
        return squish.open(path)

    return write


@pytest.mark.parametrize(("code", "name", "columns", "row_size"), SIZES)
def test_the_tensor_is_listed_with_its_codec_size_and_fork(fork_file, code, name, columns, row_size):
    with fork_file(code, columns, row_size) as file:
        tensor = file["odd.weight"]
        assert tensor.shape == (4, columns)
        assert [str(encoding.codec) for encoding in tensor.spec.encodings] == [f"ik_llama.{name}"]
        assert tensor.nbytes == 4 * row_size
        assert f"({name.upper()} of ik_llama.cpp)" in tensor.spec.problem
        assert not file.problems
        for read in (tensor.numpy, tensor.load, tensor.plan):
            with expect_error(TensorError, code="unreadable", tensor="odd.weight"):
                read()


@pytest.mark.parametrize(("code", "name", "columns", "row_size"), SIZES)
def test_the_file_is_copied_byte_for_byte(fork_file, tmp_path, code, name, columns, row_size):
    with fork_file(code, columns, row_size) as file:
        report = squish.convert(file, tmp_path / "copy.gguf")
        assert {step.exactness.kind for step in report.steps} == {"bytes"}
        assert not report.dropped
    assert (tmp_path / "copy.gguf").read_bytes() == (tmp_path / "fork.gguf").read_bytes()


def test_other_tensors_of_the_file_are_encoded(fork_file, tmp_path):
    with fork_file(139, 256, 144) as file:
        squish.convert(file, tmp_path / "half.gguf", encode="f16")
        stored = file["odd.weight"].parts()["data"].raw
    with squish.open(tmp_path / "half.gguf") as file:
        assert [str(file[name].dtype) for name in ("a.weight", "b.weight")] == ["f16", "f16"]
        assert file["odd.weight"].parts()["data"].raw == stored


def test_other_formats_refuse_the_tensor(fork_file, tmp_path):
    with fork_file(139, 256, 144) as file, expect_error(TensorError, code="refused", tensor="odd.weight"):
        squish.convert(file, tmp_path / "fork.safetensors")
    assert not (tmp_path / "fork.safetensors").exists()


def test_a_rule_for_the_tensor_is_refused(fork_file, tmp_path):
    with fork_file(139, 256, 144) as file, expect_error(TensorError, code="unreadable", tensor="odd.weight"):
        squish.convert(file, tmp_path / "half.gguf", encode=["odd*=f16"])


def test_verify_reports_that_the_tensor_cannot_be_read(fork_file):
    with fork_file(139, 256, 144) as file:
        report = squish.verify(file, deep=True)
        assert [(problem.code, problem.where) for problem in report.problems] == [("unreadable", "odd.weight")]


def test_a_truncated_tensor_is_refused(raw):
    data = raw.file((), (raw.tensor("w", (256, 4), 139),), bytes(4 * 144 - 1))
    with expect_error(SquishError, code="bounds", tensor="w"):
        squish.open(data)


@pytest.mark.parametrize(
    ("architecture", "code", "text"),
    [
        ("bitnet-b1.58", 36, "36 (I2_S of BitNet's llama.cpp)"), ("llama", 36, "36 (I2_S of BitNet's llama.cpp)"),
        ("bitnet", 37, "37 (I8_S of BitNet's llama.cpp)"), ("bitnet-25", 38, "38 (TL1 of BitNet's llama.cpp)"),
        ("bitnet-b1.58", 39, "39 (TL2 of BitNet's llama.cpp)"), ("bitnet-b1.58", 42, "42 (TL2 of BitNet's llama.cpp)"),
        ("gptoss", 4, "4 (MXFP4 in Ollama's order"),
    ],
)  # fmt: skip
def test_a_type_of_another_fork_is_called_by_its_name_and_says_what_to_do(raw, architecture, code, text):
    """Such a tensor has an unknown size, less than the type that GGML gives the number: TL2 has 1.7 bits a weight."""
    tensors = (raw.tensor("odd.weight", (256, 4), code), raw.tensor("b.weight", (8,), 0, 224))
    data = raw.file((raw.text("general.architecture", architecture),), tensors, bytes(256))
    with squish.open(data) as file:
        assert text in file["odd.weight"].spec.problem
        assert "Convert the original" in file["odd.weight"].spec.problem or code == 4
        assert file["b.weight"].shape == (8,)
        with expect_error(TensorError, code="unreadable", tensor="odd.weight"):
            file["odd.weight"].numpy()


def test_the_same_numbers_of_other_models_are_ggmls_own_types(raw):
    data = raw.file((raw.text("general.architecture", "bitnet"),), (raw.tensor("w", (32, 2), 39),), bytes(64))
    with squish.open(data) as file:
        assert str(file["w"].spec.encodings[0].codec) == "ggml.mxfp4"
