"""Error codes that the core, a plugin or a caller switches on; docs/errors.md lists all codes."""

from __future__ import annotations


class ErrorCode:
    """Codes of errors, refusals and findings on which code decides; each is the text that `SquishError.code` has.

    Examples
    --------
    >>> import squish_core as squish
    >>> try:
    ...     squish.open("no/such/file")
    ... except squish.SquishError as error:
    ...     error.code == ErrorCode.MISSING
    True
    """

    AMBIGUOUS = "ambiguous"
    """Several formats match a file equally well."""
    BACKEND = "backend"
    """A `backend=` that makes no sense."""
    BROKEN = "broken"
    """A plugin could not be loaded."""
    BYTE_RANGE = "byte-range"
    """A server answers a byte range with other bytes than those of the range."""
    CHANGED = "changed"
    """A file is not what it was when it was opened, planned or locked."""
    CONFLICT = "conflict"
    """Several distributions bring one id."""
    DENIED = "denied"
    """A server wants credentials, or better ones."""
    DIGEST = "digest"
    """Bytes are not those of their digest."""
    EDIT_RUNNING = "edit-running"
    """A file is being edited; what was complete before is read."""
    ENCODE = "encode"
    """A rule of `encode=` that makes no sense for any tensor."""
    FILE_KIND = "file-kind"
    """A folder, a link, a pipe where a file is expected, or a file where a folder is."""
    FORK = "fork"
    """An open remote file is used in a forked process."""
    FOLDER = "folder"
    """A folder without the files of a format."""
    IMPORT = "import"
    """A plugin's implementation cannot be imported."""
    MEMORY = "memory"
    """There is not enough memory."""
    MISSING = "missing"
    """There is no such file or folder."""
    NO_CHAIN = "no-chain"
    """No backend runs a tensor."""
    NOT_INSTALLED = "not-installed"
    """A plugin or library is not installed."""
    OP = "op"
    """An `op=` that makes no sense."""
    OPTION = "option"
    """An option of a format that makes no sense."""
    PARAMS = "params"
    """Parameters of a codec that make no sense."""
    PLUGIN_BUG = "plugin-bug"
    """A plugin raised something else than a SquishError, or broke its interface."""
    POLICY = "policy"
    """A `policy=` that makes no sense."""
    RANGE = "range"
    """A value does not stay finite in an encoding."""
    REFUSED = "refused"
    """A target has no form for a tensor as it is stored."""
    SHARD = "shard"
    """A model's shards and their index do not agree."""
    SPEC = "spec"
    """Text that cannot be read as `ID:key=value`."""
    TORN_APPEND = "torn-append"
    """An append was interrupted; what was complete before is read."""
    UNCOVERED = "uncovered"
    """A backend has no way to hold these data: the next one in the chain is tried."""
    UNKNOWN = "unknown"
    """No format is recognized."""
    UNREACHABLE = "unreachable"
    """A server cannot be reached, or does not answer in time."""
    UNREADABLE = "unreadable"
    """The system does not let a file be read, or no value of a tensor can be had."""
    USAGE = "usage"
    """An argument that makes no sense."""
    WHOLE = "whole"
    """An encoding of the whole model, which a backend runs or nobody does."""


BUGS = (ErrorCode.PLUGIN_BUG, ErrorCode.MEMORY)
"""Codes of errors that no input may cause."""
CANNOT_RUN = (
    ErrorCode.MISSING, ErrorCode.UNREADABLE, ErrorCode.FILE_KIND, ErrorCode.NOT_INSTALLED, ErrorCode.BROKEN,
    ErrorCode.IMPORT, ErrorCode.UNKNOWN, ErrorCode.AMBIGUOUS, ErrorCode.FOLDER, ErrorCode.DENIED,
    ErrorCode.UNREACHABLE,
)  # fmt: skip
"""Codes of errors on opening that say nothing against the file's content."""
USAGE_CODES = frozenset(
    {ErrorCode.USAGE, ErrorCode.POLICY, ErrorCode.OP, ErrorCode.SPEC, ErrorCode.OPTION, ErrorCode.BACKEND}
)
"""Codes of errors about an argument: no file or tensor is at fault, so none is filled in."""
