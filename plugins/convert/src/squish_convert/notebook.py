"""Results as HTML for notebooks: a table of facts, and tables that unfold by layer, of a bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from squish_core.summary import abbreviate, stored_as
from squish_core.text import counted, format_bytes

from .html import Html, breakable, details, element, facts, join, table
from .places import grouped, layer_of, layer_order, total

if TYPE_CHECKING:
    from squish_core.backends.chain import Chain
    from squish_core.backends.features import Matrix
    from squish_core.backends.plan import FilePlan
    from squish_core.backends.weight import Weight
    from squish_core.checking.verify import Report
    from squish_core.errors import Problem
    from squish_core.file import File
    from squish_core.plugins.registry import Registry
    from squish_core.summary import Summary
    from squish_core.tensor import Tensor

    from .compare.diff import Difference
    from .report import Conversion
    from .statistics import Statistics
    from .tables import Selection, Table

MOST_ROWS = 500
"""Rows of all tables of a result together, which keeps it below 200 kB."""
MOST_GROUPS = 200
"""Layers that are listed."""
LONG_NAME = 120
"""Characters of a name that are shown."""
STYLE = (
    ".squish table{border-collapse:collapse;margin:.3em 0}.squish td,.squish th{text-align:left;padding:.1em .6em;"
    "vertical-align:top}.squish .n{text-align:right;font-variant-numeric:tabular-nums}.squish summary{cursor:pointer}"
    ".squish .bar{display:inline-block;height:.7em;background:#4a7fb5}"
)


def html(result: Any) -> str:
    """Return a result as HTML."""
    return join(Html('<div class="squish"><style>'), Html(STYLE), Html("</style>"), view(result), Html("</div>"))


def view(result: Any) -> Html:
    """Return the tables of a result without a style, for a page; `_tables_` of a class of another distribution."""
    names = (f"{kind.__module__}.{kind.__name__}" for kind in type(result).__mro__)
    tables = next((VIEWS[name] for name in names if name in VIEWS), None)
    return tables(result) if tables else result._tables_()


Row = Sequence[object]


def folded(
    groups: Mapping[str, list[Any]],
    items: str,
    header: Row,
    align: str,
    row: Callable[[Any], Row],
    note: Callable[[list[Any]], str] = lambda members: "",
) -> Html:
    """Return a folded table for each group of some items, such as "tensor"; a single one unfolded."""
    most = max(MOST_ROWS // max(min(len(groups), MOST_GROUPS), 1), 1)
    folds = []
    for name, members in list(groups.items())[:MOST_GROUPS]:
        remaining, remark = len(members) - most, note(members)
        more = element("p", f"and {remaining:,} more") if remaining > 0 else ""
        title = f"{short(name)}: {counted(len(members), items)}{f', {remark}' if remark else ''}"
        folds.append(details(title, table(header, align, map(row, members[:most])), more, open_=len(groups) == 1))
    if len(groups) > MOST_GROUPS:
        folds.append(element("p", f"and {len(groups) - MOST_GROUPS:,} more"))
    return join(*folds)


def by_layer(items: Iterable[Any], name: Callable[[Any], str], *columns: Any) -> Html:
    """Return a folded table for each layer; further arguments are those of `folded`."""
    layers = grouped(items, lambda item: layer_of(name(item)))
    return folded(dict(sorted(layers.items(), key=lambda item: layer_order(item[0]))), "tensor", *columns)


def short(name: str) -> str:
    """Return a name, shortened in the middle."""
    return name if len(name) <= LONG_NAME else f"{name[: LONG_NAME // 2]}...{name[-LONG_NAME // 2 :]}"


def name_cell(name: str) -> Html:
    """Return the name of a tensor for a table."""
    return breakable(short(name))


def tensors_by_layer(tensors: Iterable[Tensor]) -> Html:
    """Return tensors with their shapes and sizes."""

    def size(members: list[Tensor]) -> str:
        sums = total("", members)
        return f"{format_bytes(sums.size)}, {sums.bits:.2f} bits per weight"

    return by_layer(tensors, lambda tensor: tensor.name, TENSOR_HEADER, "<<<>>", tensor_row, size)


TENSOR_HEADER = ("tensor", "shape", "stored as", "bits/weight", "bytes")


def tensor_row(tensor: Tensor) -> Row:
    """Return the cells for `TENSOR_HEADER`."""
    return (
        short(tensor.name),
        _shape(tensor.shape),
        stored_as(tensor.spec),
        f"{tensor.bits_per_weight:.2f}",
        f"{tensor.nbytes:,}",
    )


def _shape(shape: Sequence[int]) -> str:
    """Return a shape as text that no line break divides."""
    return "\u00d7".join(map(str, shape)) or "scalar"


def _file(file: File) -> Html:
    sums = total("", file.values())
    about = [
        ("file", file.name),
        ("format", f"{file.format} {file.version}".rstrip()),
        ("size", format_bytes(file.size)),
        ("tensors", f"{len(file):,}"),
        ("parameters", f"{sums.parameters:,} at {sums.bits:.2f} bits each"),
    ]
    return join(facts(about), tensors_by_layer(file.values()), problems(file.problems))


def _selection(selection: Selection) -> Html:
    pattern = " ".join(selection.patterns) or "*"
    about = [("file", selection.file.name), ("pattern", pattern), ("tensors", f"{len(selection):,}")]
    return join(facts(about), tensors_by_layer(selection.values()))


def _tensor(tensor: Tensor) -> Html:
    parts = [(role, part.dtype, list(part.shape), f"{part.stored:,}") for role, part in _parts(tensor).items()]
    listing = details("parts", table(("part", "dtype", "shape", "bytes"), "<<<>", parts))
    return join(table(TENSOR_HEADER, "<<<>>", [tensor_row(tensor)]), listing)


def _parts(tensor: Tensor) -> Mapping[str, Any]:
    return {**(tensor.spec.encodings[0].parts if tensor.spec.encodings else {}), **tensor.spec.extras}


def _weight(weight: Weight) -> Html:
    offer = weight.chain.chosen
    about = [
        ("tensor", short(weight.name)),
        ("shape", _shape(weight.shape)),
        ("stored as", stored_as(weight.tensor.spec)),
        ("backend", f"{offer.backend} ({offer.mode})"),
        ("in memory", f"{offer.storage}, {format_bytes(weight.nbytes)}"),
    ]
    return join(facts(about), details("why", _chain(weight.chain)))


def _chain(chain: Chain) -> Html:
    offers = [("chosen", chain.chosen, chain.because), *(("instead", offer, "") for offer in chain.others)]
    rows: list[Row] = [
        (state, offer.backend, short(str(offer.encoding.codec)), offer.mode, why) for state, offer, why in offers
    ]
    for refusal in chain.refused:
        codec = short(str(refusal.encoding.codec)) if refusal.encoding else ""
        install = f" ({refusal.install})" if refusal.install else ""
        rows.append(("not", refusal.backend or "any", codec, "", f"{refusal.why}{install}"))
    return table(("", "backend", "codec", "mode", "why"), "<<<<<", rows, short(chain.target))


def _matrix(matrix: Matrix) -> Html:
    header, rows = matrix.cells()
    about = [("format", matrix.container), ("backends", ", ".join(matrix.backends)), ("combinations", f"{len(rows):,}")]
    encodings = grouped(rows, lambda row: row[len(header) - len(matrix.backends) - 1])
    return join(facts(about), folded(encodings, "combination", header, "<" * len(header), lambda row: row))


def _plan(plan: FilePlan) -> Html:
    from squish_core.backends.chain import Chain

    about: list[tuple[str, object]] = [("file", plan.target), ("mode", plan.mode)]
    about += [(f"on {name}", counted(count, "tensor")) for name, count in plan.backends.items()]
    about += [("cannot run here", counted(len(plan.errors), "tensor"))] if plan.errors else []

    def row(item: tuple[str, Any]) -> Row:
        name, chain = item
        if not isinstance(chain, Chain):
            return name_cell(name), "none", "", "", chain.message
        offer = chain.chosen
        return name_cell(name), offer.backend, offer.mode, short(str(offer.encoding.codec)), chain.because

    listing = by_layer(
        plan.tensors.items(), lambda item: item[0], ("tensor", "backend", "mode", "codec", "why"), "<<<<<", row
    )
    whole = _chain(plan.whole) if isinstance(plan.whole, Chain) else ""
    return join(facts(about), whole, listing)


def _statistics(statistics: Statistics) -> Html:
    def number(value: float | None) -> str:
        return "none" if value is None else f"{value:.6g}"

    moments = [(name, number(getattr(statistics, name))) for name in ("min", "max", "mean", "std", "rms")]
    counts = [(name, f"{getattr(statistics, name):,}") for name in ("values", "zeros", "nan", "infinite")]
    outliers = "none" if statistics.outliers is None else f"{statistics.outliers:.3%}"
    shares = [(f"{share:g}", number(value)) for share, value in statistics.quantiles.items()]
    note = "quantile" if statistics.exact else f"quantile of {statistics.sampled:,} values"
    return join(
        facts([*moments, ("outliers", outliers), *counts]),
        details("quantiles", table((note, "value"), ">>", shares)) if shares else "",
        details("magnitudes", histogram(statistics), open_=True),
    )


def histogram(statistics: Statistics) -> Html:
    """Return the number of values per power of two, with a bar for both signs."""
    from .statistics import LOWEST

    powers = sorted({*statistics.negative, *statistics.positive})
    counts = [(k, statistics.negative.get(k, 0), statistics.positive.get(k, 0)) for k in powers]
    most = max((negative + positive for _, negative, positive in counts), default=1)
    rows = []
    for k, negative, positive in counts:
        width = -(-200 * (negative + positive) // most)
        bar = Html(f'<span class="bar" style="width:{width}px"></span>')
        rows.append((f"2^{k}" if k > LOWEST else "0", f"{negative:,}", f"{positive:,}", bar))
    return table(("|x| from", "negative", "positive", ""), ">>><", rows)


def _table(shown: Table) -> Html:
    columns = [column for column in shown.columns if any(row[column] is not None for row in shown.rows)]
    numbers = "".join("<" if column in ("name", "shape", "dtype", "codec", "problem") else ">" for column in columns)
    most = min(MOST_ROWS, 4000 // max(len(columns), 1))
    rows = ([_cell(row[column]) for column in columns] for row in shown.rows[:most])
    more = element("p", f"and {len(shown) - most:,} more") if len(shown) > most else ""
    return join(table(columns, numbers, rows, shown.title), more)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else "" if value is None else short(str(value))


def _difference(difference: Difference) -> Html:
    states = grouped(difference.tensors, lambda item: item.state)
    about: list[tuple[str, object]] = [
        ("a", difference.a),
        ("b", difference.b),
        ("verdict", "same" if difference.same else "differs"),
        *((state, counted(len(items), "tensor")) for state, items in states.items()),
        ("metadata", f"{len(difference.meta)} differ" if difference.meta else "equal"),
        ("assets", f"{len(difference.assets)} differ" if difference.assets else "equal"),
    ]
    rows = by_layer(difference.tensors, lambda item: item.name, DIFFERENCE_HEADER, "<<>>><<", difference_row)
    return join(facts(about), rows, differences(difference))


def differences(difference: Difference) -> Html:
    """Return the metadata and the assets that differ."""
    changes = [*difference.meta, *difference.assets]
    return details(f"Metadata and assets that differ: {len(changes):,}", _listing(changes)) if changes else Html("")


DIFFERENCE_HEADER = ("tensor", "state", "NMSE", "max error", "cosine", "in a", "in b")


def difference_row(item: Any) -> Row:
    """Return the cells for `DIFFERENCE_HEADER`."""
    errors = ("" if value is None else f"{value:.3g}" for value in (item.nmse, item.max_error))
    cosine = "" if item.cosine is None else f"{item.cosine:.6g}"
    return name_cell(item.name), item.state, *errors, cosine, item.a, item.b


def _conversion(conversion: Conversion) -> Html:
    return join(conversion_facts(conversion), conversion_steps(conversion))


def conversion_facts(conversion: Conversion) -> Html:
    """Return what is converted, and the whole error."""
    size = "unknown until written" if conversion.size is None else format_bytes(conversion.size)
    actions = grouped(conversion.steps, lambda step: step.action)
    about: list[tuple[str, object]] = [
        ("source", f"{conversion.source} ({format_bytes(conversion.source_size)})"),
        ("target", f"{conversion.target} ({size})"),
        ("format", conversion.format),
        *((action, counted(len(steps), "tensor")) for action, steps in actions.items()),
        *([("error", f"NMSE {conversion.quality.nmse:.3g}")] if conversion.quality else []),
    ]
    return facts(about)


def conversion_steps(conversion: Conversion) -> Html:
    """Return what is done with each tensor, what is lost, and notes."""
    lost = [(item.kind, short(item.name), item.reason) for item in conversion.dropped[:MOST_ROWS]]
    return join(
        by_layer(conversion.steps, lambda step: step.name, STEP_HEADER, "<<<<>><", step_row),
        details("dropped", table(("kind", "name", "reason"), "<<<", lost)) if lost else "",
        details("notes", _listing(conversion.notes)) if conversion.notes else "",
    )


STEP_HEADER = ("tensor", "action", "from", "to", "bits/weight", "NMSE", "exactness")


def step_row(step: Any) -> Row:
    """Return the cells for `STEP_HEADER`."""
    error = "" if step.quality is None else f"{step.quality.nmse:.3g}"
    stored = short(step.source), short(step.target)
    return name_cell(step.name), step.action, *stored, f"{step.bits:.2f}", error, step.exactness


def _report(report: Report) -> Html:
    from squish_core.checking.verify import severities

    counts = ", ".join(counted(count, word) for word, count in severities(report.problems)) or "no findings"
    about = [
        ("file", report.file),
        ("format", report.format or "cannot be opened"),
        ("verdict", f"{'ok' if report.ok else 'error'}; {counts}"),
        ("tensors", f"{report.tensors:,}{f', {report.decoded:,} decoded' if report.deep else ''}"),
        *([("digests", f"{report.digests:,}, {report.unverified:,} not checked")] if report.digests else []),
        *(("not checked", item) for item in report.not_checked),
    ]
    return join(facts(about), problems(report.problems))


def problems(found: Sequence[Problem]) -> Html:
    """Return findings by severity, code and message; their places unfold."""
    folds = []
    groups = grouped(found, lambda problem: f"{problem.severity}: {problem.message} ({problem.code})")
    most = max(MOST_ROWS // max(min(len(groups), MOST_GROUPS), 1), 1)
    for title, members in list(groups.items())[:MOST_GROUPS]:
        places = _listing([problem.where for problem in members], most)
        folds.append(details(join(short(title), f", {len(members):,} times" if len(members) > 1 else ""), places))
    if len(groups) > MOST_GROUPS:
        folds.append(element("p", f"and {len(groups) - MOST_GROUPS:,} more findings"))
    return join(*folds)


def _listing(items: Sequence[str], most: int = MOST_ROWS) -> Html:
    more = [element("li", f"and {len(items) - most:,} more")] if len(items) > most else []
    return element("ul", *(element("li", short(item)) for item in items[:most]), *more)


def _summary(summary: Summary) -> Html:
    about = [
        ("file", summary.file),
        ("format", f"{summary.format} {summary.version}".rstrip()),
        ("size", f"{format_bytes(summary.size)} in {counted(len(summary.files), 'file')}"),
        ("tensors", f"{summary.tensors:,}"),
        ("parameters", f"{summary.parameters:,} at {summary.bits:.2f} bits each"),
    ]
    kinds = []
    for kind in summary.codecs:
        numbers = f"{kind.tensors:,}", f"{kind.parameters:,}", format_bytes(kind.size), f"{kind.bits:.2f}"
        kinds.append((kind.stored_as, *numbers, kind.lacks or ""))
    header = ("stored as", "tensors", "parameters", "size", "bits/weight", "to decode it")
    return join(facts(about), table(header, "<>>>><", kinds), extras(summary), problems(summary.problems))


def extras(summary: Summary) -> Html:
    """Return the metadata and the other files of a model, folded."""
    meta = [(short(key), short(abbreviate(value))) for key, value in list(summary.metadata.items())[:MOST_ROWS]]
    assets = [(short(name), format_bytes(size)) for name, size in list(summary.assets.items())[:MOST_ROWS]]
    return join(
        details(f"Metadata: {len(summary.metadata):,}", facts(meta)) if meta else "",
        details(f"Assets: {len(summary.assets):,}", table(("name", "size"), "<>", assets)) if assets else "",
    )


def _registry(registry: Registry) -> Html:
    from squish_core.plugins.hookspecs import INFOS

    folds = []
    for kind in INFOS:
        rows = [
            (entry.id, getattr(entry.info, "title", ""), entry.dist, entry.version) for entry in registry.find(kind)
        ]
        folds.append(details(f"{kind}: {len(rows)}", table(("id", "title", "package", "version"), "<<<<", rows)))
    broken = [(item.dist, item.reason) for item in registry.broken]
    return join(
        facts([("plugins", len(registry.plugins)), ("broken", len(broken)), ("conflicts", len(registry.conflicts))]),
        *folds,
        details("broken", table(("package", "reason"), "<<", broken), open_=True) if broken else "",
    )


VIEWS: Mapping[str, Callable[[Any], Html]] = {
    "squish_core.file.File": _file,
    "squish_core.tensor.Tensor": _tensor,
    "squish_core.summary.Summary": _summary,
    "squish_core.backends.weight.Weight": _weight,
    "squish_core.backends.chain.Chain": _chain,
    "squish_core.backends.plan.FilePlan": _plan,
    "squish_core.backends.features.Matrix": _matrix,
    "squish_core.checking.verify.Report": _report,
    "squish_core.plugins.registry.Registry": _registry,
    "squish_convert.tables.Selection": _selection,
    "squish_convert.tables.Table": _table,
    "squish_convert.statistics.Statistics": _statistics,
    "squish_convert.compare.diff.Difference": _difference,
    "squish_convert.report.Conversion": _conversion,
}
"""Class -> its tables; by name, so that the first file that is shown loads neither NumPy nor what converts."""
