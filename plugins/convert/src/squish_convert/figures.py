"""Figures of results with Matplotlib, `result.plot()`.

Apart from the results, because only it needs Matplotlib.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from squish_core.backends.plan import FilePlan
from squish_core.codes import ErrorCode
from squish_core.errors import MissingPluginError, UsageError
from squish_core.plugins.catalog import install_command
from squish_core.tensor import Tensor

from .compare.diff import Difference
from .report import Conversion
from .statistics import LOWEST, Statistics
from .tables import Selection, Table

MOST_NAMES = 40
"""Tensors whose names fit below an axis."""


def plot(result: Any, ax: Any, options: Mapping[str, Any]) -> Any:
    """Draw a result in the axes, or in new ones."""
    draw = next(draw for kind, draw in FIGURES.items() if isinstance(result, kind))
    if ax is None:
        try:
            from matplotlib import pyplot
        except ModuleNotFoundError:
            hint = f"Run `{install_command('squish-core', extra='[plot]')}`."
            raise MissingPluginError("Matplotlib is not installed", code=ErrorCode.NOT_INSTALLED, hint=hint) from None
        ax = pyplot.subplots(layout="constrained")[1]
    draw(result, ax, dict(options))
    return ax


def _tensor(tensor: Tensor, ax: Any, options: dict[str, Any]) -> None:
    _statistics(tensor.statistics(), ax, options)
    ax.set_title(f"{tensor.name} ({tensor.codec})", wrap=True)


def _statistics(statistics: Statistics, ax: Any, options: dict[str, Any]) -> None:
    """Magnitudes: negative values below positive ones in each bin."""
    powers = sorted({*statistics.negative, *statistics.positive})
    negative, positive = ([side.get(k, 0) for k in powers] for side in (statistics.negative, statistics.positive))
    ax.bar(powers, negative, label="negative", **options)
    ax.bar(powers, positive, bottom=negative, label="positive", **options)
    ax.set(xlabel="magnitude, at least", ylabel="values")
    marks = powers[:: -(-len(powers) // 8) or 1]
    ax.set_xticks(marks, [f"$2^{{{k}}}$" if k > LOWEST else "0" for k in marks])
    ax.legend()


def _table(table: Table, ax: Any, options: dict[str, Any]) -> None:
    """One column by row; `column` names it, by default the standard deviation."""
    column = options.pop("column", "std" if "std" in table.columns else table.columns[-1])
    values = table[column]
    if any(isinstance(value, (str, list)) for value in values):
        raise UsageError("the column has no numbers", found=repr(column), code=ErrorCode.USAGE)
    _by_tensor(ax, table["name"] if "name" in table.columns else [], values, column, options)
    ax.set_title(table.title, wrap=True)


def _difference(difference: Difference, ax: Any, options: dict[str, Any]) -> None:
    compared = [item for item in difference.tensors if item.nmse is not None]
    _by_tensor(ax, [item.name for item in compared], [item.nmse for item in compared], "NMSE", options)
    ax.set_title(f"{difference.b} compared with {difference.a}", wrap=True)


def _conversion(conversion: Conversion, ax: Any, options: dict[str, Any]) -> None:
    """The error of each lossy step; without any, the bits per weight."""
    lossy = [(step.name, step.quality.nmse) for step in conversion.steps if step.quality is not None]
    if lossy:
        _by_tensor(ax, [name for name, _ in lossy], [error for _, error in lossy], "NMSE", options)
    else:
        steps = conversion.steps
        _by_tensor(ax, [step.name for step in steps], [step.bits for step in steps], "bits per weight", options)
    ax.set_title(f"{conversion.source} -> {conversion.target}", wrap=True)


def _plan(plan: FilePlan, ax: Any, options: dict[str, Any]) -> None:
    counts = Counter(f"{chain.chosen.backend} ({chain.chosen.mode})" for chain in plan.chains.values())
    counts.update({"none": len(plan.errors)} if plan.errors else {})
    names, sizes = zip(*counts.most_common()) if counts else ((), ())
    ax.barh(names, sizes, **options)
    ax.set(xlabel="tensors", title=plan.target)
    ax.invert_yaxis()


def _by_tensor(ax: Any, names: list[str], values: list[Any], label: str, options: dict[str, Any]) -> None:
    """Draw a mark for each tensor, in a logarithmic scale if the positive values span more than a factor of 20."""
    numbers = [float("nan") if value is None else float(value) for value in values]
    ax.plot(range(len(numbers)), numbers, **{"marker": ".", "linestyle": "none", **options})
    positive = [number for number in numbers if number > 0]
    if positive and max(positive) > 20 * min(positive) and all(number >= 0 for number in numbers):
        ax.set_yscale("log")
    ax.set(xlabel="tensor", ylabel=label)
    if 0 < len(names) <= MOST_NAMES:
        ax.set_xticks(range(len(names)), names, rotation=90, fontsize="small")


def _selection(selection: Selection, ax: Any, options: dict[str, Any]) -> None:
    _table(selection.statistics(), ax, options)


FIGURES: Mapping[type, Callable[[Any, Any, dict[str, Any]], None]] = {
    Tensor: _tensor,
    Statistics: _statistics,
    Selection: _selection,
    Table: _table,
    Difference: _difference,
    Conversion: _conversion,
    FilePlan: _plan,
}
