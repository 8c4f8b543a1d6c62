"""Pages of evaluations and policies, with plots of the layers and of the cost of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from squish_cli.api import Plot, element, page, section

from .report import Evaluation
from .tuning import Tuning


def evaluation_page(evaluation: Evaluation, data: Mapping[str, Any]) -> str:
    """Render an evaluation; `data` is its document."""
    plots = []
    hidden = evaluation.hidden.to_list()
    if hidden:
        points = [(float(number), group["nmse"], group["layer"]) for number, group in enumerate(hidden)]
        plots.append(Plot("Error of the hidden states", "layer", "NMSE", points, bars=True))
    costs = evaluation.per_tensor or ()
    layers = [(float(number), group.kl, group.label) for group in costs if (number := group.layer) is not None]
    if layers:
        plots.append(Plot("Cost by layer", "layer", "KL of the base with it replaced", layers, bars=True))
    bits = [(group.bits, group.kl, group.label) for group in costs if group.kl > 0]
    if bits:
        plots.append(Plot("Bits against cost", "bits per weight", "KL of the base with it replaced", bits))
    title = f"{evaluation.model} on {evaluation.windows.text}"
    return _page(title, evaluation.lines(), plots, "squish/eval/1", data)


def tuning_page(model: str, tuning: Tuning, data: Mapping[str, Any]) -> str:
    """Render a policy and its frontier; `data` is its document."""
    points = [(bpw, kl, "sum of KL") for bpw, kl in tuning.frontier]
    plot = Plot("Bits against cost", "bits per weight", "sum of the KL of each matrix alone", points)
    summary = f"{tuning.bpw:.3f} bits per weight, mean KL {tuning.kl:.3g} (measured)"
    return _page(f"policy for {model}", [summary, "", *tuning.rules], [plot], "squish/tune/1", data)


def _page(title: str, lines: Iterable[str], plots: Sequence[Plot], schema: str, data: Mapping[str, Any]) -> str:
    numbers = section("Numbers", element("pre", "\n".join(lines)))
    return page(title, [numbers, *(section(plot.title, plot.svg()) for plot in plots)], schema, data)
