"""docs/registry.md: twenty questions, each with the answer that the page shows; and what else people may ask."""

from __future__ import annotations

import doctest
import json
import re
from pathlib import Path
from typing import Any

import pytest
from squish_cli import main
from squish_testing import expect_error

import squish_core as squish
from squish_core.errors import SquishError, UsageError

PAGE = Path(__file__).parents[2] / "docs" / "registry.md"
QUESTION = re.compile(r"^\*\*(\d+)\. (.+?\?)\*\*", re.MULTILINE)


def test_the_answers_of_the_page_are_those_of_the_registry() -> None:
    text = PAGE.read_text("utf-8")
    assert [int(number) for number, _ in QUESTION.findall(text)] == list(range(1, 21))
    blocks = "\n".join(re.findall(r"```pycon\n(.*?)```", text, re.DOTALL))
    names = {"squish": squish, "reg": squish.registry()}
    test = doctest.DocTestParser().get_doctest(blocks, names, PAGE.name, str(PAGE), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    assert not runner.run(test).failed
    assert len(test.examples) >= 20


FOUND = [
    ("containers", {"codecs": "hqq"}, ["hf", "uqff"]),
    ("containers", {"codecs": ("hqq", "ggml.q4_k")}, ["uqff"]),
    ("containers", {"suffixes": ".zt"}, ["ztensor"]),
    ("containers", {"suffixes": (".zt",)}, ["ztensor"]),
    ("containers", {"features": "tier"}, ["npydir"]),
    ("containers", {"features": {"dtype": "q4_k"}}, ["gguf"]),
    ("containers", {"options": ["sparsity", "draft"]}, ["squizd"]),
    ("containers", {"refines": "safetensors", "can_write": True}, ["hf", "mlx", "uqff"]),
    ("codecs", {"aliases": "nf4"}, ["palette"]),
    ("codecs", {"needs": "zstd"}, ["zt.zstd-seekable"]),
    ("families", {"model_types": "mixtral"}, ["mixtral"]),
    ("sources", {"schemes": "s3"}, ["s3"]),
    ("containers", {"codecs": "no.such.codec"}, []),
]


@pytest.mark.parametrize(("kind", "facts", "ids"), FOUND, ids=[str(facts) for _, facts, _ in FOUND])
def test_a_field_with_several_values_contains_what_is_asked_for(
    kind: str, facts: dict[str, Any], ids: list[str]
) -> None:
    assert [entry.id for entry in squish.registry().find(kind, **facts)] == ids


@pytest.mark.parametrize(
    ("kind", "facts", "expected"),
    [
        ("codecs", {"lossless": "yes"}, "type bool"),
        ("codecs", {"lossless": 1}, "type bool"),
        ("containers", {"suffixes": 3}, "type str"),
        ("containers", {"codecs": ("hqq", None)}, "type str"),
        ("containers", {"signatures": b"GGUF"}, "type Signature"),
        ("containers", {"refines": False}, "type str"),
        ("backends", {"preference": "high"}, "type int"),
        ("containers", {"suffix": ".zt"}, "suffixes"),
    ],
)
def test_a_value_that_a_field_never_has_is_an_error(kind: str, facts: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        squish.registry().find(kind, **facts)
    assert caught.value.code == "fact"
    assert expected in str(caught.value.expected)


SPELLINGS = [
    ("npydir", {"tier": "4bit"}, {"tier": "squish_4bit"}),
    ("npydir", {"tier": "MLX"}, {"tier": "squish_weights"}),
    ("npydir", {"tier": "panels+3bit"}, {"tier": {"squish_panels", "squish_3bit"}}),
    ("npydir", {"dialect": "int4_awq"}, {"dialect": "int4 awq"}),
    ("hf", {"method": "compressed_tensors"}, {"method": "compressed-tensors"}),
    ("squizd", {"flags": "INT4+SPARSE"}, {"flags": {"INT4", "SPARSE"}}),
    ("squizd", {"flags": "int4, sparse"}, {"flags": {"INT4", "SPARSE"}}),
    ("squizd", {"flags": "0xC"}, {"flags": {"INT4", "SPARSE"}}),
    ("squizd", {"flags": "none"}, {"flags": 0}),
    ("squizd", {"flags": "tca-tbe"}, {"flags": "TCA_TBE"}),
]


@pytest.mark.parametrize(("container", "typed", "declared"), SPELLINGS, ids=[str(typed) for _, typed, _ in SPELLINGS])
def test_features_are_taken_as_answers_print_them_and_as_people_type_them(
    container: str, typed: dict[str, Any], declared: dict[str, Any]
) -> None:
    registry = squish.registry()
    answer = registry.resolve(container=container, **typed)
    assert answer.target == registry.resolve(container=container, **declared).target
    name, value = answer.target.partition(" with ")[2].split("=")
    assert registry.resolve(container=container, **{name: value}).target == answer.target


@pytest.mark.parametrize(("container", "features", "names"), [
    ("npydir", {"tier": "5bit"}, "4bit"), ("squizd", {"flags": "INT4+SPRSE"}, "SPARSE"),
])  # fmt: skip
def test_unknown_values_are_errors_that_list_the_names(container: str, features: dict[str, Any], names: str) -> None:
    with pytest.raises(UsageError) as caught:
        squish.registry().resolve(container=container, **features)
    assert names in str(caught.value.expected)


@pytest.mark.parametrize("container", sorted(squish.registry().containers))
def test_a_matrix_answers_every_combination_as_data(container: str) -> None:
    columns = ("numpy", "cpu", "ane:device=M1", "nobody") if container in ("squizd", "npydir") else ("numpy",)
    matrix = squish.registry().matrix(container, backends=columns)
    data = json.loads(json.dumps(matrix.to_dict()))
    assert len(data["rows"]) == len(matrix) == len({row.text for row in matrix}) > 0
    for row in data["rows"]:
        assert tuple(row["answers"]) == columns
        assert all(answer.get("mode") or (answer["error"] and answer["code"]) for answer in row["answers"].values())
    assert len(matrix.lines()) == len(matrix) + 1


def test_the_rows_of_squizd_are_its_words_in_order() -> None:
    matrix = squish.registry().matrix("squizd", backends=["numpy", "cpu"])
    bits = squish.registry().containers["squizd"].info.bits["flags"]
    assert [sum(bits[name] for name in row.features["flags"]) for row in matrix] == list(range(128))
    assert matrix[4].answers["numpy"].chosen.encoding.label == "INT4"
    refused = matrix[1].answers["cpu"]  # ASTC alone
    assert isinstance(refused, SquishError)
    assert refused.code == "no-chain"


def test_the_command_prints_the_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("matrix", "squizd", "--backend", "cpu", "--backend", "numpy")) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["flags", "encoding", "cpu", "numpy"]
    assert rows[4].split() == ["INT4", "INT4", "stream", "fold"]
    assert len(rows) == 128
    assert main(("matrix", "squizd", "--json", "--backend", "numpy")) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 128


def test_the_matrix_of_a_format_that_is_not_installed_names_the_package() -> None:
    with expect_error(SquishError, code="not-installed", hint="pip install squish-squizd"):
        squish.Registry(entry_points=tuple).matrix("squizd")
