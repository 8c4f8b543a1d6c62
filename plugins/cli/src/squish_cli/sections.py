"""Parts of pages: what a file is, where its bytes are, what runs it, what is wrong, and how another one differs."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from squish_convert.compare.diff import Difference
from squish_convert.html import Html, details, element, facts, join, table
from squish_convert.lineage import Ancestor, lineage, lineage_lines
from squish_convert.notebook import (
    TENSOR_HEADER,
    conversion_facts,
    conversion_steps,
    difference_row,
    differences,
    extras,
    name_cell,
    problems,
    short,
    tensor_row,
    view,
)
from squish_convert.places import Group, grouped, kind_of, layer_of, layer_order
from squish_convert.report import Conversion
from squish_convert.statistics import LOWEST, Statistics

from squish_core.backends.chain import Chain
from squish_core.backends.plan import FilePlan
from squish_core.checking.verify import Report, severities
from squish_core.file import File
from squish_core.summary import Summary, stored_as
from squish_core.text import counted, format_bytes

from .charts import COLORS, Leaf, bars, columns, heat_map, treemap
from .pages import last, section

MOST_LAYERS = 130
"""Layers of a chart; further ones are one more."""
MOST_KINDS = 40
MOST_LEAVES = 14
"""Kinds of a layer in a treemap; the smaller ones are one more."""
MANY = 48
"""Layers whose bars are folded."""
LARGEST = 40
"""Tensors of the table that needs no script."""
WORST = 40
EQUAL = {"bytes": "equal bytes", "values": "equal values"}
"""State of a tensor in both files -> what a page calls it."""
REST = "others"
OUTLIERS = "Largest value in standard deviations; outliers: beyond 3"
Cells = Mapping[tuple[str, str], float]


def about(file: File, summary: Summary, config: Mapping[str, Any], components: Mapping[str, Collection[str]]) -> Html:
    """What the model is."""
    meta, architectures = summary.metadata, config.get("architectures")
    named = {
        "name": meta.get("general.name"),
        "architecture": meta.get("general.architecture") or config.get("model_type"),
        "class": ", ".join(map(str, architectures)) if isinstance(architectures, list) else None,
        "license": meta.get("general.license"),
    }
    rows = [
        ("file", summary.file),
        ("format", f"{summary.format} {summary.version}".rstrip()),
        ("size", f"{format_bytes(summary.size)} in {counted(len(summary.files), 'file')}"),
        ("tensors", f"{summary.tensors:,}"),
        ("parameters", f"{summary.parameters:,} at {summary.bits:.2f} bits each"),
        *((key, short(str(value))) for key, value in named.items() if value),
        *(("made from", line) for line in lineage_lines(lineage(file))),
        *((f"component {name}", f"{len(tensors):,} tensors") for name, tensors in components.items()),
    ]
    return section("Model", facts(rows), extras(summary))


def missing_parts(items: Iterable[tuple[str, str]]) -> Html:
    """Components that are missing, and why they are needed."""
    rows = list(items)
    return section("Missing", table(("what", "why it is needed"), "<<", rows)) if rows else Html("")


def storage(file: File, layers: Sequence[Group], kinds: Sequence[Group], types: Sequence[Group]) -> Html:
    """Where the bytes are."""
    color = {group.name: number for number, group in enumerate(types)}
    key = [
        element("span", _swatch(number % COLORS), f" {short(name)}", class_="key")
        for name, number in list(color.items())[:COLORS]
    ]
    return join(
        section("Where the bytes are", join(*key), treemap(_leaves(file, color)), _sizes("layer", layers)),
        section("Bits per weight by layer", _bits(layers)),
        section("Kinds of tensors", _sizes("kind", kinds)),
        section("Types", _sizes("type", types)),
    )


def _swatch(color: int) -> Html:
    square = element("rect", width=12, height=12, class_=f"c{color}")
    return element("svg", square, viewBox="0 0 12 12")


def _leaves(file: File, color: Mapping[str, int]) -> list[tuple[str, list[Leaf]]]:
    """Kinds by layer; small kinds and the last layers of very deep models are put together."""
    layers = grouped((tensor for tensor in file.values() if tensor.spec.tied_to is None), lambda t: layer_of(t.name))
    found = []
    for number, (layer, tensors) in enumerate(sorted(layers.items(), key=lambda item: layer_order(item[0]))):
        kinds = grouped(tensors, lambda tensor: kind_of(tensor.name))
        leaves = []
        for kind, members in kinds.items():
            size, stored = sum(tensor.nbytes for tensor in members), stored_as(members[0].spec)
            note = f"{short(layer)} {short(kind)}: {format_bytes(size)}, {len(members):,} x {stored}"
            leaves.append(Leaf(_last(kind, 1), size, note, color.get(stored, 0)))
        leaves.sort(key=lambda leaf: -leaf.size)
        if rest := leaves[MOST_LEAVES:]:
            small = sum(leaf.size for leaf in rest)
            note = f"{short(layer)}: {len(rest)} more, {format_bytes(small)}"
            leaves = [*leaves[:MOST_LEAVES], Leaf(REST, small, note, 8)]
        if number < MOST_LAYERS:
            found.append((_last(layer, 2), leaves))
        else:
            found[-1] = (REST, [*found[-1][1], Leaf(short(layer), sum(leaf.size for leaf in leaves), short(layer), 8)])
    return sorted(found, key=lambda group: -sum(leaf.size for leaf in group[1]))


def _last(name: str, count: int) -> str:
    """The last parts of a name, which say most."""
    return short(".".join(name.split(".")[-count:]))


def _sizes(by: str, groups: Sequence[Group]) -> Html:
    whole = sum(group.size for group in groups) or 1
    rows = []
    for group in groups[:MOST_LAYERS]:
        counts = f"{group.tensors:,}", f"{group.parameters:,}", format_bytes(group.size)
        rows.append((short(group.name), *counts, f"{group.size / whole:.1%}", f"{group.bits:.2f}"))
    more = element("p", f"and {len(groups) - MOST_LAYERS:,} more", class_="note") if len(groups) > MOST_LAYERS else ""
    shown = join(table((by, "tensors", "parameters", "size", "share", "bits/weight"), "<>>>>>", rows), more)
    return details(f"Table by {by}", shown) if by == "layer" and len(rows) > 12 else shown


def _bits(layers: Sequence[Group]) -> Html:
    rows = [(short(group.name), group.bits, f"{group.bits:.2f}") for group in layers[:MOST_LAYERS]]
    drawing = bars(rows, "bits per weight by layer")
    return details(f"{len(rows)} layers", drawing) if len(rows) > MANY else drawing


def tensors(file: File) -> Html:
    """The largest tensors; the script of the page searches all of them."""
    largest = sorted(file.values(), key=lambda tensor: (-tensor.nbytes, layer_order(layer_of(tensor.name))))[:LARGEST]
    caption = f"The largest {LARGEST} of {len(file):,}" if len(file) > LARGEST else ""
    shown = table(TENSOR_HEADER, "<<<>>", map(tensor_row, largest), caption)
    return section("Tensors", element("div", shown, id="tensors"))


def plan(planned: FilePlan) -> Html:
    """What each backend would do, and why."""
    rows = []
    for group in plan_groups(planned):
        size, stored = format_bytes(group["size"]), short(group["codec"])
        rows.append((group["backend"], group["mode"], f"{group['tensors']:,}", size, stored, group["why"]))
    refused = [
        (item["backend"], f"{item['why']} ({item['install']})" if item["install"] else item["why"])
        for item in refusals(planned)
    ]
    return section(
        "What would run it here",
        table(("backend", "mode", "tensors", "size", "codec", "why"), "<<>><<", rows),
        details("Why not others", table(("backend", "why not"), "<<", refused)) if refused else "",
    )


def plan_groups(planned: FilePlan) -> list[dict[str, Any]]:
    """Return tensors that run alike: backend, mode, codec, their number, resident size and the reason."""
    groups: dict[tuple[str, ...], dict[str, Any]] = {}
    for result in planned.tensors.values():
        if isinstance(result, Chain):
            offer = result.chosen
            key = offer.backend, offer.mode, offer.encoding.codec.id, result.because
            size = (offer.cost.resident + offer.cost.mapped) if offer.cost else 0
        else:
            key, size = ("none", "none", "", result.message), 0
        names = ("backend", "mode", "codec", "why")
        group = groups.setdefault(key, {**dict(zip(names, key)), "tensors": 0, "size": 0})
        group["tensors"] += 1
        group["size"] += size
    return sorted(groups.values(), key=lambda group: -group["tensors"])


def refusals(planned: FilePlan) -> list[dict[str, Any]]:
    """Return each backend's reasons once."""
    seen: dict[tuple[str, str], dict[str, Any]] = {}
    for result in planned.tensors.values():
        for refusal in result.refused if isinstance(result, Chain) else ():
            name = refusal.backend or "any"
            item = {"backend": name, "why": refusal.why, "install": refusal.install}
            seen.setdefault((name, refusal.why), item)
    return list(seen.values())[:WORST]


