"""Recipes: rules of `encode=` in a TOML file, or the types that the tensors of a file of weights have."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from attrs import evolve

from squish_core import dtypes, opening
from squish_core.codes import ErrorCode
from squish_core.errors import UnknownFormatError, UsageError
from squish_core.file import File
from squish_core.io.paths import missing
from squish_core.limits import Limits
from squish_core.model import DENSE, CodecSpec, TensorSpec
from squish_core.plugins.registry import Registry
from squish_core.text import counted

from .mapping.pairing import map_to_first
from .rules import EncodeRule

SUFFIX, KEY = ".toml", "encode"
LARGEST = 1 << 24
"""Maximum size in bytes of a TOML file; one with 100,000 rules is smaller."""
VIEWS = ("deinterleave", "heads", "interleave", "lora", "scale", "slice", "stack", "transpose")
"""Codecs that only maps apply, around the codec that is stored."""
NAMED = 4
"""Tensors to name in a note."""

Recipe = tuple[str, ...] | File
"""Rules, or a file whose types are copied."""


def open_recipe(place: Any, stack: ExitStack, *, limits: Limits | None, registry: Registry | None) -> Recipe:
    """Read the rules of a TOML file, or open a file of weights; `stack` closes it."""
    if isinstance(place, File):
        return place
    if is_toml(place):
        return read_rules(Path(place))
    try:
        return stack.enter_context(opening.open(place, limits=limits, registry=registry))
    except UnknownFormatError:
        if isinstance(place, str | Path) and Path(place).is_file():  # rules under another suffix
            return read_rules(Path(place))
        raise


def is_toml(place: Any) -> bool:
    """Return whether a name is that of a TOML file."""
    return str(place).lower().endswith(SUFFIX)


def read_rules(path: Path) -> tuple[str, ...]:
    """Return the rules of a TOML file; UsageError unless it is `encode = ["[PATTERN=]SPEC", ...]`."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise _not_a_recipe(path, f"{len(data)} bytes or more")
        recipe = tomllib.loads(data.decode())
    except OSError as error:
        raise missing(path, error) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _not_a_recipe(path, str(error)) from None
    except RecursionError:
        raise _not_a_recipe(path, "arrays or tables that are nested too deeply") from None
    rules = recipe.get(KEY)
    if list(recipe) != [KEY] or not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
        raise _not_a_recipe(path, ", ".join(recipe) or "nothing")
    return tuple(rules)


def _not_a_recipe(path: Path, content: str) -> UsageError:
    return UsageError(
        "not a recipe",
        file=path.name,
        code=ErrorCode.ENCODE,
        found=content,
        expected=f'TOML with {KEY} = ["[PATTERN=]SPEC", ...], or a file of weights',
    )


def rules_like(model: File, recipe: File, names: Collection[str]) -> tuple[tuple[EncodeRule, ...], tuple[str, ...]]:
    """Return rules that give tensors of a model the types of a recipe, and notes on those that the recipe lacks.

    `names`: those of the tensors that are written, in the layout of the target. UsageError if the recipe has none.
    """
    mapped, _ = map_to_first(model, recipe.without_caches())
    absent = [name for name in names if name not in mapped]
    if names and len(absent) == len(names):
        raise UsageError(
            "has no tensor of the model",
            file=recipe.name,
            expected=f"names such as {absent[0]}",
            found=next(iter(mapped), "no tensors"),
            code=ErrorCode.USAGE,
            hint="Name a file of the same family; if that is unknown, one with the same names.",
        )
    groups: dict[Any, tuple[CodecSpec, list[str]]] = {}
    for name in names:
        if name in mapped and (codec := _type_of(model, name, mapped.index.tensors[name])) is not None:
            groups.setdefault(codec.key, (codec, []))[1].append(name)
    rules = tuple(EncodeRule(recipe.name, codec, names=frozenset(alike)) for codec, alike in groups.values())
    return rules, tuple(_absent_note(recipe, absent, len(names)))


def _absent_note(recipe: File, absent: list[str], total: int) -> Iterator[str]:
    if absent:
        more = f" and {len(absent) - NAMED:,} more" if len(absent) > NAMED else ""
        named = ", ".join(absent[:NAMED]) + more
        count = f"{len(absent):,} of {counted(total, 'tensor')}"
        yield f"{recipe.name} lacks {count}, which other rules encode or keep: {named}"


def _type_of(model: File, name: str, like: TensorSpec) -> CodecSpec | None:
    """Return the encoding to copy; None if the tensor has it already, or if either of the two has no floats."""
    own = model.index.tensors[name]
    if not (own.encodings and like.encodings):
        return None
    stored, codec = (_stored(spec) for spec in (own, like))
    floats = (spec.dtype in dtypes.FLOATS for spec, each in ((own, stored), (like, codec)) if each.id == DENSE.id)
    if not all(floats) or model.registry.same_codec(stored, codec):
        return None
    of_codes = model.registry.codec_type(codec.id).data_params
    return evolve(codec, params={key: value for key, value in codec.params.items() if key not in of_codes})


def _stored(spec: TensorSpec) -> CodecSpec:
    """Return the codec of the stored bytes; that of a dense tensor names its dtype."""
    codec = spec.encodings[0].codec
    while codec.id in VIEWS and codec.inner is not None:
        codec = codec.inner
    return CodecSpec(DENSE.id, {"dtype": spec.dtype}) if codec == DENSE else codec
