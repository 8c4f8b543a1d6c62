"""Parts of a layer that is stored as several tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import evolve

from squish_core.api import ErrorCode, FormatError, Part, TensorSpec, dtypes

StoredParts = Mapping[str, Part]


def stored_part(spec: TensorSpec) -> Part:
    """Return the only part of a stored tensor, with the tensor's dtype even if the container has packed bytes.

    Parameters
    ----------
    spec : TensorSpec
        A tensor of a safetensors Index.

    Returns
    -------
    Part

    Examples
    --------
    >>> with squish.open("model.safetensors") as file:
    ...     stored_part(file.index.tensors["token_embd.weight"]).shape
    (8, 32)
    """
    parts = spec.encodings[0].parts if spec.encodings else spec.extras
    return next(iter(parts.values()))


def bare_parts(parts: StoredParts) -> dict[str, Part]:
    """Return parts without segments, as declared by a target's encoding.

    Parameters
    ----------
    parts : mapping of str to Part
        Role -> part of a source.

    Returns
    -------
    dict of str to Part
        The same dtypes and shapes.

    Examples
    --------
    >>> part = Part(dtype="u8", shape=(2,), segments=(squish.api.Segment(0, 88, 2),))
    >>> bare_parts({"data": part})["data"].segments
    ()
    """
    return {role: Part(dtype=part.dtype, shape=part.shape) for role, part in parts.items()}


def require_part(parts: StoredParts, suffix: str, allowed: Iterable[str], *, rank: int | None = None) -> Part:
    """Return a required part of a layer.

    Parameters
    ----------
    parts : mapping of str to Part
        The parts of the layer by suffix.
    suffix : str
        Suffix of the part, such as ``".scales"``.
    allowed : iterable of str
        Dtypes that it may have.
    rank : int, optional
        Number of its axes; any by default.

    Returns
    -------
    Part

    Raises
    ------
    FormatError
        `missing` if the layer lacks the part, `dtype` if dtype or rank differ; it names the field.

    Examples
    --------
    >>> parts = {".scales": Part(dtype="f16", shape=(64, 1))}
    >>> require_part(parts, ".scales", ("f16", "bf16"), rank=2).shape
    (64, 1)
    >>> require_part(parts, ".biases", ("f16", "bf16"))
    Traceback (most recent call last):
    ...
    squish_core.errors.FormatError: ...missing tensor of a layer ...
    """
    part = parts.get(suffix)
    field = suffix.lstrip(".")
    if part is None:
        raise FormatError(
            "missing tensor of a layer",
            part=field,
            expected=field,
            found=", ".join(name.lstrip(".") for name in parts),
            code=ErrorCode.MISSING,
            hint="A shard of the model may be missing.",
        )
    if part.dtype not in allowed or (rank is not None and len(part.shape) != rank):
        axes = "" if rank is None else f" with {rank} dimensions"
        raise FormatError(
            "wrong dtype or shape",
            part=field,
            expected=" or ".join(allowed) + axes,
            found=f"{part.dtype} {list(part.shape)}",
            code="dtype",
        )
    return part


def view_part(part: Part, dtype: str, shape: Iterable[int]) -> Part:
    """View a part's bytes with another dtype and shape of equal size.

    Parameters
    ----------
    part : Part
        The stored part.
    dtype : str
        Dtype of the view.
    shape : iterable of int
        Shape of the view.

    Returns
    -------
    Part

    Raises
    ------
    FormatError
        `size` if the view does not have as many bits as the part has.

    Examples
    --------
    >>> view = view_part(Part(dtype="u32", shape=(2, 4)), "u8", (2, 16))
    >>> view.dtype, view.shape
    ('u8', (2, 16))
    """
    if (part.dtype, part.shape) == (dtype, shape):
        return part
    view = evolve(part, dtype=dtype, shape=tuple(shape))
    if dtypes.bits(dtype) * dtypes.count(view.shape) != 8 * part.nbytes:
        raise FormatError(
            "the size does not match the declaration",
            expected=f"{dtype} {list(view.shape)}",
            found=f"{part.dtype} {list(part.shape)}",
            code="size",
        )
    return view