def findings(report: Report) -> Html:
    """What verify finds."""
    counts = ", ".join(counted(count, word) for word, count in severities(report.problems)) or "No findings"
    command = element("code", f"squish verify --deep {shlex.quote(report.file)}")
    depth = ["All data was read."] if report.deep else ["Only the header was checked; ", command, " reads all data."]
    verdict = element("p", f"{counts}.", class_="ok" if report.ok else "error")
    return section("Findings", verdict, element("p", *depth, class_="note"), problems(report.problems))


def checked(file: str, result: Report | str, ancestors: tuple[Ancestor, ...]) -> Html:
    """What verify finds in one of several files, or why it cannot be checked."""
    if isinstance(result, str):
        return section(last(file), element("p", result, class_="error"))
    lines = [("made from", line) for line in lineage_lines(ancestors)]
    return section(last(file), facts(lines) if lines else "", view(result))


def listed(title: str, result: Any) -> Html:
    """All that a result has, by layer."""
    return section(title, view(result))


def difference(result: Difference) -> Html:
    """How another file differs."""
    counts = grouped(result.tensors, lambda item: item.state)
    rows = [(EQUAL.get(state, state), f"{len(items):,}") for state, items in counts.items()]
    worst = sorted((item for item in result.tensors if item.nmse), key=lambda item: -(item.nmse or 0))[:WORST]
    header = ("tensor", "state", "NMSE", "max error", "cosine", "in a", "in b")
    verdict = "The same values." if result.same else "They differ."
    files = facts([("a", result.a), ("b", result.b), *([("names", result.mapped)] if result.mapped else [])])
    states = table(("state", "tensors"), "<>", rows)
    return join(
        section("Difference", element("p", verdict), files, states, differences(result)),
        error_map("Error by layer and kind (NMSE)", error_cells((item.name, item.nmse) for item in result.tensors)),
        section("Largest errors", table(header, "<<>>><<", map(difference_row, worst))) if worst else "",
    )


