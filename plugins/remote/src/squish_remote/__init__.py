"""Declares the sources of URLs; imports none of them, nor a network library."""

from __future__ import annotations

from typing import Any

from squish_core.api import SourceInfo, hookimpl

OPTIONS = {
    "deadline": "Seconds that one byte range may take, retries included (60).",
    "pin": "match: ask for the content that was opened (If-Match) and compare; compare: only compare, for servers that "
    "refuse If-Match; size: compare the size alone, for mirrors that have different tags (match).",
    "piece": "Bytes of one request, about (8388608).",
    "in_flight": "Requests under way at once, at most (16).",
    "memory": "Bytes of pieces that are read ahead and not used yet, at most (100663296).",
    "cache": "A folder in which byte ranges are kept; by default nothing is kept on disk.",
    "cache_size": "Bytes that the folder may hold, about (10737418240).",
    "gap": "Bytes between two ranges up to which they are read in one request (65536).",
}


@hookimpl
def squish_sources() -> list[SourceInfo]:
    """Return the sources of this plugin."""
    return [
        SourceInfo(
            id=name,
            title=title,
            factory=f"squish_remote.{factory}",
            schemes=schemes,
            options=OPTIONS,
        )
        for name, title, factory, schemes in (
            ("http", "web servers", "opening:WebOpener", ("http", "https")),
            ("s3", "S3 and stores that speak its protocol", "opening:BucketOpener", ("s3",)),
            ("gs", "Google Cloud Storage", "opening:BucketOpener", ("gs",)),
            ("az", "Azure Blob Storage", "opening:BucketOpener", ("az",)),
            ("hf", "the Hugging Face Hub", "hub:HubOpener", ("hf",)),
            ("fsspec", "every other file system of fsspec", "generic:FsspecOpener", ("*",)),
        )
    ]


@hookimpl
def squish_commands(app: Any) -> None:
    """Add `squish serve` and `squish refs`."""
    from .commands import EXAMPLES, refs, serve

    for name, command in (("serve", serve), ("refs", refs)):
        document = f"squish_remote.documents:{name.title()}"
        app.command(name, examples=EXAMPLES[name], document=document)(command)
