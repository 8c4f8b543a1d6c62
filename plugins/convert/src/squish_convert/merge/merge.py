"""`merge`: add LoRA adapters to the weights of a model; only the tensors that they adapt are encoded again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from math import isfinite
from typing import Any

from attrs import evolve

from squish_core import opening
from squish_core.checking.check import ProgressCallback
from squish_core.codes import ErrorCode
from squish_core.errors import FormatError, SquishError, UsageError
from squish_core.file import File
from squish_core.formats.metadata import untyped
from squish_core.guard import guarded
from squish_core.limits import Limits
from squish_core.model import CodecSpec, FileRef, Part, TensorSpec
from squish_core.plugins.registry import Registry
from squish_core.text import counted

from ..convert import convert
from ..families import CONFIG_FILE, GGUF, HF
from ..joined import JoinedSource, renumbered
from ..mapping.codecs.lora import LORA, Product
from ..mapping.mapped import ADAPTER_FILE, ARCHITECTURE, map_file, naming_of
from ..report import Conversion
from ..rules import Encode
from .adapters import BY_PEFT, Pair, adapter_layout, pairs_of, scaling_of
from .places import Places

Adapters = Any
"""An adapter (a path, bytes or an open `File`), a list of them or of (adapter, scale), or {adapter: scale}."""


def merge(
    base: Any,
    adapters: Adapters,
    dst: Any,
    to: str | None = None,
    encode: Encode | None = None,
    *,
    rename: str | None = None,
    activations: Any = None,
    requantize: bool = False,
    dry_run: bool = False,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
    limits: Limits | None = None,
    registry: Registry | None = None,
) -> Conversion:
    """Add LoRA adapters to a model and write it. Tensors that no adapter adapts keep their codes.

    Parameters
    ----------
    base
        The model, in any format: a path, bytes or an open `File`.
    adapters
        A folder of PEFT or an adapter in GGUF: a path or an open `File`. Several in a list; with a number to multiply
        each by as (adapter, scale), or as {adapter: scale}.
    dst, to
        As in `convert`.
    encode
        As in `convert`. A tensor that is adapted gets the encoding that it has in `base`, unless a rule matches it.
    rename, activations, dry_run, overwrite, progress
        As in `convert`.
    requantize
        Allow quantizing adapted tensors that are quantized in `base` with loss.
    limits, registry
        As in `open`.

    Returns
    -------
    Conversion
        As of `convert`; its notes say how many tensors each adapter adapts.

    Raises
    ------
    SquishError
        An adapter does not fit the model, or does more than to add products of matrices; nothing is written then.

    Examples
    --------
    >>> name = "blk.0.ffn_up.weight"
    >>> lora = {f"{name}.lora_a": np.ones((1, 32), "f4"), f"{name}.lora_b": np.ones((64, 1), "f4")}
    >>> keys = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}
    >>> _ = squish.save("lora.gguf", lora, metadata=keys)
    >>> report = merge("model.gguf", {"lora.gguf": 0.5}, "merged.gguf", requantize=True)
    >>> [step.name for step in report.steps if step.action == "encode"]
    ['blk.0.ffn_up.weight']
    """
    with ExitStack() as stack:

        def opened(place: Any) -> File:
            if isinstance(place, File):
                return place
            return stack.enter_context(opening.open(place, limits=limits, registry=registry))

        file, scales = opened(base), [(opened(place), scale) for place, scale in _scales(adapters)]
        model, notes = with_adapters(file, scales)
        report = convert(
            model,
            dst,
            to,
            encode,
            rename=rename,
            activations=activations,
            requantize=requantize,
            dry_run=dry_run,
            overwrite=overwrite,
            progress=progress,
            limits=limits,
            registry=file.registry,
        )
        return evolve(report, notes=(*notes, *report.notes))


def _scales(adapters: Adapters) -> Iterator[tuple[Any, float]]:
    """Yield each adapter with its scale; UsageError for none, and for a scale that is not a finite number."""
    if isinstance(adapters, Mapping) and not isinstance(adapters, File):
        pairs = [*adapters.items()]
    else:
        items = adapters if isinstance(adapters, list | tuple) else [adapters]
        pairs = [item if isinstance(item, tuple) and len(item) == 2 else (item, 1.0) for item in items]
    if not pairs:
        raise UsageError("no adapter to merge", code=ErrorCode.USAGE, expected="at least one adapter")
    for adapter, scale in pairs:
        if isinstance(scale, bool) or not isinstance(scale, int | float) or not isfinite(scale):
            raise UsageError(
                "is not the scale of an adapter", code=ErrorCode.USAGE, expected="a finite number", found=repr(scale)
            )
        yield adapter, float(scale)


def with_adapters(base: File, adapters: Iterable[tuple[File, float]]) -> tuple[File, tuple[str, ...]]:
    """Present a model with adapters added, without writing it.

    Parameters
    ----------
    base
        An open model.
    adapters
        Open adapters, each with a number by which it is multiplied.

    Returns
    -------
    tuple of (File, tuple of str)
        The model, whose adapted tensors are computed when they are read, and a note for each adapter.

    Raises
    ------
    SquishError
        An adapter does not fit the model, or does more than to add products of matrices.

    Examples
    --------
    >>> name = "blk.0.ffn_up.weight"
    >>> lora = {f"{name}.lora_a": np.ones((1, 32), "f4"), f"{name}.lora_b": np.ones((64, 1), "f4")}
    >>> keys = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}
    >>> _ = squish.save("lora.gguf", lora, metadata=keys)
    >>> with squish.open("model.gguf") as base, squish.open("lora.gguf") as adapter:
    ...     model, _ = with_adapters(base, [(adapter, 2.0)])
    ...     round(float((model[name].numpy() - base[name].numpy()).mean()), 4)
    2.0
    """
    base, adapters = base.without_caches(), [*adapters]
    if naming_of(base).adapter:
        raise FormatError(
            "is an adapter, not a model",
            file=base.name,
            code="adapter",
            hint="Name the model first: `squish merge BASE ADAPTER -o OUT`.",
        )
    opened = {"base": base, **{str(number): file for number, (file, _) in enumerate(adapters)}}
    source = JoinedSource(opened, base.name)
    files = [
        FileRef(f"{key}/{ref.name}", ref.size, ref.digest) for key, each in opened.items() for ref in each.index.files
    ]
    joined = File(source, evolve(base.index, files=files), base.registry, base.limits)
    places, added, notes = Places(joined), dict[str, list[Pair]](), []
    first = len(base.index.files)
    for file, scale in adapters:
        with guarded(SquishError, "reading the adapter", file=file.name):
            names = set()
            for name, pair in _placed(file, scale, places, first):
                added.setdefault(name, []).append(pair)
                names.add(name)
            if not names:
                raise FormatError("has no pair of matrices", code="adapter")
        by = "" if scale == 1 else f", multiplied by {scale:g}"
        notes.append(f"{file.name} changes {len(names):,} of {counted(len(base), 'tensor')}{by}")
        first += len(file.index.files)
    tensors = dict(base.index.tensors)
    for head, embeddings in places.heads.items():
        tensors[head] = evolve(tensors[embeddings], name=head, tied_to=None)
        notes.append(f"{head} is no longer tied to {embeddings}, since only one of them is changed")
    tensors |= {name: _with_products(tensors[name], pairs) for name, pairs in added.items()}
    index = evolve(joined.index, tensors=tensors, assets=_untied_assets(base) if places.heads else base.index.assets)
    return File(source, index, base.registry, base.limits), tuple(notes)


def _placed(file: File, scale: float, places: Places, first: int) -> Iterator[tuple[str, Pair]]:
    """Yield the tensors that an adapter adapts, and what it adds; `first`: the number of its first file."""
    layout = adapter_layout(file)
    scaling, model = scaling_of(file, layout), places.model
    if layout == GGUF:
        _check_architecture(file, model)
        if places.naming.layout != GGUF:
            file, layout = _under_peft_names(file, model), HF
    for pair in pairs_of(file, layout, scaling, scale):
        moved = evolve(pair, left=renumbered(pair.left, first), right=renumbered(pair.right, first))
        yield from places.placed(moved, layout, fan_in_fan_out=scaling.fan_in_fan_out)
    if scaling.ties_heads and places.heads:
        raise FormatError(
            "adapts embeddings and a head that is tied to them as one, and only one of the two is merged",
            part=f"{ADAPTER_FILE} ensure_weight_tying",
            code="adapter",
            hint=BY_PEFT,
        )


def _untied_assets(base: File) -> Mapping[str, Part]:
    """Return the files of a model, with a config.json that does not tie the head to the embeddings."""
    if CONFIG_FILE not in base.assets:
        return base.index.assets
    config = json.loads(bytes(base.assets[CONFIG_FILE].raw))
    for settings in (config, config.get("text_config")):
        if isinstance(settings, dict):
            settings["tie_word_embeddings"] = False
    return {**base.index.assets, CONFIG_FILE: _in_memory(json.dumps(config, indent=2).encode() + b"\n")}


def _in_memory(data: bytes) -> Part:
    return Part(dtype="u8", shape=(len(data),), data=data)


def _check_architecture(adapter: File, model: File) -> None:
    """Raise FormatError if an adapter in GGUF states another architecture than the model's family has."""
    naming = naming_of(model)
    stated = str(untyped(adapter.index.meta.get(ARCHITECTURE, "")))
    own = naming.model_type if naming.layout == GGUF else None
    if own is None and naming.family is not None:
        own = model.registry.families[naming.family].info.architecture
    if own and stated != own:
        raise FormatError(
            "is an adapter of another model",
            part=ARCHITECTURE,
            code="adapter",
            expected=f"{own}, as {model.name}",
            found=stated or "none",
            hint="Give the model that the adapter was trained for.",
        )


