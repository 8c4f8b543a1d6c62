"""Typed errors for failed requests; they show the address without its secrets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from squish_core.api import ErrorCode, FileAccessError, FormatError, MissingFileError, SquishError

from .settings import Settings
from .store import RequestError, Response

CREDENTIALS = {
    "http": "Put user and password into the address, or use one that is signed.",
    "s3": "Credentials are looked for in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, then in the instance's role.",
    "gs": "Credentials are looked for in GOOGLE_APPLICATION_CREDENTIALS, then in the instance's role.",
    "az": "Credentials are looked for in AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY or a SAS token.",
    "hf": "The token is looked for in HF_TOKEN, then where `hf auth login` puts it.",
}
"""Source id -> hint about its credentials."""
MIRRORS = "Mirrors that have different tags: SQUISH_SOURCE=pin=size compares sizes alone."
REPLACED = "Open it again; what was read before is of the old content."
RENEW = (
    "What was read stays valid. Get a new address or credentials for the same content, and open it again; "
    "squish.open(evolve(file.source.pin, url=...)) makes sure that the content is the same."
)


ERRORS: dict[str, Callable[[str, Settings], SquishError]] = {
    "missing": lambda *_: MissingFileError("no such file", code=ErrorCode.MISSING, hint="Check the address."),
    "denied": lambda source_id, _: FileAccessError(
        "the server denies access", code=ErrorCode.DENIED, hint=CREDENTIALS.get(source_id)
    ),
    "expired": lambda *_: FileAccessError(
        "the access expired while the file was open", code="expired", hint=RENEW
    ),
    "changed": lambda *_: FormatError(
        "changed while it was open", code=ErrorCode.CHANGED, hint=f"{REPLACED} {MIRRORS}"
    ),
    "range": lambda *_: _not_a_range(),
    "redirect": lambda *_: FileAccessError(
        "the server redirects to an address that Squish does not follow", code="redirect",
        hint="Use the address that it leads to.",
    ),
    "host": lambda *_: FileAccessError(
        "the server's name is unknown", code=ErrorCode.UNREACHABLE, hint="Check the address."
    ),
    "connection": lambda *_: FileAccessError(
        "the connection is refused", code=ErrorCode.UNREACHABLE,
        hint="Check the host and the port, and that the server runs.",
    ),
    "certificate": lambda *_: FileAccessError(
        "the server's certificate is not trusted", code="certificate",
        hint="SSL_CERT_FILE may name a file with the certificate of its authority.",
    ),
    "refused": lambda *_: FileAccessError("the server rejects the request", code="rejected", hint="Check the address."),
    "unreachable": lambda _, settings: FileAccessError(
        f"cannot be reached within {settings.deadline:g} s", code=ErrorCode.UNREACHABLE,
        hint="Try again; SQUISH_SOURCE=deadline=... allows more time.",
    ),
}  # fmt: skip
"""Kind of a failed request -> function from the source id and the settings to its error."""


def error_of(
    failure: RequestError, file: str, source_id: str, offset: int | None, settings: Settings, *, is_open: bool = False
) -> SquishError:
    """Return the error for a failed request; `is_open`: whether the file was readable before."""
    facts = [f"{failure.retries + 1} attempts"] if failure.retries is not None else []
    facts += [f"status {failure.status}"] if failure.status else []
    facts = facts or (["no complete response"] if failure.kind == "unreachable" else [])
    kind = "expired" if failure.kind == "denied" and is_open else failure.kind
    return ERRORS[kind](source_id, settings).within(file=file, offset=offset, found=", ".join(facts) or None)


def check_response(response: Response, file: str, start: int, stop: int, settings: Settings, pin: Any = None) -> None:
    """Raise FormatError unless a response is the requested range, unencoded, of the opened content."""
    if response.encoding not in (None, "identity"):
        raise _wrong_range(file, start, "unencoded bytes", f"Content-Encoding {response.encoding!r}")
    if pin is not None:
        check_pin(response, file, pin, settings)
    if response.start != start or len(response.data) != stop - start:
        raise _wrong_range(
            file, start, f"{stop - start} bytes from {start}", f"{len(response.data)} bytes from {response.start}"
        )


def check_pin(response: Response, file: str, pin: Any, settings: Settings) -> None:
    """Raise FormatError (code `changed`) if the content differs from the opened one."""
    pairs: list[tuple[str, Any, Any]] = [("size", pin.size, response.size)]
    if settings.pin != "size":
        pairs += [("tag", pin.tag, response.tag)] if pin.tag or response.tag else []
        pairs += [("time", pin.modified, response.modified)] if not (pin.tag or response.tag) else []
    for fact, expected, found in pairs:
        if expected != found:
            hint = REPLACED
            if fact != "size":
                hint = f"{REPLACED} {MIRRORS}"
            raise FormatError(
                "changed while it was open",
                file=file,
                offset=response.start,
                expected=f"{fact} {expected}",
                found=f"{fact} {found}",
                code=ErrorCode.CHANGED,
                hint=hint,
            )


def _wrong_range(file: str, offset: int, expected: str, found: str) -> SquishError:
    return _not_a_range().within(file=file, offset=offset, expected=expected, found=found)


def _not_a_range() -> FormatError:
    return FormatError(
        "the server does not support byte ranges correctly",
        code=ErrorCode.BYTE_RANGE,
        hint="Download the file, or use a server that supports byte ranges.",
    )
