"""Pick, repeat and renumber the layers of a model, with the settings that go with them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from squish_core.codes import ErrorCode
from squish_core.errors import FormatError, SquishError, UsageError
from squish_core.file import File
from squish_core.formats.metadata import untyped
from squish_core.guard import guarded
from squish_core.layers import LAYER
from squish_core.model import Part, TensorSpec, Typed

from .families import CONFIG_FILE
from .mapping.coverage import Coverage
from .mapping.inventory import Outline, outline_of
from .mapping.mapped import Naming, family_of, naming_of

COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "block_count")
"""Settings with the number of layers."""
LEADING = ("first_k_dense_replace", "num_dense_layers", "leading_dense_block_count", "max_window_layers")
"""Settings with the number of the first layers of a kind."""
NUMBERS = ("mlp_only_layers", "full_attn_idxs", "full_attention_idxs", "attn_layer_indices")
"""Settings with the numbers of the layers of a kind."""
TEXTS = ("hybrid_override_pattern",)
"""Settings with a letter for each layer."""
BEHIND = ("num_nextn_predict_layers", "nextn_predict_layers")
"""Settings with the number of layers behind the last one."""
SHARED = ("num_kv_shared_layers", "attention.shared_kv_layers")
"""Settings with the number of layers that use the keys and values of earlier ones."""
WINDOW = ("sliding_window", "attention.sliding_window")
KINDS = ("layer_types", "attention.sliding_window_pattern")
"""Settings that say which layers attend to a window."""
UNIFORM = ("mistral", "mixtral", "phi3", "phimoe", "starcoder2")
"""Model types all of whose layers attend to a window."""
NO_LIST = re.compile(r"token|architectures|section|factor|limit|^rope\.")
"""Settings whose lists have nothing for each layer, whatever their length."""
OTHER_STACKS = re.compile(r"vis|audio|tower|mtp|mm\.|^v\.|^a\.")
"""Layers of other components, by what precedes their number."""
STALE = ("general.size_label", "general.parameter_count")
"""GGUF's keys about the size of the whole model."""
MOST = 4096


def with_layers(file: File, layers: str | Iterable[int]) -> File:
    """Present a model with some of its layers, in another order or repeated; no byte is copied.

    Parameters
    ----------
    file
        An open model.
    layers
        Numbers of layers, or text such as `0-11,8-15`.

    Returns
    -------
    File
        The layers are renumbered from 0; the number of layers and the settings of each are adjusted.

    Raises
    ------
    UsageError
        There is no such layer.
    FormatError
        The model has no layers, or its settings cannot state what the picked ones are.

    Examples
    --------
    >>> arrays = {f"layers.{number}.w": np.full(2, number, "f4") for number in range(3)}
    >>> _ = squish.save("layers.safetensors", arrays)
    >>> with squish.open("layers.safetensors") as file:
    ...     {name: tensor.numpy()[0] for name, tensor in with_layers(file, "2,0").items()}
    {'layers.0.w': np.float32(2.0), 'layers.1.w': np.float32(0.0)}
    """
    file = file.without_caches()
    stack = _stack_of(file)
    numbers = _numbers(layers, stack.count, file.name) if isinstance(layers, str) else tuple(layers)
    if wrong := [number for number in numbers if not 0 <= number < stack.count]:
        raise _no_such_layer(file.name, wrong[0], stack.count)
    if not 0 < len(numbers) <= MOST:
        raise UsageError(
            "is not a number of layers that a model can have",
            file=file.name,
            expected=f"1 to {MOST}",
            found=len(numbers),
            code=ErrorCode.USAGE,
        )
    pick = Pick(stack.count, numbers)
    with guarded(FormatError, "picking layers", file=file.name):
        meta, assets = _picked_meta(file, pick), _picked_assets(file, pick)
    picked = evolve(file.index, tensors=dict(_renumbered(file, stack, numbers)), meta=meta, assets=assets)
    result = File(file.source, picked, file.registry, file.limits)
    if stack.outline is not None:
        _check(stack.outline, result, stack.naming, pick)
    return result