def conversion(result: Conversion) -> Html:
    """What a conversion does, and its errors."""
    errors = ((step.name, step.quality.nmse) for step in result.steps if step.quality is not None)
    layers = grouped(result.steps, lambda step: layer_of(step.name))
    bits = []
    for layer, steps in sorted(layers.items(), key=lambda item: layer_order(item[0]))[:MOST_LAYERS]:
        value = 8 * sum(step.size for step in steps) / max(sum(step.spec.elements for step in steps), 1)
        bits.append((short(layer), value, f"{value:.2f}"))
    return join(
        section("Conversion", conversion_facts(result), _actions(result)),
        error_map("Error by layer and kind (NMSE)", error_cells(errors)),
        section("Bits per weight by layer, in the target", bars(bits, "bits per weight by layer")) if bits else "",
        section("Tensors", conversion_steps(result)),
    )


def _actions(result: Conversion) -> Html:
    """What is done with tensors of each encoding."""
    groups = grouped(result.steps, lambda step: (step.action, step.source, step.target))
    rows = []
    for (action, source, target), steps in sorted(groups.items(), key=lambda item: -len(item[1]))[:WORST]:
        size, worst = (
            sum(step.size for step in steps),
            [step.quality.nmse for step in steps if step.quality is not None],
        )
        error = _error(max(worst)) if worst else ""
        rows.append((action, short(source), short(target), f"{len(steps):,}", format_bytes(size), error))
    return table(("action", "from", "to", "tensors", "size", "largest NMSE"), "<<<>>>", rows)


