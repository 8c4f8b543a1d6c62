"""`save_pretrained` of compressed models: the file that they were loaded from, converted."""

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
"""Name of a file without its suffix, where the target is a folder."""
DENSE, QUANTIZED = "safetensors", "hf"
"""Formats of checkpoint folders, which the second one writes."""
CASTS = {"half": torch.nn.Module.half, "float": torch.nn.Module.float}


class Origin:
    """What a model was loaded from; copies of the model share it, and pickles go without."""

    def __init__(self, state: LazyState | None = None) -> None:
        self.state = state

    def __deepcopy__(self, memo: Any) -> Origin:
        return self

    def __reduce__(self) -> Any:
        return Origin, ()


def attach(model: Any, state: LazyState) -> None:
    """Let a model be saved as it was loaded, and cast by any method: transformers refuses `half` and `float` of a
    quantized model, because the modules it knows would compute otherwise; ours decode to any dtype."""
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
        Format and write options, as in `squish_core.convert`; by default those of the source.
    encode
        As in `squish_core.convert`; by default codes are kept.
    state_dict, push_to_hub
        Transformers' own arguments, which are refused: `model.push_to_hub()` works.
    options
        Other arguments of transformers, without effect.

    Raises
    ------
    UsageError
        An argument is refused, or the model is a pickle's.
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
    if target.is_dir() and not any(target.iterdir()):  # such as that of push_to_hub; convert makes folders itself
        target.rmdir()
    convert(source, target, form, encode, rename=names_for(source, target, form))


def check_unchanged(model: Any, state: LazyState) -> None:
    """TensorError for the first weight that is not the file's."""
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
    """The file or folder to write."""
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
    """Transformers' names for another format without names of its own: most of them have no place for the settings that
    GGUF's names need."""
    written = format_by_suffix(source, target) if form is None else form.partition(":")[0]
    if written is None or written == source.format or written not in source.registry.containers:
        return None
    container = source.registry.container(written)
    return "hf" if isinstance(container, WritableContainer) and container.naming({}) is None else None


def format_by_suffix(source: File, target: Path) -> str | None:
    """The format that a suffix states."""
    containers = source.registry.containers
    fitting = [name for name, entry in containers.items() if target.suffix in entry.info.suffixes]
    return fitting[0] if fitting else None


def format_of(source: File) -> str:
    """The format that writes what a file was read from, with its method."""
    if source.format == QUANTIZED:
        return f"{QUANTIZED}:method={source.index.version.split()[0]}"
    return QUANTIZED if source.format == DENSE and _is_folder(source) else source.format


def _is_folder(source: File) -> bool:
    return source.path is not None and source.path.is_dir()
