"""The libraries of this plugin, and the error if one is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from squish_core.api import ErrorCode, MissingPluginError

INSTALL = {
    "torch": "`pip install torch` (a CPU build is enough)",
    "transformers": "`pip install transformers`",
    "lm_eval": "`pip install lm-eval`",
}
"""Library -> command that installs it, in backticks."""


@contextmanager
def required() -> Iterator[None]:
    """Turn the ImportError of an absent library into a MissingPluginError that names it.

    Yields
    ------
    None
        To imports of the libraries in `INSTALL`.

    Raises
    ------
    MissingPluginError
        `not-installed` if one of them is absent; its hint has the command that installs it.

    Examples
    --------
    >>> with required():
    ...     raise ModuleNotFoundError("No module named 'lm_eval'", name="lm_eval")
    Traceback (most recent call last):
    ...
    squish_core.errors.MissingPluginError: squish-torch needs lm_eval, which is not installed...
    """
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in INSTALL:
            raise
        raise MissingPluginError(
            f"squish-torch needs {library}, which is not installed", code=ErrorCode.NOT_INSTALLED,
            hint=f"Run {INSTALL[library]}.",
        ) from None  # fmt: skip
