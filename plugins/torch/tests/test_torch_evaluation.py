"""Perplexity and divergence of models, against sums over transformers' own logits."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import squish_torch
import torch
from squish_cli import main
from tiny_models import TEXT, tiny_llama, with_tokenizer

import squish_core as squish

ENCODE = ["q4_0", "*norm*=keep", "*embed*=q8_0"]
WINDOW = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("evaluation")
    (root / "text.txt").write_text(TEXT)
    with_tokenizer(tiny_llama(root / "hf", vocab_size=264))
    squish.convert(root / "hf", root / "q4.zt", encode=ENCODE)
    return root


def test_perplexity_is_that_of_the_second_halves(folder: Path) -> None:
    evaluation = squish_torch.evaluate(folder / "hf", text=folder / "text.txt", window=WINDOW)
    tokenizer, model = squish_torch.tokenizer_of(folder / "hf"), squish_torch.from_pretrained(folder / "hf")
    ids = torch.tensor(tokenizer(TEXT)["input_ids"])
    losses = []
    for start in range(0, len(ids) - WINDOW + 1, WINDOW):
        window = ids[start : start + WINDOW].clone()
        window[0] = 0
        with torch.no_grad():
            scores = torch.log_softmax(model(window[None]).logits[0, :, :257].double(), 1)
        losses += [-scores[position, window[position + 1]].item() for position in range(WINDOW // 2, WINDOW - 1)]
    assert evaluation.perplexity.tokens == len(losses) == len(TEXT) // WINDOW * 31
    assert evaluation.perplexity.value == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-6)
    assert evaluation.rows_past_vocabulary == 264 - 257


def test_lm_evals_definition_scores_every_token_once(folder: Path) -> None:
    evaluation = squish_torch.evaluate(
        folder / "hf", text=folder / "text.txt", window=WINDOW, definition="lm-eval", against=folder / "q4.zt"
    )
    model = squish_torch.from_pretrained(folder / "hf")
    ids = torch.tensor([0, *squish_torch.tokenizer_of(folder / "hf")(TEXT)["input_ids"]])
    losses = []
    for end in (*range(WINDOW, len(ids) - 1, WINDOW), len(ids) - 1):
        with torch.no_grad():
            scores = torch.log_softmax(model(ids[None, end - WINDOW : end]).logits[0, :, :257].double(), 1)
        losses += [-scores[position, ids[end - WINDOW + position + 1]].item() for position in range(WINDOW)][
            len(losses) - end :
        ]
    assert len(losses) == len(TEXT) + 1
    data = evaluation.to_dict()
    assert (data["tokens"], data["definition"]) == (len(TEXT) + 1, "lm-eval")
    assert data["perplexity"] == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-6)
    assert data["bits_per_byte"] == pytest.approx(sum(losses) / len(TEXT) / math.log(2), rel=1e-6)
    assert data["word_perplexity"] == pytest.approx(math.exp(sum(losses) / (len(TEXT.split()) + 1)), rel=1e-6)


def test_hidden_states_differ_by_what_the_layers_before_lose(folder: Path) -> None:
    options = {"text": folder / "text.txt", "window": WINDOW, "limit": 2}
    same = squish_torch.evaluate(folder / "hf", against=folder / "hf", **options).to_dict()
    assert same["windows"] == 2
    assert same["hidden_states"] == [{"layer": f"model.layers.{number}", "nmse": 0.0} for number in (0, 1)]
    data = squish_torch.evaluate(folder / "q4.zt", against=folder / "hf", **options).to_dict()
    expected = []
    outputs: list[torch.Tensor] = []
    for path in (folder / "hf", folder / "q4.zt"):
        model = squish_torch.from_pretrained(path)
        model.model.layers[1].register_forward_hook(lambda *call: outputs.append(call[2][0, WINDOW // 2 : -1].double()))
        tokens = torch.tensor(squish_torch.tokenizer_of(path)(TEXT)["input_ids"])
        for start in (0, WINDOW):
            ids = tokens[start : start + WINDOW].clone()
            ids[0] = 0
            with torch.no_grad():
                model(ids[None])
    expected = sum((a - b).square().sum() for a, b in zip(outputs[:2], outputs[2:]))
    assert data["hidden_states"][1]["nmse"] == pytest.approx(
        float(expected / sum(output.square().sum() for output in outputs[:2])), rel=1e-6
    )


def test_a_model_does_not_diverge_from_itself(folder: Path) -> None:
    data = squish_torch.evaluate(
        folder / "hf", text=folder / "text.txt", window=WINDOW, against=folder / "hf"
    ).to_dict()
    assert data["kl"]["max"] == 0
    assert data["same_top"] == 1
    assert data["perplexity"] == data["base_perplexity"]


def test_the_command_states_divergence_from_the_base(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--against", str(folder / "hf"), "--text", str(folder / "text.txt"), "--window", str(WINDOW), "--json"]
    documents = []
    for _ in range(2):
        assert main(["eval", str(folder / "q4.zt"), *options]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    assert documents[0] == documents[1]
    kl = documents[0]["kl"]
    assert list(kl) == ["mean", "max", "q99_9", "q99", "q95", "q90", "q50", "q10", "q5", "q1"]
    assert kl["max"] >= kl["q99"] >= kl["q50"] >= kl["q1"] >= 0
    assert 0 < kl["mean"] < 1
    assert 0 <= documents[0]["same_top"] <= 1


def test_logits_that_are_not_finite_name_the_first_layer(folder: Path, tmp_path: Path) -> None:
    tensors = squish_torch.load_file(folder / "hf")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = math.nan
    for path in (folder / "hf").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    squish_torch.save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(squish.TensorError) as caught:
        squish_torch.evaluate(tmp_path, text=folder / "text.txt", window=WINDOW)
    assert (caught.value.code, caught.value.tensor) == ("not-finite", "model.layers.1.mlp.up_proj")


def test_another_vocabulary_is_an_error(folder: Path, tmp_path: Path) -> None:
    for path in (folder / "hf").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(squish.UsageError) as caught:
        squish_torch.evaluate(tmp_path, text=folder / "text.txt", window=WINDOW, against=folder / "hf")
    assert caught.value.code == "vocabulary"
    assert caught.value.expected != caught.value.found


@pytest.mark.parametrize("content", [b"too short", b"\xff\xfe" * 200])
def test_a_text_that_is_too_short_or_not_utf8_is_an_error(folder: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(squish.UsageError) as caught:
        squish_torch.evaluate(folder / "hf", text=tmp_path / "text.txt", window=WINDOW)
    assert caught.value.code == "text"


def test_the_message_is_as_a_user_reads_it(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("too short")
    with pytest.raises(squish.UsageError) as caught:
        squish_torch.evaluate(folder / "hf", text="text.txt", window=WINDOW)
    reason = "text.txt: the text is too short (expected 64 or more, found 10 tokens)"
    assert str(caught.value) == f"{reason}. Use a longer text or a smaller --window."


def test_each_tensor_costs_what_the_base_with_it_diverges(folder: Path, tmp_path: Path) -> None:
    options = {"text": folder / "text.txt", "window": WINDOW, "against": folder / "hf"}
    rows = squish_torch.evaluate(folder / "q4.zt", by="tensor", **options).to_dict()["per_tensor"]
    kls = [row["kl"] for row in rows]
    assert kls == sorted(kls, reverse=True)
    names = {row["name"] for row in rows}
    assert names == set(squish.open(folder / "hf"))
    assert all((row["kl"] > 0) == (row["nmse"] > 0) == ("norm" not in row["name"]) for row in rows)
    for name in ("model.layers.0.mlp.down_proj.weight", "model.embed_tokens.weight"):
        path = tmp_path / f"{name}.zt"
        squish.convert(folder / "hf", path, encode=f"{name}=q8_0" if "embed" in name else f"{name}=q4_0")
        (row,) = (row for row in rows if row["name"] == name)
        assert row["kl"] == pytest.approx(squish_torch.evaluate(path, **options).to_dict()["kl"]["mean"], rel=1e-6)
        assert row["size"] == squish.open(path)[name].parts()["data"].nbytes


def test_the_exchange_lists_what_a_byte_buys(folder: Path) -> None:
    data = squish_torch.evaluate(
        folder / "q4.zt", text=folder / "text.txt", window=WINDOW, against=folder / "hf", by="tensor", limit=1
    ).to_dict()
    rows = {row["name"]: row for row in data["per_tensor"]}
    assert set(data["exchange"]) == {name for name, row in rows.items() if row["kl"] > 0}
    gains = [rows[name]["kl"] / (rows[name]["base_size"] - rows[name]["size"]) for name in data["exchange"]]
    assert gains == sorted(gains, reverse=True)
    assert gains == [rows[name]["kl_per_byte"] for name in data["exchange"]]


def test_the_commands_text_fits_the_terminal(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(folder)
    options = ["--against", "hf", "--text", "text.txt", "--limit", "1", "--by", "kind"]
    assert main(["eval", "q4.zt", *options, "--window", str(WINDOW), "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert max(map(len, out.splitlines())) <= 80
    assert (err, "self_attn.q_proj" in out) == ("", True)


def test_the_first_line_names_the_map(folder: Path, tmp_path: Path) -> None:
    squish.convert(folder / "hf", tmp_path / "m.gguf")
    options = {"text": folder / "text.txt", "window": WINDOW, "limit": 1}
    evaluation = squish_torch.evaluate(tmp_path / "m.gguf", against=folder / "hf", **options)
    assert evaluation.lines()[0] == f"compared as llama: {tmp_path / 'm.gguf'} mapped from gguf to hf"
    assert evaluation.to_dict()["same_top"] == 1.0
    same = squish_torch.evaluate(folder / "q4.zt", against=folder / "hf", **options)
    assert same.mapped == ""


def main_numbers(page: str) -> dict[str, str]:
    """The first table of a page."""
    return dict(re.findall(r"<th scope=\"row\">(.*?)</th><td>(.*?)</td>", page))


def test_a_page_has_plots_and_escapes_names(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "<q4>.zt"
    model.write_bytes((folder / "q4.zt").read_bytes())
    for path in (folder / "hf").glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    options = ["--text", str(folder / "text.txt"), "--window", str(WINDOW), "--limit", "1", "--by", "layer", "--quiet"]
    page = tmp_path / "page.html"
    assert main(["eval", str(model), "--against", str(folder / "hf"), *options, "--html", str(page)]) == 0
    text = page.read_text()
    assert text.count("<svg") == 3
    assert text.count("<rect") == 4
    perplexity = main_numbers(text)["perplexity"].split(" \u00b1 ")
    assert float(perplexity[0]) > 1
    assert main_numbers(text)["base"] == str(folder / "hf")
    assert re.search(r"<td>mean</td><td class=\"n\">\d", text)
    assert (
        len(re.findall(r"<td>model\.layers\.\d</td>", text.replace("<wbr>", ""))) == 2 + 2 + 2
    )  # hidden states, cost, best kept
    assert "<pre" not in text
    assert "<q4>" not in text
    assert "&lt;q4&gt;" in text


@pytest.mark.parametrize(("by", "label"), [("layer", "model.layers.1"), ("kind", "model.layers.*.mlp.up_proj.weight")])
def test_groups_of_tensors_are_replaced_together(folder: Path, by: str, label: str) -> None:
    rows = squish_torch.evaluate(
        folder / "q4.zt", text=folder / "text.txt", window=WINDOW, against=folder / "hf", by=by
    ).to_dict()["per_tensor"]
    (row,) = (row for row in rows if row["name"] == label)
    assert row["kl"] > 0


def test_what_tensors_cost_needs_a_base(folder: Path) -> None:
    with pytest.raises(squish.UsageError):
        squish_torch.evaluate(folder / "q4.zt", text=folder / "text.txt", by="tensor")