def _under_peft_names(adapter: File, model: File) -> File:
    """Return an adapter in GGUF under the names and rows that PEFT has."""
    naming = naming_of(model)
    if naming.family is None:
        raise FormatError(
            f"has GGUF's names, and those of the model are not known: {naming.reason}",
            code="adapter",
            hint="Give the model in GGUF, or the adapter as PEFT saves it.",
        )
    assets = {CONFIG_FILE: _in_memory(bytes(model.assets[CONFIG_FILE].raw))}
    named = File(adapter.source, evolve(adapter.index, assets=assets), adapter.registry, adapter.limits)
    return map_file(named, HF, {}, naming_of(named))


def _with_products(spec: TensorSpec, pairs: Iterable[Pair]) -> TensorSpec:
    """Return a tensor with products added to its values, in each of its encodings."""
    products, parts = [], dict[str, Part]()
    for number, pair in enumerate(pairs):
        left, right = (matrix.encodings[0].parts["data"] for matrix in (pair.left, pair.right))
        product = Product(
            scale=pair.scale,
            rank=pair.rank,
            rows=pair.shape[0],
            first=pair.first or 0,
            member=pair.member or 0,
            left=left.dtype,
            left_turned=pair.left_turned,
            right=right.dtype,
            right_turned=pair.right_turned,
        )
        products.append(product.params)
        parts |= {f"{number}.left": left, f"{number}.right": right}
    params = {"products": tuple(products)}
    encodings = tuple(
        evolve(encoding, codec=CodecSpec(LORA, params, encoding.codec), parts={**encoding.parts, **parts})
        for encoding in spec.encodings
    )
    return evolve(spec, encodings=encodings, extras={}, tied_to=None, row_names=None)
