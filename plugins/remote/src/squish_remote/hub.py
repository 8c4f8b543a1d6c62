"""`hf://owner/repo[@revision]/path`: huggingface_hub resolves the revision to a commit, obstore reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from attrs import evolve

from squish_core.api import (
    ErrorCode,
    FileAccessError,
    MissingFileError,
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
from .store import Store


class HubOpener(SourceOpener):
    """Files and folders of the Hugging Face Hub at one commit: two requests to the Hub, and no listing."""

    def open(self, url: str, options: Mapping[str, Any]) -> Source:
        repository, revision, path = _parse(url)
        commit, files, endpoint, token = _resolve(repository, revision, url)
        folder, name = _split_path(files, path, f"hf://{repository}@{commit}/{path}")
        prefix = f"{folder}/" if folder else ""
        settings = Settings.of(options)
        settings = evolve(settings, pin="compare") if settings.pin == "match" else settings  # the commit is the address
        base = f"{endpoint}/{repository}/resolve/{commit}/{quote(folder)}".rstrip("/")
        headers = {"authorization": f"Bearer {token}"} if token else None
        root = StoreFolder(
            source_id=self.id,
            store=Store(base, settings.deadline, headers),
            prefix="",
            is_listed=True,
            address=f"hf://{repository}@{commit}/{prefix}",
            commit=commit,
            listing=_folders(files, prefix),
        )
        return open_file(Connection(root, settings), name)


def _parse(url: str) -> tuple[str, str | None, str]:
    """Split an address into repository, revision and path."""
    owner, _, rest = url.removeprefix("hf://").partition("/")
    repo, _, path = rest.partition("/")
    repo, at, revision = repo.partition("@")
    if not owner or not repo or (at and not revision):
        raise UsageError(
            "not an address of the Hub",
            found=redact(url),
            expected="hf://owner/repo[@revision]/path",
            code=ErrorCode.USAGE,
        )
    return f"{owner}/{repo}", unquote(revision) or None, unquote(path).strip("/")


def _resolve(repository: str, revision: str | None, url: str) -> tuple[str, list[str], str, str | None]:
    """Resolve a revision: return the commit, its file names, the Hub's address and the token."""
    try:
        import huggingface_hub
        from huggingface_hub import constants, errors
    except ModuleNotFoundError:
        huggingface_hub = None
    if huggingface_hub is None:
        raise MissingPluginError(
            "needs huggingface_hub",
            file=redact(url),
            code=ErrorCode.NOT_INSTALLED,
            hint=f"Run `{install_command('squish-remote', extra='[hf]')}`.",
        )
    sign_in = "Sign in (`hf auth login`, or HF_TOKEN) with an account that may read it."
    kinds: tuple[tuple[type[Exception], type[FileAccessError], str, str], ...] = (
        (errors.GatedRepoError, FileAccessError, ErrorCode.DENIED, f"Accept its terms on the Hub. {sign_in}"),
        (errors.RevisionNotFoundError, MissingFileError, ErrorCode.MISSING, "Name a branch, a tag or a commit."),
        (errors.RepositoryNotFoundError, MissingFileError, ErrorCode.MISSING, f"Check the name. {sign_in}"),
        (Exception, FileAccessError, ErrorCode.UNREACHABLE, "Try again."),
    )
    try:
        info = huggingface_hub.HfApi().model_info(repository, revision=revision)
        files = [file.rfilename for file in info.siblings or ()]
        return str(info.sha), files, constants.ENDPOINT.rstrip("/"), huggingface_hub.get_token()
    except Exception as error:
        answer = getattr(error, "server_message", None) or type(error).__name__
        _, kind, code, hint = next(entry for entry in kinds if isinstance(error, entry[0]))
    raise kind(f"the Hub answers: {answer}", file=redact(url), code=code, hint=hint)


def _split_path(files: list[str], path: str, address: str) -> tuple[str, str]:
    """Split a path into folder and file name; the name of a folder is empty."""
    if path in files:
        folder, _, name = path.rpartition("/")
        return folder, name
    if not path or any(file.startswith(f"{path}/") for file in files):
        return path, ""
    near = ", ".join(files[:5])
    raise MissingFileError("no such file", file=address, code=ErrorCode.MISSING, hint=f"The repository has: {near}.")


def _folders(files: list[str], prefix: str) -> dict[str, tuple[str, ...]]:
    """Return the files of each folder below a prefix."""
    folders: dict[str, list[str]] = {"": []}
    for file in files:
        if file.startswith(prefix):
            folder, _, name = file.removeprefix(prefix).rpartition("/")
            folders.setdefault(folder, []).append(name)
    return {folder: tuple(sorted(names)) for folder, names in folders.items()}
