"""Shapes that GGUF cannot store: `comfy.gguf.orig_shape.<tensor>` gives them. Source: ComfyUI-GGUF, loader.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from squish_core.api import CodecSpec, Problem, TensorSpec, Typed

KEY = "comfy.gguf.orig_shape."
RESHAPED = "reshaped"
"""The codec of blocks with other rows than the tensor's."""
MOST_DIMENSIONS, MOST_SIZES = 4, 16
"""Maximum number of dimensions in the tensor table, and in a key."""


Shape = tuple[int, ...]


def original_shapes(meta: dict[str, Any], stored: Mapping[str, Shape]) -> tuple[dict[str, Shape], list[Problem]]:
    """Take the shapes of tensors out of the metadata.

    Parameters
    ----------
    meta
        The keys; those of shapes that apply are removed.
    stored
        The shapes in the tensor table.

    Returns
    -------
    shapes : dict
        Name -> shape, with as many elements as are stored.
    problems : list of Problem
        Keys that are not the shape of a tensor.

    Examples
    --------
    >>> meta = {"comfy.gguf.orig_shape.conv.weight": Typed("array:i32", [8, 4, 3, 3])}
    >>> original_shapes(meta, {"conv.weight": (9, 32)}), meta
    (({'conv.weight': (8, 4, 3, 3)}, []), {})
    """
    shapes, problems = {}, []
    for key in [key for key in meta if key.startswith(KEY)]:
        name = key.removeprefix(KEY)
        if name not in stored:
            continue
        sizes, elements = _sizes(meta[key]), prod(stored[name])
        if sizes and prod(sizes) == elements:
            shapes[name] = sizes
            del meta[key]
        else:
            message = f"is ignored: not a shape of the {elements} elements of {list(stored[name])}"
            problems.append(Problem(code="shape", severity="warning", where=key, message=message))
    return shapes, problems


def _sizes(entry: Typed) -> Shape:
    """Return the sizes in a key; none if it is not a short list of positive numbers."""
    if not entry.type.startswith("array:") or len(entry.value) > MOST_SIZES:
        return ()
    sizes = tuple(entry.value)
    return sizes if all(type(size) is int and size > 0 for size in sizes) else ()


def reshaped(codec: CodecSpec, stored: Shape, shape: Shape) -> CodecSpec:
    """Return the codec of blocks for a shape whose rows differ from the stored ones."""
    return codec if stored[-1:] == shape[-1:] else CodecSpec(RESHAPED, {"shape": list(stored)}, inner=codec)


def stored_shape(spec: TensorSpec) -> Shape:
    """Return the shape of an outgoing tensor in the tensor table: of more than four dimensions, the first are one."""
    codec = spec.encodings[0].codec
    if codec.id == RESHAPED:
        return tuple(codec.params["shape"])
    return in_four_dimensions(spec.shape)


def in_four_dimensions(shape: Shape) -> Shape:
    """Return a shape with the same rows and at most four dimensions.

    Examples
    --------
    >>> in_four_dimensions((8, 2, 2, 2, 4))
    (16, 2, 2, 4)
    """
    first = len(shape) - MOST_DIMENSIONS + 1
    return shape if first <= 1 else (prod(shape[:first]), *shape[first:])


def shape_keys(specs: Sequence[TensorSpec]) -> dict[str, Typed]:
    """Return the keys for tensors whose shape differs from the stored one."""
    return {
        f"{KEY}{spec.name}": Typed("array:i32", list(spec.shape)) for spec in specs if stored_shape(spec) != spec.shape
    }
