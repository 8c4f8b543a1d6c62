"""Error codes that the core, plugins or callers depend on; docs/errors.md lists all codes."""

from __future__ import annotations


class ErrorCode:
    """Codes of errors, refusals and findings that code depends on, as in `SquishError.code`.

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
    """An invalid `backend=`."""
    BROKEN = "broken"
    """A plugin could not be loaded."""
    BYTE_RANGE = "byte-range"
    """A server does not answer a byte range correctly."""
    CHANGED = "changed"
    """A file changed after it was opened, planned or locked."""
    CODES = "codes"
    """Quantized codes that are listed as numbers, because no codec combines them with their scales."""
    CONFIG = "config"
    """A model's configuration is missing, incomplete or invalid."""
    CONFLICT = "conflict"
    """Several distributions provide one id."""
    CONTRADICTION = "contradiction"
    """Two statements about a tensor or model exclude each other."""
    DENIED = "denied"
    """A server requires credentials, or rejects them."""
    DIGEST = "digest"
    """A digest does not match."""
    DUPLICATE = "duplicate"
    """A name or key appears twice."""
    EDIT_RUNNING = "edit-running"
    """A file is being edited; its state before the edit is read."""
    ENCODE = "encode"
    """A rule of `encode=` that cannot apply to any tensor."""
    ENGINE = "engine"
    """The engine that a target is for would refuse it."""
    EXISTS = "exists"
    """A target already exists."""
    FILE_KIND = "file-kind"
    """A folder, link or pipe instead of a file, or a file instead of a folder."""
    FORK = "fork"
    """An open remote file is used in a forked process."""
    FOLDER = "folder"
    """A folder without the files of a format."""
    IMAGE = "image"
    """The layout of a target depends on what is written."""
    IMPORT = "import"
    """A plugin's implementation cannot be imported."""
    MEMORY = "memory"
    """Out of memory."""
    MISSING = "missing"
    """A file or folder does not exist."""
    NO_CHAIN = "no-chain"
    """No backend can run a tensor."""
    NOT_FINITE = "not-finite"
    """Values or results that are NaN or infinite."""
    NOT_INSTALLED = "not-installed"
    """A plugin or library is not installed."""
    OP = "op"
    """An invalid `op=`."""
    OPTION = "option"
    """An invalid option of a format."""
    PARAMS = "params"
    """Invalid parameters of a codec."""
    PLUGIN_BUG = "plugin-bug"
    """A plugin raised an error other than SquishError, or violated its interface."""
    POLICY = "policy"
    """An invalid `policy=`."""
    RANGE = "range"
    """A finite value overflows in an encoding."""
    REFUSED = "refused"
    """A target cannot store a tensor in its encoding."""
    REPLAN = "replan"
    """Codes do not fit the target as planned."""
    ROPE = "rope"
    """A RoPE scaling that a layout cannot express, or that is invalid."""
    SHARD = "shard"
    """The shards of a model do not match their index."""
    SPEC = "spec"
    """Text that is not of the form `ID:key=value`."""
    TORN_APPEND = "torn-append"
    """An append was interrupted; the state before it is read."""
    UNCOVERED = "uncovered"
    """A backend does not support the data; the next offer is tried."""
    UNDECLARED_SCALES = "undeclared-scales"
    """Codes beside scales or transforms that nothing declares; only their stored bytes can be used."""
    UNKNOWN = "unknown"
    """The format is not recognized."""
    UNMAPPED = "unmapped"
    """A family of models does not list a tensor, or a tensor that it requires is missing."""
    UNREACHABLE = "unreachable"
    """A server cannot be reached or does not answer in time."""
    UNREADABLE = "unreadable"
    """A file or the values of a tensor cannot be read."""
    USAGE = "usage"
    """An invalid argument."""
    WHOLE = "whole"
    """An encoding of the whole model, which only a backend can run."""


BUGS = (ErrorCode.PLUGIN_BUG, ErrorCode.MEMORY)
"""Codes of errors that input must never cause."""
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
