"""Where a tensor belongs in its model, from its name: its layer and its kind, as tables and pages group tensors.

Notebooks, `info --by` and reports group tensors alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

from attrs import frozen

from squish_core.codes import ErrorCode
from squish_core.display import to_json
from squish_core.errors import UsageError
from squish_core.file import File
from squish_core.layers import LAYER
from squish_core.summary import stored_as
from squish_core.tensor import Tensor

NO_LAYER = "outside layers"
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


def layer_of(name: str) -> str:
    """Return the layer that a tensor belongs to, with its prefix.

    >>> layer_of("model.layers.3.mlp.up_proj.weight"), layer_of("lm_head.weight")
    ('model.layers.3', 'outside layers')
    """
    match = LAYER.search(name)
    return name[: match.end(1)] if match else NO_LAYER


def layer_order(layer: str) -> tuple[bool, str, int]:
    """Key to sort layers by: by prefix and number, what is outside layers last."""
    prefix, _, number = layer.rpartition(".")
    return layer == NO_LAYER, prefix, int(number) if number.isdecimal() else 0


def kind_of(name: str) -> str:
    """Return what a tensor is in any layer: its name without the layer, with `*` for other numbers.

    >>> kind_of("model.layers.3.mlp.experts.17.up_proj.weight"), kind_of("token_embd.weight")
    ('mlp.experts.*.up_proj', 'token_embd')
    """
    match = LAYER.search(name)
    return _NUMBER.sub("*", name[match.end() :] if match else name).removesuffix(".weight")


GROUPINGS: Mapping[str, Callable[[Tensor], str]] = {
    "layer": lambda tensor: layer_of(tensor.name),
    "kind": lambda tensor: kind_of(tensor.name),
    "type": lambda tensor: stored_as(tensor.spec),
}
"""Ways to group the tensors of a file."""


@frozen
class Group:
    """Tensors with one layer, kind or type; tied tensors count once in `parameters` and `size` (bytes)."""

    name: str
    tensors: int
    parameters: int
    size: int

    @property
    def bits(self) -> float:
        """Bits per weight."""
        return 8 * self.size / self.parameters if self.parameters else 0.0

    def to_dict(self) -> dict[str, object]:
        """Return plain data for JSON."""
        return {**to_json(self), "bits": self.bits}


def groups(file: File, by: str) -> list[Group]:
    """Return totals of the tensors by layer (in order), kind or type (largest first)."""
    if by not in GROUPINGS:
        raise UsageError("no such grouping", found=repr(by), expected=", ".join(GROUPINGS), code=ErrorCode.USAGE)
    found = [total(name, tensors) for name, tensors in grouped(file.values(), GROUPINGS[by]).items()]
    return sorted(found, key=lambda group: layer_order(group.name) if by == "layer" else -group.size)


def total(name: str, tensors: Iterable[Tensor]) -> Group:
    """Return the totals of some tensors."""
    count = parameters = size = 0
    for tensor in tensors:
        count += 1
        if tensor.spec.tied_to is None:
            parameters += tensor.size
            size += tensor.nbytes
    return Group(name, count, parameters, size)


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return items by key, in the order of the first of each."""
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found
