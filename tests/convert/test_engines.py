"""Engines that judge whole models: how their answers are compared, and the small models they are tried on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest
from oracles import engines, families, table

ANSWER = engines.Answer("one", [[1, 2], [3]], np.log([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3]]), [[0, 1], [1, 1]])


def changed(**fields: Any) -> engines.Answer:
    values = {"engine": "two", "ids": ANSWER.ids, "logprobs": ANSWER.logprobs, "greedy": ANSWER.greedy, **fields}
    return engines.Answer(**values)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (changed(), ""),
        (changed(logprobs=ANSWER.logprobs + 0.09), ""),
        (changed(logprobs=np.pad(ANSWER.logprobs, ((0, 0), (0, 2)))), ""),
        (changed(ids=[[1, 2], [4]]), "prompt 2 has other token ids from token 0"),
        (changed(ids=[[1], [3]]), "prompt 1 has other token ids from token 1"),
        (changed(logprobs=ANSWER.logprobs + 0.11), "log-probabilities differ by 0.11 (bound 0.1)"),
        (changed(logprobs=np.full((2, 3), np.nan)), "log-probabilities are missing"),
        (changed(greedy=[[0], [1]]), ""),
        (changed(greedy=[[0, 1], [1, 2]]), "greedy token 1 after prompt 2 differs"),
    ],
)
def test_a_difference_is_named(answer: engines.Answer, reason: str) -> None:
    assert engines.difference(ANSWER, answer, 0.1) == reason


def test_the_most_probable_token_counts_before_greedy_ones() -> None:
    close = changed(logprobs=np.log([[0.7, 0.2, 0.1], [0.2, 0.39, 0.41]]), greedy=[[0, 1], [2, 1]])
    assert engines.difference(ANSWER, close, 1.0) == "the most probable token differs"


class Silent:
    """A peer that hangs a number of times."""

    def __init__(self, times: int) -> None:
        self.times = times

    def run(self, *_: object, **__: object) -> dict[str, Any]:
        self.times -= 1
        if self.times >= 0:
            raise oracles.PeerTimeout
        return {"ids": ANSWER.ids, "logprobs": ANSWER.logprobs, "greedy": ANSWER.greedy}


@pytest.mark.parametrize("times", [0, 1])
def test_a_hanging_engine_is_run_once_more(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = Silent(times)
    monkeypatch.setattr(engines, "peer", lambda name: silent)
    assert engines.ask("mlx", Path("model")).greedy == ANSWER.greedy


def test_an_engine_that_hangs_twice_has_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = Silent(2)
    monkeypatch.setattr(engines, "peer", lambda name: silent)
    with pytest.raises(engines.NoAnswerError):
        engines.ask("mlx", Path("model"))


@pytest.mark.oracle
def test_a_small_model_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    first, second = (families.make("mistral", tmp_path / name) for name in "ab")
    names = {path.name for path in first.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer.model"} <= names
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


CHOSEN = [row for row in table.rows() if table.before_landing(row)]
SLICE = [row for row in table.rows() if table.in_slice(row)]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> table.Judge:
    return table.Judge(tmp_path_factory.mktemp("models"))


@pytest.mark.oracle
@pytest.mark.parametrize("row", SLICE, ids=lambda row: f"{row.source}, {row.title}")
def test_a_converted_model_runs_in_the_software_of_its_format(row: table.Row, judge: table.Judge) -> None:
    assert judge.result(row) == "ok"


@pytest.mark.oracle
@pytest.mark.peers
@pytest.mark.parametrize("row", CHOSEN, ids=lambda row: f"{row.source}, {row.title}")
def test_a_few_models_run_before_a_change_lands(row: table.Row, judge: table.Judge) -> None:
    assert judge.result(row) == "ok"


def test_six_families_run_before_a_change_lands() -> None:
    assert {row.source.partition(",")[0] for row in CHOSEN} == set(table.BEFORE_LANDING)
    assert len(table.BEFORE_LANDING) == 6


def test_the_slice_has_smollm2_and_every_family() -> None:
    smollm2 = 2 + len(table.CODES_KEPT)  # its values to HF and back to GGUF, then its codes
    without = sum("lacking" in entry or "not_run" in entry for entry in families.FAMILIES.values())
    assert sum(map(table.in_slice, table.rows())) == smollm2 + 2 * len(families.FAMILIES) - without


def test_the_likely_tokens_alone_are_compared_between_engines_that_round() -> None:
    logprobs = -np.arange(200.0)[None, :].repeat(2, 0)
    other = logprobs - np.where(np.arange(200) < engines.LIKELY, 0.0, 3.0)
    first, second = changed(logprobs=logprobs), changed(logprobs=other, greedy=[[1], [0]])
    assert engines.difference(first, second, 0.5, exact=False) == ""
    assert engines.difference(first, second, 0.5) == "log-probabilities differ by 3 (bound 0.5)"


def test_rows_that_did_not_run_keep_their_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.START}\n{table.END}\nafter\n")
    monkeypatch.setattr(table, "PAGE", page)
    first, second, third = [row for row in table.rows() if row.source == "llama, folder"][:3]
    table.write([(third, "ok"), (first, "a|b")])
    table.write([(second, "no answer"), (third, "most | probable")])
    text = page.read_text()
    assert table.read_table(text) == {
        (first.source, first.title): "a|b",
        (second.source, second.title): "no answer",
        (third.source, third.title): "most | probable",
        ("source", "target"): "result",
    }
    assert text.index("no answer") < text.index("probable")
    assert text.startswith("before\n")
    assert text.endswith("after\n")
