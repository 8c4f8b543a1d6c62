"""The staging area for the output of a job until it is published.

A local target has a folder beside it, with files at their final size from the start, kept for the next run. At a URL,
files appear one by one, each complete; files that refer to others appear last.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path

from squish_core.codes import ErrorCode
from squish_core.errors import FormatError, SquishError, WriteError
from squish_core.io.atomic import check_parent, check_target, creation, remove_dead, sync_folder, sync_rename
from squish_core.io.paths import make_folders
from squish_core.io.source import Source
from squish_core.io.system import BINARY, IS_POSIX, is_same_file, lockable, open_folder, replace, set_mode, try_lock
from squish_core.io.urls import RemoteTarget

_PIECE = 8 << 20
JOB = ".squish-job"
"""Suffix of the URL where workers read the job."""

OpenTarget = Callable[[str], RemoteTarget]
OpenSource = Callable[[str], Source]


class RemoteStaging:
    """Like `Staging`, for a target at a URL. Nothing is staged: workers upload whole files.

    `literals`: files without tensors, which `publish` writes.
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
        """Whether an earlier run can be resumed: always, since its journal lists the finished files."""
        return True

    def check_target(self, *, overwrite: bool, resume: bool) -> None:
        """Raise WriteError if a file exists at the URL."""
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

    def take_back(self, files: Mapping[str, int]) -> None:
        """Does nothing: a file is complete or absent."""

    def store_job(self, data: bytes) -> str:
        """Write the description of the job, and return its URL for workers.

        WriteError (code `locked`) if another job has one there, which is running or was killed.
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
                "is being written by another job, or one that was killed",
                file=self._url,
                found=url,
                code="locked",
                hint="Wait for it, go on with {option:resume=True} where its journal is, or remove the object.",
            ) from None
        self._is_stored = True
        return url

    def publish(self) -> None:
        """Write the files without tensors, indexes last."""
        for name in sorted(self._literals, key=lambda name: name.endswith(".json")):
            data = self._literals[name]
            try:
                with self.target.opened(name, size=len(data), overwrite=False) as write:
                    write(data)
            except WriteError as error:
                if error.code != ErrorCode.EXISTS or self._content(name) != data:
                    raise

    def remove(self) -> None:
        """Remove the description of the job, if this client wrote it."""
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


class Staging:
    """The temporary `.NAME.<tag>.part` of a target, locked while this process runs; `tag` has 16 hexadecimal digits.

    `output` is the file or folder that `publish` renames to the target. `is_set`: the target is but the name of a set
    of shards, which are renamed one by one, the first one last.
    """

    def __init__(self, target: Path, tag: str, *, is_folder: bool, is_set: bool = False) -> None:
        self.target, self.is_folder, self._is_set = target, is_folder, is_set
        self.path = target.with_name(f".{target.name}.{tag}.part")
        self.output, self.job, self._publishing = self.path / "output", self.path / "job", self.path / "publishing"
        self._fd: int | None = None
        self.notes: list[str] = []

    @property
    def exists(self) -> bool:
        """Whether an earlier run left its output."""
        return self.output.exists()

    @property
    def is_published(self) -> bool:
        """Whether an earlier run was killed after it renamed the output."""
        return self.path.is_dir() and not self.exists and (self._publishing if self._is_set else self.target).exists()

    def check_target(self, *, overwrite: bool, resume: bool) -> None:
        """Raise WriteError if the target cannot be written; a file may be replaced, a folder may not."""
        if self.is_folder and resume and self.is_published:
            check_parent(self.target)
        else:
            check_target(self.target, is_folder=self.is_folder)

    def create(self, files: Mapping[str, int], mode: int | None) -> None:
        """Create the output files at their sizes, or nothing. `mode`: their permissions, masked by the umask."""
        self.notes += remove_dead(self.target)
        folder_mode = 0o777 if mode is None else mode | (mode & 0o444) >> 2 | 0o700
        with creation(self.target):
            try:
                make_folders(self.target)
                self.path.mkdir(folder_mode)
            except FileExistsError:
                raise self._locked() from None
            self.lock()
            try:
                if "" not in files:
                    self.output.mkdir(folder_mode)
                for name, size in files.items():
                    self._allocate(Path(self.file(name)), size, mode)
                for folder in (*(entry for entry in self.path.rglob("*") if entry.is_dir()), self.path):
                    sync_folder(folder)
            except BaseException:
                self.remove()
                raise

    def lock(self) -> None:
        """Lock the folder, if there is one; WriteError (code `locked`) if another process uses it."""
        if self.path.is_dir():
            self._fd = open_folder(self.path)
            if try_lock(self._fd) is False or not is_same_file(lockable(self.path), self._fd):
                self.close()
                raise self._locked()

    def file(self, name: str) -> str:
        """Path of an output file by its name in the target."""
        return str(self.output / name if name else self.output)

    def published(self, name: str) -> Path:
        """Path of an output file after `publish`, by its name in the target."""
        return (self.target.parent if self._is_set else self.target) / name if name else self.target

    def take_back(self, files: Mapping[str, int]) -> None:
        """Take back what an earlier run had begun to publish.

        FormatError if an output file is missing, or its size has changed since it was created.
        """
        for name, size in files.items():
            path = Path(self.file(name))
            if not path.exists() and self._publishing.exists() and self.published(name).is_file():
                replace(self.published(name), path)
            found = path.stat().st_size if path.is_file() else None
            if found != size:
                raise FormatError(
                    "has another size than the job gave it",
                    file=str(path),
                    expected=size,
                    found=found,
                    code=ErrorCode.CHANGED,
                    hint="Remove the journal to start anew.",
                )

    def store_job(self, data: bytes) -> str:
        """Write the description of the job, and return its path for workers."""
        with creation(self.target):
            self.job.write_bytes(data)
        return str(self.job)

    def publish(self) -> None:
        """Rename the output to the target, unless an earlier run has."""
        with creation(self.target):
            for folder in (*(entry for entry in self.path.rglob("*") if entry.is_dir()), self.path):
                sync_folder(folder)
            if self._is_set:
                self._publish_set()
            elif not self.is_published:
                replace(self.output, self.target)
        self.notes += sync_rename(self.target)

    def _publish_set(self) -> None:
        """Rename the shards; the marker lets a run that resumes take back those that an earlier run has renamed."""
        self._publishing.touch()
        sync_folder(self.path)
        if self.exists:
            for name in sorted(os.listdir(self.output), reverse=True):
                replace(self.output / name, self.published(name))
            self.output.rmdir()

    def remove(self) -> None:
        """Remove the folder."""
        if not IS_POSIX:
            self.close()
        with suppress(OSError):
            shutil.rmtree(self.path)
        self.close()

    def close(self) -> None:
        """Leave the folder for the next run."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _allocate(self, path: Path, size: int, mode: int | None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        old = None
        if not self.is_folder and self.target.exists():
            old = stat.S_IMODE(self.target.stat().st_mode) & 0o777
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | BINARY
        fd = os.open(path, flags, old if old is not None else 0o666 if mode is None else mode)
        try:
            if old is not None:
                set_mode(fd, old)
            os.ftruncate(fd, size)
            os.fsync(fd)
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise OSError(error.errno, f"{size:,} bytes are too large for this file system") from None
            raise
        finally:
            os.close(fd)

    def _locked(self) -> WriteError:
        return WriteError(
            "is being written by another process",
            file=str(self.target),
            code="locked",
            hint=f"Wait for it. If none runs, remove {str(self.path)!r}.",
        )
