"""All other URL schemes, through fsspec (`memory://`, `sftp://`, `zip://...::...`), with the same checks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from squish_core.api import (
    ErrorCode,
    MissingPluginError,
    Source,
    SourceOpener,
    UsageError,
    install_command,
    redact,
)

from .opening import open_file
from .settings import Settings
from .source import Connection, StoreFolder
from .store import RequestError, Response

REFUSED = ("reference",)
"""File systems whose files contain addresses."""


class FsspecOpener(SourceOpener):
    """A file of any file system that fsspec supports."""

    def open(self, url: str, options: Mapping[str, Any]) -> Source:
        settings = Settings.of(options)
        if any(link.partition("://")[0].lower() in REFUSED for link in url.split("::")):
            raise UsageError(
                "a reference manifest cannot be opened, because it may refer to any address",
                found=redact(url),
                code=ErrorCode.USAGE,
                hint="Open the files that it was made from; zarr reads the manifest.",
            )
        files, path = _file_system(url)
        folder, slash, name = path.rstrip("/").rpartition("/")
        if url.endswith("/"):
            folder, slash, name = path.rstrip("/"), "/", ""
        shown = redact(url).partition("?")[0].rstrip("/")
        root = StoreFolder(
            source_id=self.id,
            store=FsspecStore(files, settings.deadline),
            prefix=folder + slash,
            address=shown.removesuffix(name) if name else f"{shown}/",
            is_listed=True,
        )
        return open_file(Connection(root, settings), name)


class FsspecStore:
    """The requests of `store.Store`, as fsspec's blocking calls in threads."""

    def __init__(self, files: Any, deadline: float) -> None:
        self._files, self._deadline = files, deadline

    async def range(self, path: str, start: int, stop: int, *, tag: str | None, version: str | None) -> Response:
        """Return a byte range; the caller compares `tag` and `version`."""
        return await self._within(self._range, path, start, stop)

    async def whole(self, path: str, limit: int) -> Response:
        """Return the whole file, of at most `limit` bytes."""
        return await self._within(self._range, path, 0, limit)

    async def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder."""
        listing = await self._within(self._files.ls, folder, True)
        return [entry["name"].rstrip("/").rpartition("/")[2] for entry in listing if entry["type"] == "file"]

    def _range(self, path: str, start: int, stop: int) -> Response:
        info = self._files.info(path)  # for each range: it shows whether the file changed
        if info.get("type") == "directory":
            raise FileNotFoundError(path)
        size = int(info["size"])
        data = self._files.cat_file(path, start=start, end=min(stop, size)) if size > start else b""
        tag = next((str(info[key]) for key in ("ETag", "etag", "checksum", "sha256") if info.get(key)), None)
        times = ("mtime", "LastModified", "last_modified", "created")
        modified = next((str(info[key]) for key in times if info.get(key)), None)
        return Response(memoryview(data), start, size, tag, modified, None, None)

    async def _within(self, call: Any, *arguments: Any) -> Any:
        try:
            return await asyncio.wait_for(asyncio.to_thread(call, *arguments), self._deadline)
        except FileNotFoundError:
            failure = RequestError("missing")
        except PermissionError:
            failure = RequestError("denied")
        except Exception:  # a file system may raise anything; its text may contain secrets
            failure = RequestError("unreachable")
        raise failure


def _file_system(url: str) -> tuple[Any, str]:
    try:
        from fsspec import available_protocols
        from fsspec.core import url_to_fs
    except ModuleNotFoundError:
        url_to_fs = None
    if url_to_fs is None:
        raise MissingPluginError(
            f"{url.partition('://')[0]}:// addresses are read by fsspec",
            file=redact(url),
            code=ErrorCode.NOT_INSTALLED,
            hint=f"Run `{install_command('squish-remote', extra='[fsspec]')}`.",
        )
    scheme = url.partition("://")[0]
    if scheme not in available_protocols() and "::" not in url:
        raise UsageError(
            "no source opens addresses of this scheme",
            found=redact(url),
            code=ErrorCode.USAGE,
            expected="https, s3, gs, az, hf, or a scheme of fsspec, such as sftp",
            hint="Check the scheme.",
        )
    try:
        files, path = url_to_fs(url)
    except ImportError as error:
        library = str(error).partition("\n")[0]
    except Exception as error:  # a file system may raise anything; its text may contain secrets
        raise UsageError(
            "fsspec cannot open the address",
            found=f"{redact(url)} ({type(error).__name__})",
            code=ErrorCode.USAGE,
            hint="Check the address.",
        ) from None
    else:
        return files, str(path)
    raise MissingPluginError("a library of fsspec is missing", found=library, code=ErrorCode.NOT_INSTALLED)
