"""The manifest: the names of the tensors, and what their files are called."""

from __future__ import annotations

from squish_core.api import FormatError, LimitError, Limits, SquishError, check_name, check_plain_name

from .folder import Folder

MANIFEST = "manifest.json"


def read(folder: Folder) -> dict[str, str]:
    """Name -> safe key, in load order; every key a plain file name that no other tensor has, in any case."""
    try:
        return _checked(folder.json(MANIFEST, "manifest"), folder.limits)
    except SquishError as error:
        raise error.within(file=MANIFEST) from None


def _checked(entries: dict[str, str], limits: Limits) -> dict[str, str]:
    if len(entries) > limits.tensors:
        raise LimitError("too many tensors", expected=f"at most {limits.tensors}", found=len(entries), code="count")
    holders: dict[str, str] = {}
    for name, key in entries.items():
        check_name(name, limits)
        if type(key) is not str:
            raise FormatError("the manifest names no file", tensor=name, found=type(key).__name__, code="manifest")
        try:
            check_plain_name(key, MANIFEST)
        except SquishError as error:
            raise FormatError(error.message, tensor=name, found=error.found, code="path") from None
        other = holders.setdefault(key.casefold(), name)
        if other != name:
            raise FormatError(
                f"has the same files as {other!r}", tensor=name, expected="a key of its own", found=repr(key),
                code="safe-key", hint="Dots and double underscores in names give the same key; convert the model anew.",
            )  # fmt: skip
    return entries
