"""What an evaluation has summed so far, in a file, so that a long run continues after it was killed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from squish_convert.api import differences, library_versions, source_pins

from squish_core.api import File, FormatError, UsageError, atomic_file

VERSION = 1
LIBRARIES = ("numpy", "torch", "transformers")


class StateFile:
    """Sums of the finished windows, by what was measured; written anew after each window.

    Parameters
    ----------
    path
        The file; it need not exist.
    identity
        What the sums depend on: files, tokens, settings and versions.

    Raises
    ------
    FormatError
        The file is something else.
    UsageError
        Its sums are of another evaluation.
    """

    def __init__(self, path: str | Path, identity: Mapping[str, Any]) -> None:
        self._path = Path(path)
        self._document: dict[str, Any] = {"squish_eval": VERSION, "identity": json.loads(json.dumps(identity))}
        if not self._path.exists():
            return
        try:
            document = json.loads(self._path.read_bytes())
        except (OSError, ValueError, RecursionError):
            document = None
        if not isinstance(document, dict) or document.get("squish_eval") != VERSION:
            raise FormatError(
                "not the state of an evaluation",
                file=str(path),
                code="resume",
                expected=f'a JSON object with "squish_eval": {VERSION}',
                hint="Name a new file to start one.",
            )
        now = {name: json.dumps(value) for name, value in self._document["identity"].items()}
        stored = {name: json.dumps(document["identity"].get(name)) for name in now}
        for name, found, expected in differences(stored, now):
            raise UsageError(
                f"the stored state is of another evaluation: {name} differs",
                file=str(path),
                code="resume",
                expected=expected,
                found=found,
                hint="Repeat the command that wrote it, or name a new file.",
            )
        self._document = document

    def load(self, section: str) -> dict[str, Any]:
        """What was stored last; empty at first."""
        return dict(self._document.get(section, {}))

    def save(self, section: str, sums: Mapping[str, Any]) -> None:
        """Replace the file by one with these sums."""
        self._document[section] = sums
        with atomic_file(self._path) as sink:
            sink.write(json.dumps(self._document).encode())


def identity_of(files: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """What an evaluation's sums depend on: models (open files) or logits files (paths), and settings."""
    contents = {name: _content(file) for name, file in files.items()}
    return {**contents, **settings, "threads": torch.get_num_threads(), "versions": library_versions(*LIBRARIES)}


def _content(file: Any) -> Any:
    """What identifies the content of an open file, or of a path; None for None."""
    if isinstance(file, File):
        return [pin | {"name": Path(pin["name"]).name} for pin in source_pins(file)]
    if file is None:
        return None
    path = Path(file)
    stat = path.stat()
    return {"name": path.name, "size": stat.st_size, "modified_ns": stat.st_mtime_ns}
