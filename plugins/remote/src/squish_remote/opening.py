"""Openers: addresses of web servers and buckets as remote files and folders."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from attrs import evolve

from squish_core.api import (
    ErrorCode,
    MissingFileError,
    Pin,
    RemoteTarget,
    Source,
    SourceOpener,
    SquishError,
    UsageError,
    redact,
)

from .settings import Settings
from .source import Connection, RemoteFolder, RemoteSource, StoreFolder
from .store import Store
from .upload import BucketTarget


class WebOpener(SourceOpener):
    """`http://` and `https://`: one file, or a folder if the address ends in a slash. Folders are not listed."""

    def open(self, url: str, options: Mapping[str, Any]) -> Source:
        settings = Settings.of(options)
        parts = _split(url)
        folder, _, last = parts.path.rpartition("/")
        host = parts.netloc.rpartition("@")[2]
        query = f"?{parts.query}" if parts.query else ""
        store = Store(f"{parts.scheme}://{host}{folder}{query}", settings.deadline, _authorization(parts.netloc))
        root = StoreFolder(
            source_id=self.id, store=store, prefix="", address=redact(f"{parts.scheme}://{host}{folder}/")
        )
        return open_file(Connection(root, settings), unquote(last))


class BucketOpener(SourceOpener):
    """`s3://bucket/key` and similar; `?versionId=...` names a version. A folder is a prefix with files below it."""

    def open(self, url: str, options: Mapping[str, Any]) -> Source:
        settings = Settings.of(options)
        parts = _split(url)
        folder, slash, last = unquote(parts.path).strip("/").rpartition("/")
        if parts.path.endswith("/") and last:
            folder, last = f"{folder}{slash}{last}", ""
        prefix = f"{folder}/" if folder else ""
        root = StoreFolder(
            source_id=self.id,
            store=Store(f"{parts.scheme}://{parts.netloc}", settings.deadline),
            prefix=prefix,
            address=f"{parts.scheme}://{parts.netloc}/{prefix}",
            is_listed=True,
            version=parse_qs(parts.query).get("versionId", [None])[0],
        )
        return open_file(Connection(root, settings), last)

    def open_pinned(self, pin: Pin, options: Mapping[str, Any]) -> Source:
        """Reopen the same version if the bucket keeps versions."""
        version = f"?versionId={quote(pin.version, safe='')}" if pin.version and "?" not in pin.url else ""
        return self.open(pin.url + version, options)

    def create(self, url: str, options: Mapping[str, Any]) -> RemoteTarget:
        settings, parts = Settings.of(options), _split(url)
        key = unquote(parts.path).strip("/")
        if not key or parts.query:
            raise UsageError(
                "is not an object that can be written",
                found=redact(url),
                expected=f"{parts.scheme}://bucket/key",
                code=ErrorCode.USAGE,
            )
        bucket = f"{parts.scheme}://{parts.netloc}"
        return BucketTarget(redact(f"{bucket}/{key}"), key, Store(bucket, settings.deadline), settings, self.id)


def _split(url: str) -> Any:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        parts = None
    if parts is None or not parts.netloc.rpartition("@")[2]:
        raise UsageError(
            "is not an address",
            found=redact(url),
            expected="scheme://host/path",
            code=ErrorCode.USAGE,
        )
    return parts


def _authorization(netloc: str) -> dict[str, str]:
    """Return the header for the user and password in an address; it is sent to this host only."""
    login, at, _ = netloc.rpartition("@")
    if not at:
        return {}
    return {"authorization": "Basic " + base64.b64encode(unquote(login).encode()).decode()}


def open_file(connection: Connection, name: str) -> Source:
    """Open a file or folder in the connection's folder by name."""
    try:
        if not name:
            return RemoteFolder(connection)
        try:
            source = RemoteSource(connection, connection.run(connection.open(name)))
            connection.root = evolve(connection.root, version=None)  # other files have their own versions
            return source
        except MissingFileError as error:
            if not connection.root.is_listed:
                error.hint = "Check the address; that of a folder ends in a slash."
            elif folder := _as_folder(connection, name):
                return folder
            raise
    except BaseException:
        connection.close()
        raise


def _as_folder(connection: Connection, name: str) -> Source | None:
    """Open a folder by name; None if it contains no files."""
    with suppress(SquishError):
        if connection.run(connection.names(name)):
            connection.enter(name)
            return RemoteFolder(connection)
    return None
