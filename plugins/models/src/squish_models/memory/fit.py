"""`fit`: which presets of a model llama-server can serve in a given memory."""

from __future__ import annotations

import re
import shlex
from bisect import bisect_right
from functools import cache
from pathlib import Path
from typing import Any

from attrs import asdict, field, frozen
from squish_convert.api import plan_conversion, with_names

from squish_core.api import ErrorCode, File, FormatError, UsageError, parse_bytes
from squish_core.api import open as open_file

from .buffers import compute_size, logits_size
from .cache import PADDING, Cache, caches, padded
from .model import ServedModel, served_model

PRESETS = ("q8_0", "q6_k", "q5_k_m", "q4_k_m", "iq4_xs", "q3_k_m", "q2_k")
"""Presets of llama-quantize that need no activation statistics, the largest first."""
AS_IT_IS = "as it is"
BATCH = 512
"""llama-server's --ubatch-size: as many tokens go through the graph at once."""
GGUF, DENSE = "gguf", "dense"
ADAPTER_FILE = "adapter_config.json"
SUFFIXES = re.compile(r"(?:-\d{5}-of-\d{5})?(?:\.[a-z]\w*)+$", re.IGNORECASE)
"""What follows the name of a model: the number of a shard, a type, the suffix of the format; not `.5-7B`."""


@frozen(kw_only=True)
class Needed:
    """What llama-server takes for a model in one form.

    Attributes
    ----------
    preset
        The preset, or "as it is" for the file's own codes.
    weights, cache, states, compute, logits
        Bytes of the weights, of keys and values, of recurrent states, of the graph's values, and of the logits.
    total
        Bytes of all of them.
    fits
        Whether they fit the memory.
    longest
        The longest context with which they do, at most the model's own; 0 if none does.
    command
        What makes the GGUF, or serves one that is here as it is.
    """

    preset: str
    weights: int
    cache: int
    states: int
    compute: int
    logits: int
    total: int
    fits: bool
    longest: int
    command: str


