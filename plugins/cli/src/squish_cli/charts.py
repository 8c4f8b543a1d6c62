"""Charts of pages as inline SVG: treemap, bars, heat map, histogram, points.

Shapes have classes, and colors are those of the page's style, so that light, dark and print look right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, log10

from attrs import frozen
from squish_convert.html import Html, element, join

WIDTH = 960
NARROW = 470
"""Width of bars and histograms, whose labels stay readable on a phone."""
COLORS = 10
"""Number of colors of categories, `c0` to `c9` in the style."""
STEPS = 7
"""Number of steps of the color scale of heat maps, `h0` to `h6`."""
CHARACTER, BOLD = 6.6, 7.4
"""Widths of a character of labels, whose font has 11 px."""
Box = tuple[float, float, float, float]


@frozen
class Leaf:
    """A rectangle of a treemap: `label` on it if it fits, `note` in its tooltip."""

    label: str
    size: float
    note: str
    color: int


def svg(height: float, *content: object, label: str, width: float = WIDTH) -> Html:
    """Return a drawing that scales with the page."""
    return element(
        "svg",
        *content,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=label,
        class_="narrow" if width <= 640 else None,
    )


def treemap(groups: Sequence[tuple[str, Sequence[Leaf]]], height: float = 480) -> Html:
    """Return rectangles by group, as large as their sizes; those of a group lie together."""
    groups = [(name, leaves) for name, leaves in groups if sum(leaf.size for leaf in leaves) > 0]
    boxes = squarify([sum(leaf.size for leaf in leaves) for _, leaves in groups], (0, 0, WIDTH, height))
    drawn = []
    for (name, leaves), (x, y, width, high) in zip(groups, boxes):
        head = 14 if high > 34 and width > 40 else 0
        ordered = sorted(leaves, key=lambda leaf: -leaf.size)
        inner = squarify([leaf.size for leaf in ordered], (x, y + head, width, high - head))
        drawn += [_leaf(leaf, box) for leaf, box in zip(ordered, inner)]
        drawn.append(
            element("rect", x=f"{x:.1f}", y=f"{y:.1f}", width=f"{width:.1f}", height=f"{high:.1f}", class_="g")
        )
        if head:
            drawn.append(_label(x + 3, y + 11, name, width - 6, "group"))
    return svg(height, *drawn, label="treemap of stored bytes")


def _rectangle(box: Box, kind: str, *content: object) -> Html:
    x, y, width, height = (f"{max(side, 0):.1f}" for side in box)
    return element("rect", *content, x=x, y=y, width=width, height=height, class_=kind)


def _leaf(leaf: Leaf, box: Box) -> Html:
    x, y, width, height = box
    shape = _rectangle(box, f"c{leaf.color % COLORS}", element("title", leaf.note))
    fits = height > 15 and width > 30
    return join(shape, _label(x + 3, y + 12, leaf.label, width - 6, "on")) if fits else shape


def _label(x: float, y: float, label: str, width: float, kind: str) -> Html:
    """Return text that is cut to a width; nothing if less than three characters fit. A group becomes its number."""
    room = int(width / (BOLD if kind == "group" else CHARACTER))
    if kind == "group" and len(label) > room:
        label = label.rpartition(".")[2]
    if room < min(3, len(label)):
        return Html("")
    shown = label if len(label) <= room else f"{label[: room - 1]}\u2026"
    return element("text", shown, x=f"{x:.1f}", y=f"{y:.1f}", class_=kind)


def squarify(sizes: Sequence[float], box: Box) -> list[Box]:
    """Return rectangles in a box, near squares with areas as the sizes, in the same order; best with falling sizes."""
    x, y, width, height = box
    remaining, boxes, start = float(sum(sizes)), list[Box](), 0
    while start < len(sizes):
        if remaining <= 0 or width <= 0 or height <= 0:
            return boxes + [(x, y, 0.0, 0.0)] * (len(sizes) - start)
        scale, side, end = width * height / remaining, min(width, height), start + 1
        row = sizes[start]
        while end < len(sizes) and _worst(sizes[start : end + 1], row + sizes[end], scale, side) <= _worst(
            sizes[start:end], row, scale, side
        ):
            row += sizes[end]
            end += 1
        thick, along = row * scale / side, 0.0
        for size in sizes[start:end]:
            long = side * size / row if row else 0.0
            boxes.append((x, y + along, thick, long) if width >= height else (x + along, y, long, thick))
            along += long
        x, y, width, height = (
            (x + thick, y, width - thick, height) if width >= height else (x, y + thick, width, height - thick)
        )
        remaining, start = remaining - row, end
    return boxes


def _worst(sizes: Sequence[float], total: float, scale: float, side: float) -> float:
    """The largest ratio of sides in a row of rectangles."""
    thick = total * scale / side
    least, most = min(sizes) * scale, max(sizes) * scale
    return max(most / thick**2, thick**2 / least) if least > 0 else float("inf")


def bars(rows: Sequence[tuple[str, float, str]], label: str) -> Html:
    """Return a horizontal bar for each (name, value, value as text)."""
    most, step, left, right = max((value for _, value, _ in rows), default=1) or 1, 17, 132, 48
    drawn = []
    for number, (name, value, shown) in enumerate(rows):
        y, width = number * step, max(value / most, 0) * (NARROW - left - right)
        drawn.append(element("text", _cut(name, 20), x=left - 6, y=y + 12, class_="end"))
        drawn.append(_rectangle((left, y + 3, width, 12), "bar", element("title", f"{name}: {shown}")))
        drawn.append(element("text", shown, x=f"{left + width + 5:.1f}", y=y + 12))
    return svg(len(rows) * step + 4, *drawn, label=label, width=NARROW)


def _cut(name: str, most: int) -> str:
    return name if len(name) <= most else f"\u2026{name[1 - most :]}"


def heat_map(cells: Mapping[tuple[str, str], float], rows: Sequence[str], columns: Sequence[str], label: str) -> Html:
    """Return a map of values by (row, column) in a logarithmic scale of colors; equal values stay the lowest color."""
    positive = [value for value in cells.values() if value > 0 and isfinite(value)]
    low, high = (log10(min(positive)), log10(max(positive))) if positive else (0.0, 0.0)
    left, top, step = 150, 110, 16
    across = min((WIDTH - left) / max(len(columns), 1), 60)
    drawn = []
    for number, name in enumerate(columns):
        x = left + (number + 0.5) * across
        drawn.append(element("text", _cut(name, 20), transform=f"translate({x:.1f},{top - 6}) rotate(-45)"))
    for number, name in enumerate(rows):
        y = top + number * step
        drawn.append(element("text", _cut(name, 21), x=left - 6, y=y + 12, class_="end"))
        for place, column in enumerate(columns):
            value = cells.get((name, column))
            if value is not None:
                drawn.append(_cell(left + place * across, y, across, step, value, low, high, f"{name} {column}"))
    height, width = top + len(rows) * step + 4, left + len(columns) * across + 40
    drawing = svg(height, *drawn, label=label, width=max(width, NARROW))
    return join(drawing, element("p", _scale(low, high) if positive else "No error anywhere.", class_="note"))


def _scale(low: float, high: float) -> Html:
    """Return the colors of a heat map with the values at both ends."""
    colors = (element("rect", x=12 * step, width=12, height=12, class_=f"h{step}") for step in range(STEPS))
    drawing = element("svg", *colors, viewBox=f"0 0 {12 * STEPS} 12", class_="scale", role="img", aria_label="scale")
    return join(f"{10**low:.2g} ", drawing, f" {10**high:.2g}")


def _cell(x: float, y: float, width: float, height: float, value: float, low: float, high: float, name: str) -> Html:
    share = 0.0 if value <= 0 else 1.0 if not isfinite(value) else (log10(value) - low) / ((high - low) or 1)
    kind = "zero" if value <= 0 else f"h{min(int(share * STEPS), STEPS - 1)}"
    tooltip = element("title", f"{name}: {value:.3g}")
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{width - 1:.1f}", "height": f"{height - 1:g}"}
    return element("rect", tooltip, class_=kind, **place)


def columns(points: Iterable[tuple[str, float, str]], label: str, height: float = 180) -> Html:
    """Return vertical columns, one for each (label below, value, tooltip), such as a histogram."""
    listed = list(points)
    most, across = max((value for _, value, _ in listed), default=1) or 1, (NARROW - 20) / max(len(listed), 1)
    every = -(-len(listed) * 40 // NARROW) or 1
    drawn = []
    for number, (name, value, note) in enumerate(listed):
        high, x = (height - 24) * value / most, 10 + number * across
        place = {"x": f"{x:.1f}", "y": f"{height - 20 - high:.1f}", "width": f"{max(across - 1, 1):.1f}"}
        drawn.append(element("rect", element("title", note), height=f"{high:.1f}", class_="bar", **place))
        if number % every == 0:
            drawn.append(element("text", name, x=f"{x + across / 2:.1f}", y=height - 6, class_="middle"))
    return svg(height, *drawn, label=label, width=NARROW)


@frozen
class Plot:
    """Points with labels: bars from the bottom, or marks."""

    title: str
    x: str
    y: str
    points: Sequence[tuple[float, float, str]]
    bars: bool = False

    def svg(self) -> Html:
        """Render the plot; y is logarithmic if all values are positive and span more than a factor of 20."""
        height, margin = 300, 60
        xs, ys = [point[0] for point in self.points], [point[1] for point in self.points]
        logarithmic = min(ys) > 0 and max(ys) > 20 * min(ys)
        heights = [log10(y) for y in ys] if logarithmic else ys
        low = min(heights) - 0.1 if logarithmic else min(0.0, *heights)
        span, left, width = (max(heights) - low) or 1.0, min(xs), (max(xs) - min(xs)) or 1.0
        shapes = []
        for (x, y, name), value in zip(self.points, heights):
            across = margin + (x - left) / width * (WIDTH - 2 * margin)
            up = (value - low) / span * (height - 2 * margin)
            top, title = height - margin - up, element("title", f"{name}: {x:.4g}, {y:.4g}")
            shapes.append(
                element("rect", title, x=f"{across - 3:.1f}", y=f"{top:.1f}", width=6, height=f"{up:.1f}", class_="bar")
                if self.bars
                else element("circle", title, cx=f"{across:.1f}", cy=f"{top:.1f}", r=4, class_="bar")
            )
        bottom = f"{10**low if logarithmic else low:.3g}"
        marks = [
            element("text", bottom, x=margin - 4, y=height - margin, class_="end"),
            element("text", f"{max(ys):.3g}", x=margin - 4, y=margin, class_="end"),
            element("text", f"{min(xs):.4g}", x=margin, y=height - margin + 16),
            element("text", f"{max(xs):.4g}", x=WIDTH - margin, y=height - margin + 16, class_="end"),
            element("text", self.x, x=WIDTH / 2, y=height - 12, class_="middle"),
            element("text", self.y + (" (logarithmic)" if logarithmic else ""), x=margin, y=margin - 16),
        ]
        frame = element("path", d=f"M{margin} {margin}V{height - margin}H{WIDTH - margin}", class_="axis")
        return svg(height, frame, *shapes, *marks, label=self.title)
