"""The interface of method modules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from attrs import frozen
from squish_safetensors.api import LayerReader

from squish_core.api import Problem

CACHE = (".k_scale", ".v_scale", ".k_bias", ".v_bias")
"""Scales of a quantized key-value cache, stored next to the layers; no weight needs them."""


@frozen(kw_only=True)
class Method:
    """A method's layer storage.

    `suffixes` of stored names, names of dense weights (`bases`), optional neighbors, dtypes of packed weights
    (`packed`), and the function that builds a layer's tensor. `idle` returns layer settings without a matching layer.
    `problems` are those of the declaration.
    """

    dialect: str
    suffixes: Iterable[str]
    make: LayerReader
    bases: Sequence[str] = (".weight",)
    beside: Iterable[str] = ()
    packed: Iterable[str] = ()
    idle: Callable[[Collection[str]], Iterable[str]] = lambda layers: ()
    problems: Iterable[Problem] = ()
