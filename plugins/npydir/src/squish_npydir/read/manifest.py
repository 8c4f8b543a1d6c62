"""The manifest: tensor names and file keys."""

from __future__ import annotations

from typing import Any

from squish_core.api import ErrorCode, FormatError, LimitError, Limits, SquishError, check_file_name, check_name

from .folder import Folder

MANIFEST, PLACE = "manifest.json", "tensors"
"""The manifest, and the folder of the arrays."""
ALONE = {"squish_4bit/config.json": "squish_4bit", "squish_3bit/config.json": "squish_3bit",
         "squish_weights.safetensors": "squish_weights.safetensors"}  # fmt: skip
"""Files of tiers that can be opened by themselves -> the name to open."""


def read(folder: Folder) -> dict[str, str]:
    """Return name -> safe key in load order; keys are unique file names, ignoring case."""
    try:
        return _checked(_by_name(folder.json(MANIFEST, "manifest"), folder), folder.limits)
    except SquishError as error:
        raise (_absent(folder) if error.code == ErrorCode.MISSING else error).within(file=MANIFEST) from None


def _by_name(entries: dict[str, Any], folder: Folder) -> dict[str, Any]:
    """Return a manifest from names to keys; one from keys to names, as in the architecture document, is inverted.

    In an inverted manifest, all keys are those that Squish derives from the names, or only the keys have no dots, as
    the files. Names without dots are their own keys, so that the direction does not matter.
    """
    pairs = [(key, name) for key, name in entries.items() if type(name) is str]
    derived = all(key == name.replace(".", "__") for key, name in pairs)
    if len(pairs) < len(entries) or not (derived or _names_files(pairs, folder)):
        return entries
    return {name: key for key, name in pairs}


def _names_files(pairs: list[tuple[str, str]], folder: Folder) -> bool:
    """Return whether a manifest maps keys to names: only the right side has dots, and files have the left names."""
    if any("." in key for key, _ in pairs) or not any("." in name for _, name in pairs):
        return False
    if not all(map(_is_file_name, (name for _, name in pairs))):
        return False  # paths are refused, not read as names
    stems = {file.rpartition("__")[0] for file in folder.names(PLACE)}
    return any(key in stems for key, _ in pairs) and not any(name in stems for _, name in pairs)


def _is_file_name(text: str) -> bool:
    try:
        check_file_name(text, MANIFEST)
    except SquishError:
        return False
    return True


def _absent(folder: Folder) -> SquishError:
    """Return the error for a missing manifest, with a folder to open instead if there is one."""
    tier = next((name for file, name in ALONE.items() if folder.has(file)), None)
    return FormatError(
        "missing, so the npy directory is incomplete",
        file=f"{folder.source.name}/{MANIFEST}",
        code=ErrorCode.MISSING,
        hint=f"Open {folder.source.name}/{tier}, which can be read alone."
        if tier
        else "The conversion of the model was not finished; convert it again.",
    )


def _checked(entries: dict[str, str], limits: Limits) -> dict[str, str]:
    if len(entries) > limits.tensors:
        raise LimitError(
            "too many tensors", expected=f"at most {limits.tensors}", found=len(entries), code="count", limit="tensors"
        )
    holders: dict[str, str] = {}
    for name, key in entries.items():
        check_name(name, limits)
        if type(key) is not str:
            raise FormatError(
                "each entry of the manifest must be the name of a file",
                tensor=name,
                found=type(key).__name__,
                code="manifest",
            )
        try:
            check_file_name(key, MANIFEST)
        except SquishError as error:
            raise FormatError(error.message, tensor=name, found=error.found, code="path") from None
        other = holders.setdefault(key.casefold(), name)
        if other != name:
            raise FormatError(
                f"the same files as those of {other!r}",
                tensor=name,
                expected="a unique key",
                found=repr(key),
                code="safe-key",
                hint="Dots and double underscores in names give the same key; convert the model again.",
            )
    return entries