@frozen(kw_only=True)
class Fit:
    """Which forms of a model fit a memory.

    Attributes
    ----------
    file, architecture
        The model, and GGUF's name for its architecture.
    memory
        Bytes that there are.
    context
        Tokens of the context, rounded up as llama.cpp does.
    longest
        The longest context of the model, by its settings.
    caches
        What layers keep of the tokens before, by the kind of layer.
    rows
        The forms of the model, the largest weights first.
    """

    file: str
    architecture: str
    memory: int
    context: int
    longest: int
    caches: tuple[Cache, ...]
    rows: tuple[Needed, ...] = field(repr=False)

    @property
    def best(self) -> Needed | None:
        """The form with the largest weights that fits."""
        return next((row for row in self.rows if row.fits), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON.

        Returns
        -------
        dict
            The fields, and the preset of the best form.

        Examples
        --------
        >>> from squish_models.api import Fit
        >>> result = Fit(file="m", architecture="llama", memory=1, context=256, longest=256, caches=(), rows=())
        >>> result.to_dict()["context"], result.to_dict()["best"]
        (256, None)
        """
        return {**asdict(self), "best": self.best.preset if self.best else None}


def fit(file: str | Path | File, *, memory: int | str, context: int | None = None) -> Fit:
    """Tell which presets of a model llama-server can serve in a given memory, from headers alone.

    Counts what llama.cpp reports as it loads: weights, caches, states and buffers, with one slot, keys and values in
    f16, flash attention and llama-server's batches of 512 tokens.

    Parameters
    ----------
    file
        A model in any format that converts to GGUF: a path, a URL or an open `File`.
    memory
        Bytes, or a text such as "16GB" or "24GiB".
    context
        Tokens; by default as many as the model's settings allow, as in llama-server.

    Returns
    -------
    Fit
        What each preset takes.

    Raises
    ------
    UsageError
        The memory or the context is not a size.
    SquishError
        The file cannot be read, or llama.cpp has no such model (code `family`).

    Examples
    --------
    >>> import json
    >>> from pathlib import Path
    >>> from squish_models.api import fit, small_config
    >>> from squish_testing import model_arrays
    >>> config = small_config("qwen3")
    >>> Path("small").mkdir()
    >>> _ = Path("small/config.json").write_text(json.dumps(config))
    >>> _ = squish.save("small/model.safetensors", model_arrays("qwen3", config))
    >>> result = fit("small", memory="1GB", context=500)
    >>> result.best.command, result.context
    ('squish convert small small.gguf', 512)
    """
    if not isinstance(file, File):
        with open_file(file) as opened:
            return fit(opened, memory=memory, context=context)
    room = memory if isinstance(memory, int) else parse_bytes(memory)
    if room is None or room <= 0:
        raise UsageError(
            "the memory is not a size",
            code=ErrorCode.USAGE,
            expected="bytes, such as 16GB or 24GiB",
            found=repr(memory),
        )
    if context is not None and context <= 0:
        raise UsageError(
            "the context is not a number of tokens", code=ErrorCode.USAGE, expected="1 or more", found=repr(context)
        )
    forms, model = _forms(file)
    own = model.numbers.number("context_length")
    server = _Server(model)
    length = context or own
    tokens = padded(length)
    layer_caches = server.caches(length)
    sizes = {
        "cache": sum(cache.size for cache in layer_caches if not cache.is_state),
        "states": sum(cache.size for cache in layer_caches if cache.is_state),
        "compute": server.compute(length),
        "logits": logits_size(model),
    }
    return Fit(
        file=file.name,
        architecture=model.numbers.architecture,
        memory=room,
        context=tokens,
        longest=own,
        caches=layer_caches,
        rows=tuple(
            Needed(
                preset=form.preset,
                weights=form.weights,
                **sizes,
                total=form.weights + sum(sizes.values()),
                fits=form.weights + sum(sizes.values()) <= room,
                longest=server.longest(room - form.weights, max(own, tokens)),
                command=form.command or f"llama-server -m {_first(file)} -c {tokens} -np 1",
            )
            for form in forms
        ),
    )


class _Server:
    """What llama-server takes for a model beside the weights, by the context."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.compute = cache(self._compute)

    def _compute(self, context: int) -> int:
        return compute_size(self.model, padded(context), min(context, BATCH))

    def caches(self, context: int) -> tuple[Cache, ...]:
        return caches(self.model, padded(context), min(context, BATCH))

    def longest(self, room: int, most: int) -> int:
        """Return the longest context that takes no more, at most `most`, in steps of PADDING; 0 if none does."""
        steps = range(1, -(-most // PADDING) + 1)
        return PADDING * bisect_right(steps, room, key=lambda step: self._size(step * PADDING))

    def _size(self, context: int) -> int:
        return sum(each.size for each in self.caches(context)) + self.compute(context) + logits_size(self.model)


@frozen(kw_only=True)
class _Form:
    """A form of a model: the bytes of its weights, and the command that makes it; none for a GGUF that is here."""

    preset: str
    weights: int
    command: str


def _forms(file: File) -> tuple[list[_Form], ServedModel]:
    """Return the forms of a model, the largest first, and the model under GGUF's names.

    A GGUF or floats are there as they are, beside the presets that are smaller. Whether GGUF stores other codes depends
    on their values, which are not read: these have presets alone.
    """
    _check_is_model(file)
    source, stem = _quoted(file), _stem(file)
    mapped = _under_gguf_names(file)
    model = served_model(mapped, file.name)
    first = (encoding for spec in file.index.tensors.values() for encoding in spec.encodings[:1])
    coded = any(encoding.codec.id != DENSE for encoding in first)
    forms = []
    for preset in PRESETS if coded and file.format != GGUF else (None, *PRESETS):
        plan = plan_conversion(mapped, Path(f"{stem}.gguf"), GGUF, preset, rename=GGUF, requantize=True)
        size = sum(step.size for step in plan.steps if model.loads(step.written))
        target = shlex.quote(f"{stem}-{preset}.gguf" if preset else f"{stem}.gguf")
        command = f"squish convert {source} {target}"
        if preset:
            command += f" --encode {preset}"
            requantizes = any(step.action == "encode" and step.origin.codec.id != DENSE for step in plan.steps)
            command += " --requantize" if requantizes else ""
        elif file.format == GGUF:
            command = "" if file.path and not file.source.packed else f"squish cp {source} {target}"
        forms.append(_Form(preset=preset or AS_IT_IS, weights=size, command=command))
    own, *others = forms
    smaller = others if own.preset != AS_IT_IS else [form for form in others if form.weights < own.weights]
    return sorted([own, *smaller], key=lambda form: -form.weights), model


def _check_is_model(file: File) -> None:
    """Raise FormatError for an adapter, a tower or statistics."""
    kind = "adapter" if ADAPTER_FILE in file.assets else file.index.kind
    if kind != "model":
        raise FormatError(
            "is not a model that llama-server loads by itself",
            file=file.name,
            code="family",
            expected="a language model",
            found=kind,
            hint="Name the model to which it belongs.",
        )


def _under_gguf_names(file: File) -> File:
    """Map a file to GGUF; the error says for whom."""
    try:
        return with_names(file, GGUF)
    except FormatError as error:
        error.message = f"has no form for llama.cpp: {error.message.removeprefix('cannot be renamed: ')}"
        error.hint = error.hint or "Name the folder of the model, with its config.json, or a GGUF of it."
        raise


def _quoted(file: File) -> str:
    """The file as an argument in a shell."""
    return shlex.quote(str(file.path or file.name))


def _first(file: File) -> str:
    """The first file of a GGUF, which llama.cpp wants of a split set, as an argument in a shell."""
    assert file.path is not None
    return shlex.quote(str(file.path.with_name(Path(file.index.files[0].name).name)))


def _stem(file: File) -> str:
    """The name of the files that the commands make."""
    name = Path(str(file.path or file.name).partition("?")[0].rstrip("/")).name
    return name if file.path is not None and file.path.is_dir() else SUFFIXES.sub("", name) or name
