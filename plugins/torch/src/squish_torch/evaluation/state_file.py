"""The state file of an evaluation: its sums so far, so that an interrupted run can continue."""

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
    """The sums of the finished windows, by section; rewritten after each window.

    Parameters
    ----------
    path
        The file; it may not exist yet.
    identity
        What the sums depend on: files, tokens, settings and versions.

    Raises
    ------
    FormatError
        The file is not a state file.
    UsageError
        The sums belong to another evaluation.
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
        current = {name: json.dumps(value) for name, value in self._document["identity"].items()}
        stored = {name: json.dumps(document["identity"].get(name)) for name in current}
        for name, found, expected in differences(stored, current):
            raise UsageError(
                f"the state file belongs to another evaluation: {name} differs",
                file=str(path),
                code="resume",
                expected=expected,
                found=found,
                hint="Repeat the command that wrote it, or name a new file.",
            )
        self._document = document

    def load(self, section: str) -> dict[str, Any]:
        """Return the sums of a section; empty if there are none."""
        return dict(self._document.get(section, {}))

    def save(self, section: str, sums: Mapping[str, Any]) -> None:
        """Rewrite the file with these sums."""
        self._document[section] = sums
        with atomic_file(self._path) as sink:
            sink.write(json.dumps(self._document).encode())


def identity_of(files: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity of an evaluation: models (open files) or logits files (paths), settings and versions."""
    contents = {name: _content(file) for name, file in files.items()}
    return {**contents, **settings, "threads": torch.get_num_threads(), "versions": library_versions(*LIBRARIES)}


def _content(file: Any) -> Any:
    """Return the identity of the content of an open file, or of a path; None for None."""
    if isinstance(file, File):
        return [pin | {"name": Path(pin["name"]).name} for pin in source_pins(file)]
    if file is None:
        return None
    path = Path(file)
    stat = path.stat()
    return {"name": path.name, "size": stat.st_size, "modified_ns": stat.st_mtime_ns}
