"""The interface of formats inside other formats: `Refinement` interprets another format's Index."""

from __future__ import annotations

from squish_core.codes import ErrorCode
from squish_core.errors import FormatError
from squish_core.formats.base import Container, Options
from squish_core.io.source import Source
from squish_core.limits import Limits
from squish_core.model import Index


class Refinement(Container):
    """A format stored inside another one: it turns that format's Index into one that says what the tensors mean.

    Examples
    --------
    >>> from squish_core import api
    >>> class Marked(api.Refinement):
    ...     def refine(self, index, source, limits, options):
    ...         return index if index.meta.get("format") == "marked" else None
    >>> index = api.Index(format="safetensors", version="", files=(), tensors={}, meta={"format": "pt"})
    >>> Marked().refine(index, api.open_source(b""), api.Limits(), {}) is None
    True
    """

    def refine(self, index: Index, source: Source, limits: Limits, options: Options) -> Index | None:
        """Refine an Index; None if the file does not declare this format.

        Parameters
        ----------
        index
            The Index of the outer format.
        source, limits
            As in `Container.read_index`.
        options
            Read options (`ContainerInfo.reading`) from `format="id:key=value"`.

        Returns
        -------
        Index or None
            Tensors whose encodings interpret the stored parts.
        """
        raise NotImplementedError

    def read_index(self, source: Source, limits: Limits) -> Index:
        raise FormatError("a refinement reads an Index, not bytes", code=ErrorCode.PLUGIN_BUG)