@frozen
class Pick:
    """Some of `count` layers, by their numbers."""

    count: int
    numbers: Sequence[int]

    @property
    def is_start(self) -> bool:
        """Whether every layer keeps its number."""
        return [*self.numbers] == [*range(len(self.numbers))]

    def of(self, items: Sequence[Any]) -> list[Any]:
        """Return the items of the picked layers."""
        return [items[number] for number in self.numbers]

    def leading(self, count: int) -> int:
        """Return how many of the picked layers, from the first on, are among the first `count`."""
        return next((at for at, number in enumerate(self.numbers) if number >= count), len(self.numbers))

    def setting(self, name: str, value: Any, behind: int = 0) -> Any:
        """Return a setting for the picked layers; `behind`: the number of layers that predict more tokens."""
        is_list = _is_list(value)
        if name in COUNTS and value in (self.count, self.count + behind):
            return len(self.numbers)
        if name in BEHIND:
            return 0
        if name in LEADING and isinstance(value, int):
            return self.leading(value)
        if name in NUMBERS and is_list:
            return [at for at, number in enumerate(self.numbers) if number in value]
        if (is_list and not NO_LIST.search(name)) or (name in TEXTS and isinstance(value, str)):
            if len(value) != self.count:
                return value
            return "".join(self.of(value)) if isinstance(value, str) else self.of(list(value))
        return value

    def settings(self, settings: Mapping[str, Any], model_type: str, place: str) -> dict[str, Any]:
        """Return settings for the picked layers; FormatError if they cannot state them."""
        if shared := next((name for name in SHARED if settings.get(name)), None):
            raise FormatError(
                "states that the last layers use the keys and values of earlier ones, so none can be left out or moved",
                part=f"{place} {shared}",
                found=settings[shared],
                code=ErrorCode.CONFIG,
            )
        behind = next((settings[name] for name in BEHIND if isinstance(settings.get(name), int)), 0)
        has_window = any(settings.get(name) for name in WINDOW) and settings.get("use_sliding_window") is not False
        lists = (settings.get(name) for name in KINDS)
        if has_window and model_type not in UNIFORM and not self.is_start and not any(map(_is_list, lists)):
            raise FormatError(
                "does not state which layers attend to a window: their numbers decide, so they must be kept",
                part=place,
                expected=f"{KINDS[0]} in {CONFIG_FILE}, or the first layers (--layers 0-{len(self.numbers) - 1})",
                code=ErrorCode.CONFIG,
            )
        return {name: self.setting(name, value, behind) for name, value in settings.items()}


def _is_list(value: Any) -> bool:
    """Return whether a setting is a list or a vector."""
    return isinstance(value, list | tuple) or getattr(value, "ndim", 0) == 1


@frozen(kw_only=True)
class _Stack:
    """The layers of a model: what precedes their numbers in names, and how many there are."""

    prefixes: frozenset[str]
    count: int
    naming: Naming
    outline: Outline | None


def _stack_of(file: File) -> _Stack:
    """Find the layers of a model; FormatError if it has none, or several stacks of them."""
    naming = naming_of(file)
    outline, coverage = _outline(file, naming)
    numbers: dict[str, set[int]] = {}
    for name in file if coverage is None else coverage.sources:
        match = LAYER.search(name)
        if match and not (coverage is None and OTHER_STACKS.search(name[: match.start(1)])):
            numbers.setdefault(name[: match.start(1)], set()).add(int(match[1]))
    found = set().union(*numbers.values())
    if not found or found != set(range(len(found))) or any(each != found for each in numbers.values()):
        raise FormatError(
            "does not have one stack of layers",
            file=file.name,
            expected="names such as model.layers.0.NAME or blk.0.NAME, numbered from 0",
            found=", ".join(f"{prefix}0 to {max(each)}" for prefix, each in numbers.items()) or "no layers",
            code=ErrorCode.UNMAPPED,
        )
    stated = None if outline is None else outline.settings.get("num_hidden_layers")
    count = stated if isinstance(stated, int) and stated <= len(found) else len(found)
    return _Stack(prefixes=frozenset(numbers), count=count, naming=naming, outline=outline)


def _outline(file: File, naming: Naming) -> tuple[Outline | None, Coverage | None]:
    """Return a model's settings and tensors by its family; None for an unknown one, or a part of a model."""
    if naming.family is None or naming.adapter:
        return None, None
    try:
        outline = outline_of(file, family_of(file, naming), naming, naming.layout, loads_all=False)
        if next(outline.matching.errors(), None) is not None:
            return None, None
    except SquishError:
        return None, None
    return outline, outline.matching.coverage()


def _numbers(text: str, count: int, file: str) -> tuple[int, ...]:
    """Return the numbers in text such as `0-11,8-15`."""
    numbers = list[int]()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise UsageError(
                "not a list of layers",
                file=file,
                found=repr(text[:60]),
                expected="numbers and ranges such as 0-11,8-15",
                code=ErrorCode.USAGE,
            )
        if last >= count:
            raise _no_such_layer(file, last, count)
        numbers += range(first, last + 1)
    return tuple(numbers)


