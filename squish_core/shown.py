"""What results offer to notebooks: tables and drawings, which squish-convert makes.

Apart from `display`, which a load of weights does not need.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def of_convert(module: str) -> Any:
    """Import a module of squish-convert; MissingPluginError with the command that installs it."""
    _ = import_module("squish_core").Statistics  # the interface says what to install
    return import_module(f"squish_convert.{module}")


class Shown:
    """A result that notebooks show as tables, by squish-convert; as text if that is not installed.

    A class that squish-convert does not know has `_tables_`, which returns the elements.
    """

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        from importlib.util import find_spec

        if find_spec("squish_convert") is None:
            return None
        html: str = import_module("squish_convert.notebook").html(self)
        return html


class Plotted(Shown):
    """A result that can also be drawn."""

    __slots__ = ()

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """Draw the result with Matplotlib (extra `plot`).

        Parameters
        ----------
        ax
            Axes of Matplotlib to draw in; new ones by default.
        **options
            As the plotting call of Matplotlib takes them, such as `color`.

        Returns
        -------
        matplotlib.axes.Axes
            With titles and labels.

        Raises
        ------
        MissingPluginError
            Matplotlib or squish-convert is not installed.

        Examples
        --------
        >>> squish.open("model.gguf")["blk.0.ffn_up.weight"].plot().get_ylabel()
        'values'
        """
        return of_convert("figures").plot(self, ax, options)
