"""Tensors by pattern, and the table of their statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any, overload

from attrs import frozen

from squish_core.codes import ErrorCode
from squish_core.display import fit_all, table, to_json
from squish_core.errors import MissingPluginError, SquishError, UsageError
from squish_core.file import File, absent
from squish_core.shown import Plotted
from squish_core.tensor import Tensor
from squish_core.text import close_matches

from .statistics import QUANTILES, Statistics

PERCENTILES = {share: f"p{100 * share:g}" for share in QUANTILES}
"""Quantile -> its column."""
COUNTS = ("values", "zeros", "nan", "infinite")
MOMENTS = ("min", "max", "absmax", "mean", "std", "rms", "outliers")
SHOWN = 40
"""Rows that are printed."""


class Selection(Mapping[str, Tensor], Plotted):
    """The tensors of a file whose names match a pattern, by name in file order."""

    def __init__(self, file: File, patterns: str | Iterable[str] = ()) -> None:
        self.file, self.patterns = file, (patterns,) if isinstance(patterns, str) else tuple(patterns)
        self._names = dict.fromkeys(name for name in file if self._matches(name))

    def _matches(self, name: str) -> bool:
        return not self.patterns or any(fnmatchcase(name, pattern) for pattern in self.patterns)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise absent(name, f"the selection from {self.file.name}", self._names)
        return self.file[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    __eq__, __hash__ = object.__eq__, object.__hash__

    def statistics(self, *, progress: Any = None) -> Table:
        """Statistics of these tensors, as a table; see `File.statistics`.

        Parameters
        ----------
        progress
            As for `File.statistics`.

        Returns
        -------
        Table
            A row for each tensor.

        Examples
        --------
        >>> squish.open("model.gguf").select("*norm*").statistics()[0]["max"]
        1.0
        """
        return _statistics(self, progress)

    def __repr__(self) -> str:
        return f"<Selection {' '.join(self.patterns) or '*'} of {self.file.name!r} tensors={len(self)}>"


@frozen(repr=False)
class Table(Sequence[Mapping[str, Any]], Plotted):
    """Rows with the same columns: `table[0]` is the first row, `table["std"]` a column.

    `title`: what the rows are.
    """

    title: str
    rows: tuple[Mapping[str, Any], ...]
    columns: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, key: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, key: slice) -> Table: ...
    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    def __getitem__(self, key: int | slice | str) -> Any:
        if isinstance(key, str):
            return [row[self._column(key)] for row in self.rows]
        return Table(self.title, self.rows[key], self.columns) if isinstance(key, slice) else self.rows[key]

    def _column(self, name: str) -> str:
        if name not in self.columns:
            near = ", ".join(close_matches(name, self.columns) or self.columns)
            raise UsageError("no such column", found=repr(name), expected=near, code=ErrorCode.USAGE)
        return name

    def sort(self, by: str, *, reverse: bool = False) -> Table:
        """Return the table sorted by a column; rows without a value come last.

        Parameters
        ----------
        by
            Name of the column.
        reverse
            Largest first.

        Returns
        -------
        Table
            A new table.

        Raises
        ------
        UsageError
            There is no such column.

        Examples
        --------
        >>> squish.open("model.gguf").statistics().sort("std", reverse=True)[-1]["std"]
        0.0
        """
        column = self._column(by)
        filled = [row for row in self.rows if row[column] is not None]
        empty = [row for row in self.rows if row[column] is None]
        return Table(self.title, (*sorted(filled, key=lambda row: row[column], reverse=reverse), *empty), self.columns)

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns as plain data, as pandas and polars take them.

        Returns
        -------
        dict of list
            Column -> values.

        Examples
        --------
        >>> squish.open("model.gguf").statistics("*norm*").to_dict()["values"]
        [32]
        """
        return {column: to_json([row[column] for row in self.rows]) for column in self.columns}

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame.

        Returns
        -------
        pandas.DataFrame
            A row for each row, with the same columns.

        Raises
        ------
        MissingPluginError
            pandas is not installed.

        Examples
        --------
        >>> squish.open("model.gguf").statistics().to_pandas().shape[0]
        3
        """
        return _library("pandas").DataFrame(self.to_dict(), columns=list(self.columns))

    def to_polars(self) -> Any:
        """Return a polars DataFrame.

        Returns
        -------
        polars.DataFrame
            A row for each row, with the same columns.

        Raises
        ------
        MissingPluginError
            polars is not installed.

        Examples
        --------
        >>> squish.open("model.gguf").statistics().to_polars().height
        3
        """
        return _library("polars").DataFrame(self.to_dict(), infer_schema_length=None)

    def __repr__(self) -> str:
        return f"<Table {self.title!r} rows={len(self)} columns={len(self.columns)}>"

    def __str__(self) -> str:
        shown = [column for column in ("name", "codec", *MOMENTS) if column in self.columns]
        rows = [[_cell(row[column]) for column in shown] for row in self.rows[:SHOWN]]
        lines = table(shown, "<<" + ">" * (len(shown) - 2), rows)
        more = [f"and {len(self) - SHOWN:,} more"] if len(self) > SHOWN else []
        return "\n".join(fit_all([self.title, *lines, *more]))


def _statistics(tensors: Selection, progress: Any) -> Table:
    """Read each tensor once, in file order; a remote file fetches the next ones meanwhile."""
    file, total, done, rows = tensors.file, sum(tensor.nbytes for tensor in tensors.values()), 0, []
    encodings = (encoding for tensor in tensors.values() for encoding in tensor.spec.encodings[:1])
    with file.reading_ahead(part for encoding in encodings for part in encoding.parts.values()):
        for tensor in tensors.values():
            statistics, problem = None, None
            try:
                statistics = tensor.statistics()
            except SquishError as error:
                problem = error.message
            rows.append(statistics_record(tensor, statistics, problem))
            done += tensor.nbytes
            if progress:
                progress(tensor.name, done, total)
    columns = ("name", "shape", "dtype", "codec", "bits", "size", *COUNTS, *MOMENTS, *PERCENTILES.values())
    return Table(f"statistics of {file.name}", tuple(rows), (*columns, "exact", "problem"))


def statistics_record(tensor: Tensor, statistics: Statistics | None, problem: str | None = None) -> dict[str, Any]:
    """Return the row of one tensor."""
    quantiles = statistics.quantiles if statistics else {}
    return {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype),
        "codec": tensor.codec,
        "bits": tensor.bits_per_weight,
        "size": tensor.nbytes,
        **{name: getattr(statistics, name, None) for name in (*COUNTS, *MOMENTS)},
        **{column: quantiles.get(share) for share, column in PERCENTILES.items()},
        "exact": getattr(statistics, "exact", None),
        "problem": problem,
    }


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _library(name: str) -> Any:
    """Import a library that Squish does not depend on."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        hint = f"Run `pip install {name}`, or use to_dict()."
        raise MissingPluginError(f"{name} is not installed", code=ErrorCode.NOT_INSTALLED, hint=hint) from None
