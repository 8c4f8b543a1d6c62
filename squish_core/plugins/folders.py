"""Folders that no format recognizes by a file name: the file of weights in one, or what the folder is instead."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path, PurePath

from squish_core.codes import ErrorCode
from squish_core.errors import FormatError, SquishError, UnknownFormatError
from squish_core.io.local import open_source
from squish_core.io.paths import PREFIX, SNAPSHOTS, broken_links
from squish_core.io.source import Source
from squish_core.plugins import catalog

COMPANIONS = ("mmproj", "imatrix")
"""Words in the names of files beside a model: its vision projector, and the statistics it was quantized with."""
LISTED = 6
"""Names that an error lists."""
SEARCHED = 64
"""Subfolders that are searched for weights, on each of two levels."""
_UNPICKLE = "Squish never unpickles. Load it with the software that wrote it, and save it as safetensors"
FOREIGN: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        (".distcp",), "a PyTorch checkpoint (torch.distributed)",
        f"{_UNPICKLE}, after `python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER OUT`.",
    ),
    (
        (".bin", ".pt", ".pth", ".ckpt"), "a PyTorch checkpoint",
        f"{_UNPICKLE}, in Transformers: `AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(OUT)`.",
    ),
    (
        (".msgpack", ".h5", ".tflite"), "a checkpoint of Flax or TensorFlow",
        "Load it with its own software, and save it as safetensors.",
    ),
)  # fmt: skip
"""Suffixes of weights that no format of Squish reads -> what they are, and the next step."""
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.\w+)")
_DESCRIBING = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")


def file_of(folder: Source, suffixes: Collection[str]) -> Source:
    """Return the only model among a folder's files (its first part, if it is in parts), or the folder if there is none.

    `suffixes` are those of files with weights.

    Raises
    ------
    FormatError
        There are several models (code `folder`).
    """
    files = [name for name in folder.members() if name.lower().removesuffix(".zst").endswith(tuple(suffixes))]
    models = [name for name in files if not any(word in name.lower() for word in COMPANIONS)] or files
    parts = [match for match in map(_PART.fullmatch, reversed(models)) if match]
    firsts = sorted({(match[1], match[3]): match[0] for match in parts}.values())
    firsts += [name for name in models if not _PART.fullmatch(name)]
    if not firsts:
        return folder
    if len(firsts) > 1 or folder.path is None:
        raise FormatError(
            "is a folder with several models" if len(firsts) > 1 else "is a folder with a file of weights",
            file=folder.name,
            expected="one model",
            found=_listing(firsts),
            code=ErrorCode.FOLDER,
            hint=f"Name a file: {_below(folder, firsts[0])}",
        )
    return open_source(folder.path / firsts[0])


def unrecognized(folder: Source, installed: Iterable[str]) -> SquishError:
    """Return the error for a folder that no format recognizes, which says what it is."""
    names, subfolders = folder.members(), folder.subfolders()
    description = (
        _of_other_software(names)
        or _of_ollama(folder, names, subfolders)
        or _of_the_hub(folder, subfolders)
        or _with_weights_below(folder, names, subfolders)
        or _without_weights(folder, names)
    )
    if description is not None:
        what, found, hint = description
        return UnknownFormatError(
            f"is {what}", file=folder.name, found=found or None, code=ErrorCode.UNKNOWN, hint=hint
        )
    return UnknownFormatError(
        "is a folder that no installed format recognizes",
        file=folder.name,
        found=_listing((*names, *(f"{name}/" for name in subfolders))) or "no files",
        code=ErrorCode.UNKNOWN,
        hint="Name a file with weights, or a folder that contains one. Installed formats: "
        f"{', '.join(sorted(installed)) or 'none'}.",
    )


def _of_other_software(names: Sequence[str]) -> tuple[str, str, str] | None:
    for suffixes, what, hint in FOREIGN:
        found = [name for name in names if name.endswith(suffixes)]
        if found:
            return f"a folder with {what}", _listing(found), hint
    return None


def _of_ollama(folder: Source, names: Sequence[str], subfolders: Sequence[str]) -> tuple[str, str, str] | None:
    hint = "Name the file of one model: `ollama show --modelfile NAME` prints it after FROM."
    if {"blobs", "manifests"} <= set(subfolders):
        return "Ollama's folder of models", _listing(islice(_ollama_models(folder), LISTED + 1)), hint
    blobs = [name for name in names if re.fullmatch(r"sha256-[0-9a-f]{64}", name)]
    return ("a folder of Ollama's blobs", _listing(blobs), hint) if blobs else None


def _ollama_models(folder: Source) -> Iterator[str]:
    """Yield names of the models, from the manifests `HOST/NAMESPACE/NAME/TAG`."""
    for host in folder.subfolders("manifests"):
        for namespace in folder.subfolders(f"manifests/{host}"):
            for name in folder.subfolders(f"manifests/{host}/{namespace}"):
                prefix = "" if namespace == "library" else f"{namespace}/"
                for tag in folder.members(f"manifests/{host}/{namespace}/{name}"):
                    yield f"{prefix}{name}:{tag}"


def _of_the_hub(folder: Source, subfolders: Sequence[str]) -> tuple[str, str, str] | None:
    models = [name for name in subfolders if name.startswith(PREFIX)]
    if not models:
        return None
    return (
        "a cache of the Hugging Face Hub",
        _listing(models),
        f"Name the folder of a model: {_below(folder, models[0])}",
    )


def _with_weights_below(folder: Source, names: Sequence[str], subfolders: Sequence[str]) -> tuple[str, str, str] | None:
    """Return a folder whose subfolders hold models, such as a pipeline of diffusers."""
    below = [name for name in subfolders[:SEARCHED] if _has_weights(folder, name)]
    if not below:
        pairs = ((name, inner) for name in subfolders[:SEARCHED] for inner in folder.subfolders(name)[:SEARCHED])
        below = [f"{name}/{inner}" for name, inner in pairs if _has_weights(folder, f"{name}/{inner}")]
    if not below:
        return None
    is_pipeline = "model_index.json" in names
    what = (
        "a pipeline of diffusers, whose models are in subfolders" if is_pipeline else "a folder of folders with weights"
    )
    return what, _listing(below), f"Name one of them: {_below(folder, below[0])}"


def _has_weights(folder: Source, path: str) -> bool:
    suffixes = (*catalog.suffixes(), *(suffix for suffixes, _, _ in FOREIGN for suffix in suffixes))
    return any(name.endswith(suffixes) for name in folder.members(path))


def _without_weights(folder: Source, names: Sequence[str]) -> tuple[str, str, str] | None:
    """Return a model whose weights are missing, or still on their way."""
    links = broken_links(folder.path) if folder.path is not None else ()
    unfinished = list(_unfinished(folder.path)) if folder.path is not None else []
    if not links and not unfinished and not any(name in names for name in _DESCRIBING):
        return None
    what = "the folder of a model without weights"
    if links or unfinished:
        what += ": their download is incomplete"
    return what, _listing((*links, *unfinished, *names)), f"Download the model again{_download_command(folder.path)}."


def _unfinished(path: Path) -> Iterator[str]:
    """Yield names of files that the Hub's client has not downloaded completely."""
    blobs = path.parent.parent / "blobs" if path.parent.name == SNAPSHOTS else path / ".cache/huggingface/download"
    yield from (file.name for file in sorted(blobs.glob("*.incomplete")))


def _download_command(path: Path | None) -> str:
    """Return the command that completes a folder of the Hub's cache; empty for another folder."""
    model = path.parent.parent.name if path is not None and path.parent.name == SNAPSHOTS else ""
    return f": `hf download {model.removeprefix(PREFIX).replace('--', '/')}`" if model.startswith(PREFIX) else ""


def _listing(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:LISTED]) + (", ..." if len(listed) > LISTED else "")


def _below(folder: Source, name: str) -> str:
    """Return a path for a hint, of a file or folder in a folder."""
    return f"{folder.name.rstrip('/')}/{name}" if folder.path is None else str(PurePath(folder.name, name))