def _no_such_layer(file: str, number: int, count: int) -> UsageError:
    return UsageError("has no such layer", file=file, expected=f"0 to {count - 1}", found=number, code=ErrorCode.USAGE)


def _renumbered(file: File, stack: _Stack, numbers: Sequence[int]) -> Iterator[tuple[str, TensorSpec]]:
    """Yield the tensors under their new names: those of the layers in their new order, where the first of them was."""
    others, layers = dict[str, TensorSpec](), dict[int, list[tuple[str, str, TensorSpec]]]()
    before = 0
    for name, spec in file.index.tensors.items():
        match = LAYER.search(name)
        if match is None or name[: match.start(1)] not in stack.prefixes:
            others[name] = spec
            before += not layers
        else:
            layers.setdefault(int(match[1]), []).append((name[: match.start(1)], name[match.end(1) :], spec))
    rest = list(others.items())
    yield from rest[:before]
    for at, number in enumerate(numbers):
        for prefix, suffix, spec in layers[number]:
            name = f"{prefix}{at}{suffix}"
            yield name, evolve(spec, name=name, tied_to=None)
    yield from rest[before:]


def _picked_meta(file: File, pick: Pick) -> Mapping[str, Any]:
    """Return the metadata for the picked layers: in GGUF the keys of the architecture state them."""
    architecture = str(untyped(file.index.meta.get("general.architecture", "")))
    prefix = f"{architecture}."
    keys = {key: untyped(value) for key, value in file.index.meta.items() if architecture and key.startswith(prefix)}
    own = {key.removeprefix(prefix): value for key, value in keys.items()}
    if not own:
        return file.index.meta
    picked = pick.settings(own, architecture, architecture)
    meta = {key: value for key, value in file.index.meta.items() if key not in STALE}
    for name, value in picked.items():
        if value is not own[name]:
            stored = meta[prefix + name]
            meta[prefix + name] = Typed(stored.type, value) if isinstance(stored, Typed) else value
    return meta


def _picked_assets(file: File, pick: Pick) -> Mapping[str, Part]:
    """Return the files beside the weights, with a config.json for the picked layers."""
    if CONFIG_FILE not in file.assets:
        return file.index.assets
    try:
        config = json.loads(bytes(file.assets[CONFIG_FILE].raw))
    except ValueError as error:
        raise FormatError("is not JSON", part=CONFIG_FILE, file=file.name, found=str(error)[:80], code="json") from None
    inner = next((key for key in ("text_config", "llm_config") if isinstance(config.get(key), dict)), None)
    settings = config if inner is None else config[inner]
    if not any(settings.get(name) == pick.count for name in COUNTS):
        raise FormatError(
            "does not state the number of layers",
            file=file.name,
            part=CONFIG_FILE,
            expected=f"{COUNTS[0]} {pick.count}",
            code=ErrorCode.CONFIG,
        )
    picked = pick.settings(settings, str(settings.get("model_type")), CONFIG_FILE)
    data = json.dumps(picked if inner is None else {**config, inner: picked}, indent=2).encode() + b"\n"
    return {**file.index.assets, CONFIG_FILE: Part(dtype="u8", shape=(len(data),), data=data)}


def _check(outline: Outline, picked: File, naming: Naming, pick: Pick) -> None:
    """Raise FormatError unless the family reads of the new settings what the picked layers were."""
    family = outline.matching.family
    try:
        new = outline_of(picked, family, naming, naming.layout, loads_all=False)
    except SquishError as error:
        raise FormatError(
            f"does not fit the family {family.id} with these layers: {error.reason()}",
            file=picked.name,
            part=error.part,
            code=ErrorCode.CONFIG,
        ) from None
    for name, value in outline.settings.items():
        expected, found = pick.setting(name, value), new.settings.get(name)
        if name not in (*LEADING, *BEHIND) and _as_list(found) != _as_list(expected):
            raise FormatError(
                f"cannot state the kinds of these layers: {name} follows from their numbers",
                file=picked.name,
                part=name,
                expected=repr(expected)[:80],
                found=repr(found)[:80],
                code=ErrorCode.CONFIG,
                hint="Pick layers whose kinds alternate as before, such as whole periods.",
            )
    if (refusal := next(new.matching.errors(), None)) is not None:
        refusal.hint = "Pick layers whose kinds are in the order of the model, such as dense ones first."
        raise refusal.within(file=picked.name)


def _as_list(value: Any) -> Any:
    """Return a sequence as a list; any other value as it is."""
    return list(value) if _is_list(value) else value
