"""The snapshot in a folder of Hugging Face's cache."""

from __future__ import annotations

from pathlib import Path

from squish_core.codes import ErrorCode
from squish_core.errors import FormatError

PREFIX, SNAPSHOTS = "models--", "snapshots"
"""Start of the name of a model's folder in the cache, `models--ORG--NAME`, and its folder of revisions."""


def snapshot_of(folder: Path) -> Path:
    """The files of a model's folder in the cache: the snapshot that `refs/main` names; without one, the only one.

    Any other folder is returned unchanged. FormatError if the main snapshot is missing, or unknown among several.
    """
    snapshots = folder / SNAPSHOTS
    if not folder.name.startswith(PREFIX) or not snapshots.is_dir():
        return folder
    try:
        names = sorted(each.name for each in snapshots.iterdir() if each.is_dir())
        main = folder / "refs" / "main"
        revision = main.read_text("utf-8")[:100].strip() if main.is_file() else ""
    except (OSError, ValueError):
        return folder
    if revision in names:
        return snapshots / revision
    if len(names) != 1 or revision:
        fault = "has several snapshots, and no refs/main names one" if names else "has no snapshot"
        raise FormatError(
            "has no snapshot of the revision in refs/main" if revision else fault,
            file=str(folder), code=ErrorCode.FOLDER, expected=revision or None, found=", ".join(names[:3]) or None,
            hint="Name the folder of one: snapshots/REVISION." if names else "Download the model again.",
        )  # fmt: skip
    return snapshots / names[0]
