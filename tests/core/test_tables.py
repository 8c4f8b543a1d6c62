"""Tables and lines fit the terminal and never break inside a word."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squish_core.display import fit, table, terminal_width, wrap

FILE = "tensors/model__layers__0__self_attn__a_module_with_a_long_name__weight__q4a.npy"
NAMES = [f"model.layers.{n}.self_attn.a_module_with_a_long_name.and_another_one.weight" for n in range(3)]
ROWS = [("[4096, 11008]", "affine:bits=4,group_size=64,scale=f16,zero=none", "4.50", name) for name in NAMES]
WORDS = st.lists(st.text("abc./", min_size=1, max_size=30), min_size=1, max_size=20)


def columns(monkeypatch: pytest.MonkeyPatch, value: str | None) -> int:
    if value is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", value)
    return terminal_width()


def test_the_width_is_that_of_the_terminal_then_columns_then_100(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [columns(monkeypatch, value) for value in ("80", "", "wide", "0", None)] == [80, 100, 100, 100, 100]
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((132, 40)))
    assert columns(monkeypatch, "80") == 132


@given(WORDS, st.integers(4, 60))
def test_wrapping_keeps_every_word_and_breaks_only_at_seams(words: list[str], width: int) -> None:
    lines = wrap(" ".join(words), width)
    assert "".join(lines).replace(" ", "") == "".join(words)
    for line in lines:
        assert len(line) <= width or not re.search(r"[ ]|[./](?!$)", line)
    for line in lines[:-1]:
        last = line.rpartition(" ")[2]
        assert any(word.endswith(last) for word in words) or last[-1] in "./"


@pytest.mark.parametrize("width", [80, 100, 160])
def test_a_table_is_as_wide_as_the_terminal_and_breaks_long_names_at_a_dot(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    columns(monkeypatch, str(width))
    lines = table(("shape", "stored as", "bits", "name"), "<<><", ROWS, "  ")
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(line.split()) for line in lines)
    assert all(piece in text for name in NAMES for piece in re.split(r"(?<=\.)", name))
    starts = [line for line in lines[1:] if line.startswith("  [")]
    assert len(starts) == len(ROWS)  # further lines are indented


def test_a_table_that_fits_is_not_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    columns(monkeypatch, "160")
    assert len(table(("shape", "stored as", "bits", "name"), "<<><", ROWS)) == 1 + len(ROWS)
    assert table(("a",), "<", []) == []


def test_the_column_is_wrapped_that_takes_the_fewest_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    columns(monkeypatch, "40")
    rows = [("a title of twenty col", "q4"), ("a title of twenty one", "f64 f32 f16 bf16 f8_e4m3"), ("short", "q8")]
    lines = table(("title", "names"), "<<", rows)
    assert [line.split("  ")[0] for line in lines[1:3]] == ["a title of twenty col", "a title of twenty one"]
    assert len(lines) == 5


def test_words_are_broken_only_where_spaces_do_not_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("ggml.scaled_nvfp4", "blocks with a global scale"), ("zstd", "frames with a seek table")]
    for width, is_broken in (("28", False), ("26", True)):
        columns(monkeypatch, width)
        lines = table(("id", "title"), "<<", rows)
        assert max(map(len, lines)) <= int(width)
        assert any(line.startswith("ggml.scaled_nvfp4") for line in lines) != is_broken


def test_a_file_name_without_dots_breaks_at_a_double_underscore() -> None:
    assert wrap(FILE, 40) == ["tensors/model__layers__0__self_attn__", "a_module_with_a_long_name__weight__q4a.", "npy"]


def test_numbers_are_never_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    columns(monkeypatch, "20")
    lines = table(("tensors", "parameters", "size", "name"), ">>><", [("1,000", "134,515,008", "98.36 MB", "a b c")])
    assert "134,515,008" in lines[1]
    assert "98.36 MB" in lines[1]


def test_further_lines_hang_below_the_text_after_a_label() -> None:
    assert fit("  because  one two three four", 22) == ["  because  one two", "           three four"]
    assert fit("  because  one two three", 16) == ["  because  one", "    two three"]  # little room: below the label
    assert fit("note: one two three", 12) == ["note: one", "  two three"]
    assert fit("short", 12) == ["short"]
