"""Tasks of lm-eval on compressed models, against its own model class over decoded weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from squish_cli import main
from tiny_models import TEXT, tiny_llama, with_tokenizer

import squish_core as squish

pytest.importorskip("lm_eval", reason="needs lm-eval, which `make oracles` installs")

TASKS = {
    "choices": """task: choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/choices.json}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: label
metric_list: [{{metric: acc}}]
""",
    "rolling": """task: rolling
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/texts.json}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: word_perplexity}}, {{metric: bits_per_byte}}]
""",
    "written": """task: written
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/choices.json}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{choices[label]}}}}"
generation_kwargs: {{until: ["."], max_gen_toks: 3, do_sample: false}}
metric_list: [{{metric: exact_match}}]
""",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tasks")
    with_tokenizer(tiny_llama(root / "hf", vocab_size=257, num_hidden_layers=1))
    tokenizer = root / "hf" / "tokenizer_config.json"
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()) | {"eos_token": "<s>"}))  # ends what is written
    squish.convert(root / "hf", root / "q4.zt", encode=["q4_0", "*norm*=keep", "*embed*=q8_0"])
    words = TEXT.split()[:9]
    questions = [
        {"question": f"The {word} is", "choices": ["a fox", "a lazy dog", "quick"], "label": number % 3}
        for number, word in enumerate(words)
    ]
    (root / "choices.json").write_text("\n".join(map(json.dumps, questions)))
    (root / "texts.json").write_text(json.dumps({"text": TEXT[:300]}))
    for name, content in TASKS.items():
        (root / f"{name}.yaml").write_text(content.format(folder=root))
    return root


def test_numbers_are_those_of_the_decoded_model(folder: Path) -> None:
    """All output types; a model's window is 128 tokens, so the rolling text takes three."""
    import lm_eval
    import squish_torch.lm_eval  # it registers `squish`
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    dequantized = squish_torch.from_pretrained(folder / "q4.zt")
    dequantized.dequantize()
    dequantized = HFLM(pretrained=dequantized, tokenizer=squish_torch.tokenizer_of(folder / "q4.zt"))
    answers = []
    for model, arguments in (("squish", f"pretrained={folder / 'q4.zt'}"), (dequantized, None)):
        manager = TaskManager(include_path=str(folder), include_defaults=False)
        answers.append(
            lm_eval.simple_evaluate(model, arguments, tasks=list(TASKS), task_manager=manager, bootstrap_iters=0)
        )
    ours, theirs = answers
    assert ours["results"]["choices"]["acc,none"] == theirs["results"]["choices"]["acc,none"]
    for task in ("choices", "rolling"):
        scores, expected = ([_score(sample) for sample in answer["samples"][task]] for answer in answers)
        assert scores == pytest.approx(expected, abs=1e-4)
    assert [sample["resps"] for sample in ours["samples"]["written"]] == [
        sample["resps"] for sample in theirs["samples"]["written"]
    ]
    perplexity = squish_torch.evaluate(folder / "q4.zt", text=_text(folder), window=128, definition="lm-eval").to_dict()
    assert perplexity["bits_per_byte"] == pytest.approx(ours["results"]["rolling"]["bits_per_byte,none"], rel=1e-6)
    assert perplexity["word_perplexity"] == pytest.approx(ours["results"]["rolling"]["word_perplexity,none"], rel=1e-5)


def _score(sample: dict[str, Any]) -> float:
    """The sum of a sample's log-likelihoods."""
    values = [response[0] for response in sample["resps"]]
    return sum(float(value[0] if isinstance(value, tuple) else value) for value in values)


def _text(folder: Path) -> Path:
    path = folder / "text.txt"
    path.write_text(TEXT[:300])
    return path


def test_the_command_adds_what_was_measured(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(folder / "q4.zt"), "--task", str(folder / "choices.yaml"), "--limit", "4", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert 0 <= data["tasks"]["choices"]["acc,none"] <= 1
    assert data["lm_eval"]["n-samples"]["choices"]["effective"] == 4
    facts = data["lm_eval"]["config"]["squish"]
    assert {entry["codec"].partition(":")[0] for entry in facts["codecs"]} == {"ggml.q4_0", "ggml.q8_0", "dense"}
    assert len(facts["files"][0]["sha256"]) == 64
    assert sum(entry["tensors"] for entry in facts["chains"]) == len(squish.open(folder / "q4.zt"))


def test_an_unknown_task_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(folder / "q4.zt"), "--task", "nowhere.yaml", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "task"


def test_data_that_is_not_here_is_an_error(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "far.yaml").write_text(TASKS["choices"].format(folder=tmp_path).replace("choices\n", "far\n", 1))
    assert main(["eval", str(folder / "q4.zt"), "--task", str(tmp_path / "far.yaml"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "task"


def test_an_evaluation_needs_a_text_or_a_task(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(folder / "q4.zt"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "usage"
