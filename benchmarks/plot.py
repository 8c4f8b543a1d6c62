"""A dot plot as SVG: for each row, how much of a limit everybody reaches, on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, LEFT, RIGHT, STEP, TOP = 900, 190, 70, 24, 84
MARKS = {  # series -> color and shape; both tell series apart
    "ours": ("#e8590c", "M-7 0A7 7 0 1 0 7 0A7 7 0 1 0 -7 0Z"),
    "ggml": ("#228be6", "M-5 -5H5V5H-5Z"),
    "gguf-py": ("#15aabf", "M-5 5L0 -6L5 5Z"),
    "onnxruntime": ("#40c057", "M0 -7L7 0L0 7L-7 0Z"),
    "torch": ("#be4bdb", "M-5 -5L0 6L5 -5Z"),
    "mlx": ("#fab005", "M-6 -2H-2V-6H2V-2H6V2H2V6H-2V2H-6Z"),
    "numba": ("#f06595", "M-5 -5L5 0L-5 5Z"),
    "NumPy": ("#868e96", "M5 -5L-5 0L5 5Z"),
}
STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .small { font-size: 12px } .title { font-weight: 600 }
.paper { fill: #ffffff } line { stroke: #d0d7de } .limit { stroke: #1f2328 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .paper { fill: #0d1117 } line { stroke: #30363d } .limit { stroke: #e6edf3 }
}
</style>"""


def dots(title: str, rows: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """An SVG of rows of (label, {name: share of the limit}); the first word of a name is its series, a key of MARKS."""
    shares = [share for _, shares_of in rows for share in shares_of.values()]
    low, high = 10 ** math.floor(math.log10(min(shares))), max(1.1, *shares)
    height = TOP + STEP * len(rows) + 40

    def across(share: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * math.log(share / low) / math.log(high / low), 1)

    ticks = [base * 10**power for power in range(round(math.log10(low)), 1) for base in (1, 3) if base * 10**power <= 1]
    bottom = height - 34
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title>{STYLE}",
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        f'<text class="title" x="12" y="24">{escape(title)}</text>',
    ]
    for tick in ticks:
        kind = ' class="limit"' if tick == 1 else ""
        lines.append(f'<line{kind} x1="{across(tick)}" x2="{across(tick)}" y1="{TOP - 16}" y2="{bottom}"/>')
        text = "the limit" if tick == 1 else f"{tick:.3g}"
        lines.append(f'<text class="small" x="{across(tick)}" y="{bottom + 18}" text-anchor="middle">{text}</text>')
    for number, (label, shares_of) in enumerate(rows):
        y = TOP + STEP * number + 4
        lines.append(f'<text x="{LEFT - 16}" y="{y + 4}" text-anchor="end">{escape(label)}</text>')
        lines.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        for name, share in sorted(shares_of.items(), key=lambda item: item[0] == "ours"):  # ours on top
            lines.append(f"{_mark(name, across(share), y)[:-2]}><title>{escape(name)}: {share:.2g}</title></path>")
        lines.append(f'<text class="small" x="{WIDTH - RIGHT + 12}" y="{y + 4}">{shares_of["ours"]:.2f}</text>')
    named = {name.split()[0] for _, shares_of in rows for name in shares_of}
    x = 20
    for series in (series for series in MARKS if series in named):
        lines += [_mark(series, x, 46), f'<text class="small" x="{x + 12}" y="50">{series}</text>']
        x += 34 + 8 * len(series)
    return "\n".join([*lines, "</svg>", ""])


def _mark(name: str, x: float, y: float) -> str:
    color, shape = MARKS[name.split()[0]]
    return f'<path fill="{color}" transform="translate({x} {y})" d="{shape}"/>'
