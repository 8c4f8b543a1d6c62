"""Pages of evaluations and policies: their numbers as tables, and plots of the layers and of the cost of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from squish_cli.api import Html, Plot, breakable, details, element, facts, page, section, table

from .report import Evaluation
from .scores import PER_UNIT
from .sensitivity import exchanges
from .tasks import task_rows
from .tuning import Tuning

ALONE = "KL divergence of the base with only these replaced"
MOST_ROWS = 500
"""Rows of a table; the data of the page has all."""


def evaluation_page(evaluation: Evaluation, data: Mapping[str, Any]) -> str:
    """Render an evaluation; `data` is its document."""
    title = f"{PurePath(evaluation.model).name} on {PurePath(evaluation.windows.text).name}"
    tasks = [(task, metric, f"{value:.4f}", error) for task, metric, value, error in task_rows(data["tasks"] or {})]
    parts = [
        section("Perplexity", facts(_facts(evaluation, data))),
        section("Tasks", table(("task", "metric", "value", "uncertainty"), "<<>>", tasks)) if tasks else "",
        _divergence(data),
        _hidden(data["hidden_states"]),
        _costs(evaluation),
    ]
    return page(title, parts, "squish/eval/1", data)


def _facts(evaluation: Evaluation, data: Mapping[str, Any]) -> list[tuple[str, str]]:
    score, base, windows = evaluation.perplexity, evaluation.base_perplexity, evaluation.windows
    rows = [
        ("model", evaluation.model),
        ("text", str(windows.text)),
        ("perplexity", f"{score.value:.4f} \u00b1 {score.uncertainty:.4f}"),
        *((name.replace("_", " "), f"{data[name]:.4f}") for name in PER_UNIT if data[name] is not None),
        ("scored", f"{score.tokens:,} tokens: {data['scored']}"),
        ("windows", f"{len(windows):,} of {windows.size:,} tokens"),
    ]
    if evaluation.rows_past_vocabulary:
        rows.append(("left out", f"{evaluation.rows_past_vocabulary:,} rows of the embedding past the vocabulary"))
    if base is not None:
        rows += [("base", str(evaluation.base)), ("its perplexity", f"{base.value:.4f} \u00b1 {base.uncertainty:.4f}")]
        rows.append(("same top token", f"{data['same_top']:.2%} of the scored tokens"))
    rows += [("names", evaluation.mapped)] if evaluation.mapped else []
    rows += [("draft head", evaluation.acceptance.line().removeprefix("draft: "))] if evaluation.acceptance else []
    return rows


def _divergence(data: Mapping[str, Any]) -> Html | str:
    """The KL divergence of all scored tokens: mean, largest, and quantiles."""
    if data["kl"] is None:
        return ""
    rows = [(name.replace("_", ".").replace("q", "percentile "), f"{value:.4g}") for name, value in data["kl"].items()]
    return section("Divergence from the base, by token", table(("", "KL (nats)"), "<>", rows))


def _hidden(layers: Sequence[Mapping[str, Any]]) -> Html | str:
    """The error after each layer."""
    if not layers:
        return ""
    points = [(float(number), layer["nmse"], layer["layer"]) for number, layer in enumerate(layers)]
    plot = Plot("Error of the hidden states", "layer", "NMSE", points, bars=True)
    rows = [(layer["layer"], f"{layer['nmse']:.3g}") for layer in layers]
    return section(plot.title, plot.svg(), details("Numbers", table(("after", "NMSE"), "<>", rows)))


def _costs(evaluation: Evaluation) -> Html | str:
    """What each tensor or group costs alone, by layer and by bits, and what is best kept as in the base."""
    groups = evaluation.per_tensor or ()
    layers = [(float(number), group.kl, group.label) for group in groups if (number := group.layer) is not None]
    bits = [(group.bits, group.kl, group.label) for group in groups if group.kl > 0]
    costly = []
    for group in groups:
        sizes = f"{group.bits:.2f}", f"{group.nbytes:,}", f"{group.base_nbytes:,}"
        costly.append((breakable(group.label), f"{group.kl:.3g}", f"{group.nmse:.3g}", *sizes))
    best = [
        (breakable(group.label), f"{group.kl_per_byte * 1e6:.3g}", f"{group.kl:.3g}", f"{group.saved:,}")
        for group in exchanges(groups)
    ]
    if not groups:
        return ""
    parts = [
        _plot(Plot("Cost by layer", "layer", "KL of the base with it replaced", layers, bars=True)),
        _plot(Plot("Bits against cost", "bits per weight", "KL of the base with it replaced", bits)),
        section("Cost alone", _rows(("tensors", "KL", "NMSE", "bits/weight", "bytes", "in base"), costly, ALONE)),
    ]
    if best:
        caption = "By the divergence that each megabyte saves"
        parts.append(
            section("Best kept as in the base", _rows(("tensors", "KL/MB", "KL", "more bytes"), best, caption))
        )
    return Html("".join(parts))


def _plot(plot: Plot) -> Html | str:
    return section(plot.title, plot.svg()) if plot.points else ""


def _rows(header: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "") -> Html:
    """A table of names and numbers."""
    more = element("p", f"and {len(rows) - MOST_ROWS:,} more", class_="note") if len(rows) > MOST_ROWS else ""
    return Html(table(header, "<" + ">" * (len(header) - 1), rows[:MOST_ROWS], caption) + more)


def tuning_page(model: str, tuning: Tuning, data: Mapping[str, Any]) -> str:
    """Render a policy and its frontier; `data` is its document."""
    points = [(bpw, kl, "sum of KL") for bpw, kl in tuning.frontier]
    plot = Plot("Bits against cost", "bits per weight", "sum of the KL of each matrix alone", points)
    steps = [(f"{bpw:.3f}", f"{kl:.3g}") for bpw, kl in tuning.frontier]
    rules = [(pattern, spec) if spec else ("all others", pattern) for pattern, spec in map(_parts, tuning.rules)]
    numbers = [("bits per weight", f"{tuning.bpw:.3f}"), ("mean KL", f"{tuning.kl:.3g} (measured)")]
    parts = [
        section("Policy", facts([("model", model), *numbers])),
        section(plot.title, plot.svg(), details("Numbers", table(("bits", "sum of KL"), ">>", steps))),
        section("Rules", table(("tensors", "encoding"), "<<", rules)),
    ]
    return page(f"Policy for {PurePath(model).name}", parts, "squish/tune/1", data)


def _parts(rule: str) -> tuple[str, str]:
    """Pattern and encoding of a rule, or the encoding alone."""
    pattern, _, spec = rule.partition("=")
    return pattern, spec
