"""`save_pretrained` of compressed models, which converts the file that they were loaded from."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from squish_convert.api import convert

from squish_core.api import ErrorCode, File, TensorError, UsageError, WritableContainer

from .state import LazyState

STEM = "model"
"""Stem of the file in a target folder."""
DENSE, QUANTIZED = "safetensors", "hf"
"""Formats of checkpoint folders; the second writes them."""
CASTS = {"half": torch.nn.Module.half, "float": torch.nn.Module.float}


class Origin:
    """The state that a model was loaded from; copies of the model share it, pickles drop it."""

    def __init__(self, state: LazyState | None = None) -> None:
        self.state = state

    def __deepcopy__(self, memo: Any) -> Origin:
        return self

    def __reduce__(self) -> Any:
        return Origin, ()


def attach(model: Any, state: LazyState) -> None:
    """Enable saving and casting of a model.

    Transformers rejects `half` and `float` of a quantized model, but compressed modules decode to any dtype.
    """
    model.hf_origin = Origin(state)
    model.save_pretrained = MethodType(save_pretrained, model)
    for name, cast_module in CASTS.items():
        setattr(model, name, partial(cast_module, model))


def detach(model: Any) -> None:
    """Leave saving to transformers."""
    for name in ("hf_origin", "save_pretrained", *CASTS):
        model.__dict__.pop(name, None)


def save_pretrained(
    model: Any,
    save_directory: str | os.PathLike[str],
    *,
    to: str | None = None,
    encode: Any = None,
    state_dict: Any = None,
    push_to_hub: bool = False,
    **options: Any,
) -> None:
    """Write the model, codes kept, with its config and tokenizer.

    Parameters
    ----------
    model
        A compressed model.
    save_directory
        A new folder, or a file whose suffix states its format. Formats of one file are written into the folder as
        `model` with their suffix.
    to
        Format and write options, as in `squish_core.convert`; the source's by default.
    encode
        As in `squish_core.convert`; by default codes are kept.
    state_dict, push_to_hub
        Arguments of transformers that are refused; `model.push_to_hub()` works.
    options
        Other arguments of transformers, which are ignored.

    Raises
    ------
    UsageError
        An argument is refused, or the model comes from a pickle.
    TensorError
        A weight was changed since the model was loaded.
    SquishError
        The format cannot hold a tensor, or the target cannot be written.
    """
    state = model.hf_origin.state
    if state is None or state_dict is not None or push_to_hub:
        argument = "state_dict" if state_dict is not None else "push_to_hub" if push_to_hub else "a pickled model"
        raise UsageError(
            "cannot be saved as it was loaded",
            found=argument,
            code=ErrorCode.USAGE,
            hint="Save model.dequantize(), or a model that from_pretrained has loaded.",
        )
    check_unchanged(model, state)
    source = getattr(state.file, "original", state.file)
    target = target_of(Path(save_directory), source, to)
    form = to or (None if target.suffix else format_of(source))
    if target.is_dir() and not any(target.iterdir()):  # such as from push_to_hub; convert creates folders
        target.rmdir()
    convert(source, target, form, encode, rename=names_for(source, target, form))


def check_unchanged(model: Any, state: LazyState) -> None:
    """Raise TensorError for the first weight that differs from the file."""
    current = model.state_dict()
    for name, value in state.items():
        if name in current and current[name].device.type != "meta":
            stored = value[...]
            if not torch.equal(current[name].cpu(), stored.to(current[name].dtype)):
                raise TensorError(
                    "was changed since the model was loaded",
                    file=state.file.name,
                    tensor=name,
                    code="state",
                    hint="Save model.dequantize(), which has the new values.",
                )


def target_of(path: Path, source: File, to: str | None) -> Path:
    """Return the path to write: a file, or a folder."""
    containers = source.registry.containers
    suffixes = {name: entry.info.suffixes for name, entry in containers.items()}
    if path.suffix in {suffix for each in suffixes.values() for suffix in each}:
        return path
    own = suffixes.get((to or format_of(source)).partition(":")[0], ())
    if not own or (to is None and _is_folder(source)):
        return path
    path.mkdir(parents=True, exist_ok=True)
    return path / f"{STEM}{own[0]}"


def names_for(source: File, target: Path, form: str | None) -> str | None:
    """Return transformers' names for another format without naming rules, because most formats cannot store the
    settings that GGUF's names need."""
    written = format_by_suffix(source, target) if form is None else form.partition(":")[0]
    if written is None or written == source.format or written not in source.registry.containers:
        return None
    container = source.registry.container(written)
    return "hf" if isinstance(container, WritableContainer) and container.naming({}) is None else None


def format_by_suffix(source: File, target: Path) -> str | None:
    """Return the format that a suffix states."""
    containers = source.registry.containers
    fitting = [name for name, entry in containers.items() if target.suffix in entry.info.suffixes]
    return fitting[0] if fitting else None


def format_of(source: File) -> str:
    """Return the format that writes what a file was read from, with its method."""
    if source.format == QUANTIZED:
        return f"{QUANTIZED}:method={source.index.version.split()[0]}"
    return QUANTIZED if source.format == DENSE and _is_folder(source) else source.format


def _is_folder(source: File) -> bool:
    return source.path is not None and source.path.is_dir()
