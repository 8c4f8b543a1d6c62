"""Compile-time operations by their features, without a file: what each can store, and the codec that decodes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from squish_core.api import CodecSpec, Encoding, Refusal, single_value

CHANNELS, COLUMNS = 256, 256
"""Shape of the example tensor of a query."""
BLOCK, SHARE = 32, 32
"""Elements per scale of `per_block`, and channels per codebook of `per_grouped_channel`: coremltools' defaults."""
SCALES, CODEBOOKS = ("per_tensor", "per_channel", "per_block"), ("per_tensor", "per_grouped_channel")


@frozen(kw_only=True)
class Features:
    """The features of a query; None is an operation's default. The fields are those of `ContainerInfo.features`."""

    bits: int | None = None
    zero_points: bool = False
    granularity: str | None = None
    vector: int = 1
    codebooks: int | None = None


@frozen(kw_only=True)
class Form:
    """What an operation stores: legal values of each feature, first the default, and the codec of a combination."""

    codec: Callable[[Features], CodecSpec]
    bits: tuple[int, ...] = ()
    granularity: tuple[str, ...] = ()
    zero_points: bool = False
    vectors: bool = False

    def complete(self, features: Features) -> Features:
        """Fill in the defaults of missing features."""
        granularity = features.granularity
        if granularity is None and self.granularity:
            several = "per_grouped_channel" if (features.codebooks or 1) > 1 else self.granularity[0]
            granularity = several if several in self.granularity else self.granularity[0]
        books = features.codebooks or (CHANNELS // SHARE if granularity == "per_grouped_channel" else 1)
        bits = features.bits or (self.bits or (16,))[0]
        return Features(
            bits=bits,
            zero_points=features.zero_points,
            granularity=granularity,
            vector=features.vector,
            codebooks=books,
        )

    def hindrance(self, features: Features, query: Features) -> str | None:
        """Return why the operation stores no such tensor; `query` are the features as given, `features` completed."""
        has_codebooks = "per_grouped_channel" in self.granularity
        books, grain = features.codebooks or 1, features.granularity
        rules = (
            (query.bits is None or features.bits in self.bits, f"{features.bits}-bit codes", _any(self.bits)),
            (not features.zero_points or self.zero_points, "zero points", "zero_points=false"),
            (query.granularity is None or grain in self.granularity, f"granularity {grain}", _any(self.granularity)),
            (features.vector == 1 or self.vectors, f"vectors of {features.vector}", "vector=1"),
            (query.codebooks is None or has_codebooks, "codebooks", "no codebooks"),
            (not has_codebooks or (books > 1) == (grain == "per_grouped_channel"), f"{books} codebooks {grain}",
             "several codebooks with per_grouped_channel, one with per_tensor"),
        )  # fmt: skip
        return next(
            (f"it does not store {what} (expected {expected})" for holds, what, expected in rules if not holds), None
        )


def _any(values: tuple[object, ...]) -> str:
    return ", ".join(map(str, values)) or "none"


def encoding_for(operation: str, **features: Any) -> Encoding | Refusal:
    """Return the encoding of an operation with these features, or the reason against it."""
    values = {name: single_value(name, value) for name, value in features.items() if value is not None}
    numbers = {name: int(values[name]) for name in ("bits", "vector", "codebooks") if name in values}
    query = Features(
        bits=numbers.get("bits"),
        zero_points=values.get("zero_points") == "true",
        granularity=values.get("granularity"),
        vector=numbers.get("vector", 1),
        codebooks=numbers.get("codebooks"),
    )
    form = FORMS[operation]
    complete = form.complete(query)
    if why := form.hindrance(complete, query):
        encoding = Encoding(codec=form.codec(form.complete(Features())), label=operation)
        return Refusal(encoding=encoding, code="feature", why=why)
    return Encoding(codec=form.codec(complete), label=operation)


def _integers(features: Features) -> CodecSpec:
    """Return the codec of integers with scales in flat order, signed as in coremltools' symmetric mode."""
    group = {"per_tensor": 0, "per_channel": COLUMNS, "per_block": BLOCK}[features.granularity or "per_block"]
    params = {"bits": features.bits, "group_size": group, "axis": "flat", "signed": True, "scale_dtype": "f16"}
    if features.zero_points:
        params |= {"offset": "zero_point", "offset_dtype": "i8" if features.bits == 8 else "packed"}
    return CodecSpec("affine", params)


def _palette(features: Features) -> CodecSpec:
    params: dict[str, Any] = {"bits": features.bits, "axis": "flat", "codebook_dtype": "f16"}
    if (books := features.codebooks or 1) > 1:
        params["codebook_size"] = CHANNELS * COLUMNS // books
    if features.vector > 1:
        params |= {"vector": features.vector, "vector_axis": -2}
    return CodecSpec("palette", params)


def _masked_values(features: Features) -> CodecSpec:
    return CodecSpec("bitmask", {"dtype": "f16", "kept": "run"})


def _masked_palette(features: Features) -> CodecSpec:
    if features.codebooks == 1:
        return CodecSpec("bitmask", {"dtype": "f16", "kept": "run", "bits": features.bits})
    books = [features.codebooks, 1]
    params = {"bits": features.bits, "books": books, "codebook_dtype": "f16", "count": CHANNELS * COLUMNS // 2}
    return CodecSpec("boxes", params)


def _masked_integers(features: Features) -> CodecSpec:
    if features.bits == 8 and features.granularity == "per_channel" and not features.zero_points:
        return CodecSpec("bitmask", {"dtype": "i8", "kept": "run", "scale": "f16"})
    columns = {"per_tensor": 1, "per_channel": 1, "per_block": COLUMNS // BLOCK}[features.granularity or "per_block"]
    grid = [1 if features.granularity == "per_tensor" else CHANNELS, columns]
    params = {"bits": features.bits, "signed": True, "grid": grid, "scale_dtype": "f16",
              "count": CHANNELS * COLUMNS // 2}  # fmt: skip
    if features.zero_points:
        params["offset_dtype"] = "i8" if features.bits == 8 else "packed"
    return CodecSpec("boxes", params)


_INDICES = (4, 1, 2, 3, 6, 8)
FORMS: Mapping[str, Form] = {
    "constexpr_affine_dequantize": Form(
        codec=_integers, bits=(8,), granularity=("per_channel", "per_tensor"), zero_points=True
    ),
    "constexpr_blockwise_shift_scale": Form(
        codec=_integers, bits=(8, 4), granularity=("per_block", "per_channel", "per_tensor"), zero_points=True
    ),
    "constexpr_lut_to_dense": Form(codec=_palette, bits=_INDICES, granularity=CODEBOOKS, vectors=True),
    "constexpr_sparse_to_dense": Form(codec=_masked_values),
    "constexpr_lut_to_sparse": Form(codec=_masked_palette, bits=_INDICES, granularity=CODEBOOKS),
    "constexpr_sparse_blockwise_shift_scale": Form(
        codec=_masked_integers, bits=(8, 4), granularity=("per_channel", "per_tensor", "per_block"), zero_points=True
    ),
}
"""Core ML operation -> the form that it stores; defaults are those of coremltools."""
