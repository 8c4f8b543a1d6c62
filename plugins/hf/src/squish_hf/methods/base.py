"""What each method module gives the refinement."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from attrs import frozen
from squish_safetensors.api import LayerReader

CACHE = (".k_scale", ".v_scale", ".k_bias", ".v_bias")
"""What a quantized cache of keys and values leaves beside the layers that fill it; no weight needs it."""


@frozen(kw_only=True)
class Method:
    """How a method stores layers: `suffixes` of the stored names, those of a plain weight (`bases`), what may lie
    beside a layer, dtypes that no plain weight has (`packed`), and what makes a tensor of a layer's parts. `idle`
    gives the settings of single layers, as they are stated, that name none of the layers found."""

    dialect: str
    suffixes: Iterable[str]
    make: LayerReader
    bases: Sequence[str] = (".weight",)
    beside: Iterable[str] = ()
    packed: Iterable[str] = ()
    idle: Callable[[Collection[str]], Iterable[str]] = lambda layers: ()
