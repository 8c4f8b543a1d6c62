"""Evaluations as one HTML page with SVG plots, without scripts or other files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as escape_html
from math import log10

from attrs import frozen

from .report import Evaluation
from .tuning import Tuning

WIDTH, HEIGHT, MARGIN = 720, 280, 56
STYLE = "body{font:14px sans-serif;max-width:760px;margin:2em auto}text{font-size:11px}pre{overflow-x:auto}"


@frozen
class Plot:
    """Points with labels: bars from the bottom, or marks."""

    title: str
    x: str
    y: str
    points: Sequence[tuple[float, float, str]]
    bars: bool = False

    def svg(self) -> str:
        """Render the plot; y is logarithmic if all values are positive and span more than a factor of 20."""
        xs, ys = [point[0] for point in self.points], [point[1] for point in self.points]
        logarithmic = min(ys) > 0 and max(ys) > 20 * min(ys)
        heights = [log10(y) for y in ys] if logarithmic else ys
        low = min(heights) - 0.1 if logarithmic else min(0.0, *heights)
        span = (max(heights) - low) or 1.0
        left, width = min(xs), (max(xs) - min(xs)) or 1.0
        shapes = []
        for (x, y, label), height in zip(self.points, heights):
            across = MARGIN + (x - left) / width * (WIDTH - 2 * MARGIN)
            up = (height - low) / span * (HEIGHT - 2 * MARGIN)
            top, title = HEIGHT - MARGIN - up, f"<title>{escape_html(f'{label}: {x:.4g}, {y:.4g}')}</title>"
            shapes.append(
                f'<rect x="{across - 3:.1f}" y="{top:.1f}" width="6" height="{up:.1f}" fill="#369">{title}</rect>'
                if self.bars
                else f'<circle cx="{across:.1f}" cy="{top:.1f}" r="3" fill="#369">{title}</circle>'
            )
        marks = [
            _text(MARGIN - 4, HEIGHT - MARGIN, f"{10**low if logarithmic else low:.3g}", "end"),
            _text(MARGIN - 4, MARGIN, f"{max(ys):.3g}", "end"),
            _text(MARGIN, HEIGHT - MARGIN + 16, f"{min(xs):.4g}", "start"),
            _text(WIDTH - MARGIN, HEIGHT - MARGIN + 16, f"{max(xs):.4g}", "end"),
            _text(WIDTH / 2, HEIGHT - 12, self.x, "middle"),
            _text(MARGIN, MARGIN - 16, self.y + (" (logarithmic)" if logarithmic else ""), "start"),
        ]
        frame = f'<path d="M{MARGIN} {MARGIN}V{HEIGHT - MARGIN}H{WIDTH - MARGIN}" fill="none" stroke="#999"/>'
        return (
            f"<h2>{escape_html(self.title)}</h2>\n"
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{frame}{"".join(shapes)}{"".join(marks)}</svg>\n'
        )


def evaluation_page(evaluation: Evaluation) -> str:
    """Render an evaluation, with plots of the layers and of the cost of tensors."""
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
    return _page(f"{evaluation.model} on {evaluation.windows.text}", evaluation.lines(), plots)


def tuning_page(model: str, tuning: Tuning) -> str:
    """Render a policy and its frontier."""
    points = [(bpw, kl, "sum of KL") for bpw, kl in tuning.frontier]
    plot = Plot("Bits against cost", "bits per weight", "sum of the KL of each matrix alone", points)
    summary = f"{tuning.bpw:.3f} bits per weight, mean KL {tuning.kl:.3g} (measured)"
    return _page(f"policy for {model}", [summary, "", *tuning.rules], [plot])


def _page(title: str, lines: Iterable[str], plots: Iterable[Plot]) -> str:
    text = escape_html("\n".join(lines))
    return (
        f'<!doctype html>\n<meta charset="utf-8">\n<title>{escape_html(title)}</title>\n<style>{STYLE}</style>\n'
        f"<h1>{escape_html(title)}</h1>\n{''.join(plot.svg() for plot in plots)}<pre>{text}</pre>\n"
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape_html(text)}</text>'
