"""The output of a job at a URL: files appear one by one, each complete; files that refer to others appear last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path

from squish_core.codes import ErrorCode
from squish_core.errors import FormatError, SquishError, WriteError
from squish_core.io.remote_target import RemoteTarget
from squish_core.io.source import Source

_PIECE = 8 << 20
JOB = ".squish-job"
"""Suffix of the URL where workers read the job."""

OpenTarget = Callable[[str], RemoteTarget]
OpenSource = Callable[[str], Source]


class RemoteStaging:
    """Like `Staging`, at a URL. Nothing is staged there: workers upload whole files.

    `literals`: the files that hold no tensor, which `publish` writes.
    """

    def __init__(
        self, target: RemoteTarget, literals: Mapping[str, bytes], open_target: OpenTarget, open_source: OpenSource
    ) -> None:
        self.target, self._literals = target, literals
        self._open_target, self._open_source = open_target, open_source
        self._url, self._resumes, self._is_stored = str(target).rstrip("/"), False, False
        self.notes: list[str] = []

    @property
    def exists(self) -> bool:
        """Whether there is an earlier run to continue; its journal says what is done."""
        return True

    def check_target(self, *, overwrite: bool, resume: bool) -> None:
        """Raise WriteError if a file is at the URL."""
        self._resumes = resume
        if not resume:
            self.target.check(overwrite=overwrite)

    def create(self, files: Mapping[str, int], mode: int | None) -> None:
        """Does nothing: files appear when they are complete."""

    def lock(self) -> None:
        """Does nothing: the journal is local, and files are created, never replaced."""

    def file(self, name: str) -> str:
        """URL of an output file by its name in the target."""
        return f"{self._url}/{name}" if name else self._url

    def check_sizes(self, files: Mapping[str, int]) -> None:
        """Does nothing: a file is complete or absent; tasks read what they wrote."""

    def store_job(self, data: bytes) -> str:
        """Write the description of the job, and return where workers read it.

        WriteError (code `locked`) if there is one of another job, which runs, or was killed.
        """
        url = self._url + JOB
        try:
            target = self._open_target(url)
            with closing(target), target.opened("", size=len(data), overwrite=self._resumes) as write:
                write(data)
        except WriteError as error:
            if error.code != ErrorCode.EXISTS:
                raise
            raise WriteError(
                "is being written by another job, or one that was killed", file=self._url, found=url, code="locked",
                hint="Wait for it, go on with {option:resume=True} where its journal is, or remove the object.",
            ) from None  # fmt: skip
        self._is_stored = True
        return url

    def publish(self) -> None:
        """Write the files that hold no tensor, indexes last."""
        for name in sorted(self._literals, key=lambda name: name.endswith(".json")):
            data = self._literals[name]
            try:
                with self.target.opened(name, size=len(data), overwrite=False) as write:
                    write(data)
            except WriteError as error:
                if error.code != ErrorCode.EXISTS or self._content(name) != data:
                    raise

    def remove(self) -> None:
        """Remove the description of the job, unless it is another client's."""
        if not self._is_stored:
            return
        with suppress(SquishError), closing(self._open_target(self._url + JOB)) as target:
            target.remove("")

    def close(self) -> None:
        """Leave the files for the next run."""
        self.remove()

    def _content(self, name: str) -> bytes:
        with closing(self._open_source(self.file(name))) as source:
            return bytes(source.read(0, source.size))


def upload(path: Path, target: RemoteTarget, name: str, open_source: Callable[[], Source], *, overwrite: bool) -> None:
    """Write a file to a target at a URL. An existing file must have the same bytes: a task may run twice."""
    try:
        with path.open("rb") as file, target.opened(name, size=path.stat().st_size, overwrite=overwrite) as write:
            while data := file.read(_PIECE):
                write(data)
    except WriteError as error:
        if error.code != ErrorCode.EXISTS or not _same(path, open_source):
            raise


def _same(path: Path, open_source: Callable[[], Source]) -> bool:
    try:
        source = open_source()
    except FormatError:
        return False
    with closing(source), path.open("rb") as file:
        return source.size == path.stat().st_size and all(
            file.read(_PIECE) == bytes(source.read(start, min(_PIECE, source.size - start)))
            for start in range(0, source.size, _PIECE)
        )
