"""The journal of a job: a line of JSON for each finished task, synced after the task's bytes.

The first line describes the job. A torn last line is dropped; any other damage is an error.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from squish_core.display import to_json
from squish_core.errors import FormatError, UsageError, WriteError
from squish_core.io.system import try_lock, unlink, user_name

from ..lock import differences, excerpt

VERSION = 1
SUFFIX = ".squish-journal"
_HEADER = {"job": dict, "owner": dict}
_TASK = {"task": int, "bytes": int, "sha256": str, "errors": list}
_FIRST = f'{{"squish_journal": {VERSION}'.encode()


def journal_path(target: Path, journal: Any = None) -> Path:
    """Return the path of a target's journal."""
    return target.with_name(target.name + SUFFIX) if journal is None else Path(journal)


class Journal:
    """The journal of a running job; `entries` has its finished tasks, by number."""

    def __init__(self, path: Path) -> None:
        self.path, self.header, self.entries = path, dict[str, Any](), dict[int, dict[str, Any]]()
        self._valid_bytes = 0
        self._file: Any = None

    def read(self) -> bool:
        """Read the journal of an earlier run, if there is one; FormatError if it is not a journal.

        A journal with an incomplete first line is removed: its job was killed before the first task.
        """
        try:
            *lines, torn = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return False
        except OSError as error:
            raise FormatError(f"cannot be read: {error.strerror}", file=str(self.path), code="journal") from None
        if not lines and _FIRST.startswith(torn[: len(_FIRST)]):
            self._open("r+b")
            self.remove()
            return False
        for number, line in enumerate(lines or [torn]):
            entry = self._parse(line, number)
            if number:
                self.entries[entry["task"]] = entry
            else:
                self.header = entry
            self._valid_bytes += len(line) + 1
        return True

    def check(self, job: Mapping[str, Any], tasks: int, steps: int) -> None:
        """Raise UsageError with the first difference between the journal's job and another one.

        FormatError if an entry has a number beyond the `tasks`, or an error sum has one beyond the `steps`.
        """
        stored = self.header["job"]
        for where, old, new in differences(stored, to_json(dict(job))):
            raise UsageError(
                f"belongs to another job: {where}",
                file=str(self.path),
                expected=excerpt(old),
                found=excerpt(new),
                code="journal",
                hint="Repeat the command that wrote it, or remove it to start anew.",
            )
        for number, entry in enumerate(self.entries.values(), 2):
            are_errors = all(_is_error(error) and error[0] in range(steps) for error in entry["errors"])
            if entry["task"] not in range(tasks) or not are_errors:
                raise self._damage(number, json.dumps(entry).encode())

    def owner(self) -> str:
        """User, host and time of the start of the job."""
        facts = dict.fromkeys(("user", "host", "pid", "time"), "?") | self.header["owner"]
        return "{user} on {host} (process {pid}) since {time}".format(**facts)

    def start(self, job: Mapping[str, Any]) -> None:
        """Create the journal of a new job."""
        self.header = {"squish_journal": VERSION, "owner": owner(), "job": to_json(dict(job))}
        self._open("xb")
        try:
            self._write(self.header)
        except OSError as error:
            self.remove()
            raise self._unwritable(error) from None

    def resume(self) -> None:
        """Continue after the last complete line."""
        self._open("r+b")
        self._file.truncate(self._valid_bytes)
        self._file.seek(self._valid_bytes)

    def append(self, entry: Mapping[str, Any]) -> None:
        """Record a finished task; durable on return."""
        try:
            self._write(entry)
        except OSError as error:
            raise self._unwritable(error) from None
        self.entries[entry["task"]] = dict(entry)

    def close(self) -> None:
        """Close the journal, which stays for `resume`."""
        if self._file is not None:
            self._file.close()

    def remove(self) -> None:
        """End the job."""
        self.close()
        with suppress(FileNotFoundError):
            unlink(self.path)

    def _open(self, mode: str) -> None:
        try:
            self._file = open(self.path, mode)  # noqa: SIM115 - closed when the job ends
        except OSError as error:
            raise self._unwritable(error) from None
        if try_lock(self._file.fileno()) is False:
            self.close()
            raise WriteError(
                "is in use by another process",
                file=str(self.path),
                code="locked",
                hint=f"It belongs to {self.owner()}." if self.header else "Wait for it.",
            )

    def _write(self, entry: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(entry, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            raise self._damage(number + 1, line) from None
        types = _TASK if number else _HEADER
        version = entry.get("squish_journal", VERSION) if isinstance(entry, dict) else None
        if version != VERSION or not all(isinstance(entry.get(key), kind) for key, kind in types.items()):
            raise self._damage(number + 1, line)
        return dict(entry)

    def _unwritable(self, error: OSError) -> WriteError:
        return WriteError(
            "cannot be written",
            file=str(self.path),
            found=error.strerror,
            code="unwritable",
            hint="Name another place with {option:journal=FILE}.",
        )

    def _damage(self, number: int, line: bytes) -> FormatError:
        return FormatError(
            f"is not a journal of a job: line {number}",
            file=str(self.path),
            found=repr(line[:60]),
            code="journal",
            hint="Remove it to start anew, or name another one with {option:journal=FILE}.",
        )


def _is_error(error: Any) -> bool:
    """Return whether a value has the fields of a `PanelError`."""
    return isinstance(error, list) and len(error) == 7 and {*map(type, error)} <= {int, float}


def owner() -> dict[str, Any]:
    """Describe this process for a journal."""
    return {
        "user": user_name(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