def error_cells(errors: Iterable[tuple[str, float | None]]) -> dict[tuple[str, str], float]:
    """Return the largest error by layer and kind."""
    cells: dict[tuple[str, str], float] = {}
    for name, error in errors:
        if error is not None:
            place = layer_of(name), kind_of(name)
            cells[place] = max(cells.get(place, 0.0), error)
    return cells


def error_map(title: str, cells: Cells) -> Html:
    """Return a heat map with the table of its numbers; nothing without cells."""
    if not cells:
        return Html("")
    rows = sorted({layer for layer, _ in cells}, key=layer_order)[:MOST_LAYERS]
    kinds = list(dict.fromkeys(kind for _, kind in cells))[:MOST_KINDS]
    listed = [(short(layer), *(_error(cells.get((layer, kind))) for kind in kinds)) for layer in rows]
    numbers = table(("layer", *map(short, kinds)), "<" + ">" * len(kinds), listed)
    shown = heat_map(cells, rows, kinds, title)
    return section(title, shown, details("Numbers", numbers))


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}" if isfinite(value) else str(value)


def values(found: Sequence[tuple[str, Statistics]], scales: Mapping[int, int]) -> Html:
    """Histograms of values and scales, and the tensors with most outliers."""
    rows = []
    for name, each in outliers(found):
        moments = map(_number, (each.mean, each.std, each.absmax, _peak(each)))
        share = "" if each.outliers is None else f"{each.outliers:.3%}"
        rows.append((name_cell(name), *moments, share, f"{each.nan:,}", f"{each.infinite:,}"))
    header = ("tensor", "mean", "std", "largest", "in std", "outliers", "NaN", "infinite")
    zeros = sum(each.zeros for _, each in found)
    return join(
        _histogram(
            "Magnitudes of values", magnitudes(each for _, each in found), f"Without {zeros:,} zeros." if zeros else ""
        ),
        _histogram("Magnitudes of scales", scales, "The scales that are stored with codes, all of them."),
        section("Outliers", table(header, "<>>>>>>>", rows, OUTLIERS)),
    )


def unread(found: Sequence[tuple[str, str]]) -> Html:
    """Tensors whose values could not be read, and why."""
    rows = [(name_cell(name), why) for name, why in found[:WORST]]
    more = element("p", f"and {len(found) - WORST:,} more", class_="note") if len(found) > WORST else ""
    return section("Values that could not be read", table(("tensor", "why"), "<<", rows), more) if rows else Html("")


def magnitudes(found: Iterable[Statistics]) -> Counter[int]:
    """Count values by magnitude."""
    counts = Counter[int]()
    for each in found:
        counts.update(each.negative)
        counts.update(each.positive)
    return counts


def outliers(found: Sequence[tuple[str, Statistics]]) -> list[tuple[str, Statistics]]:
    """Return the tensors whose largest values are the most standard deviations."""
    return sorted(found, key=lambda pair: -(_peak(pair[1]) or 0))[:WORST]


def _histogram(title: str, counts: Mapping[int, int], note: str) -> Html:
    """Return the counts by power of two, as columns and as a table; nothing without counts."""
    if not counts:
        return Html("")
    rows = [(f"2^{k}" if k > LOWEST else "0", count) for k, count in sorted(counts.items())]
    drawing = columns([(power, count, f"from {power}: {count:,}") for power, count in rows], title)
    numbers = table(("from", "number"), ">>", [(power, f"{count:,}") for power, count in rows])
    return section(title, drawing, element("p", note, class_="note") if note else "", details("Numbers", numbers))


def _peak(statistics: Statistics) -> float | None:
    """The largest magnitude, in standard deviations."""
    return statistics.absmax / statistics.std if statistics.absmax is not None and statistics.std else None


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
