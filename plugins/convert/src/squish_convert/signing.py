"""Signatures of models by OpenSSF model signing (the package model-signing) with a local key.

The signature covers every file of the model as it is stored. https://model-signing.dev
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from squish_core.codes import ErrorCode
from squish_core.errors import FormatError, MissingPluginError, Problem, UsageError
from squish_core.io.paths import missing
from squish_core.plugins.catalog import install_command

from .content import check_replaced


def sign(model: str | Path, key: str | Path, signature: str | Path) -> None:
    """Sign a file or folder with a private key, as `model_signing sign key` does.

    Parameters
    ----------
    model
        The file, or the model's folder.
    key
        A private EC key in PEM.
    signature
        The file to write, a Sigstore bundle; another one is replaced, and nothing else.

    Raises
    ------
    UsageError
        The key cannot be used, or the file to write exists and is not a signature.
    MissingPluginError
        model-signing is not installed.

    Examples
    --------
    >>> sign("model.gguf", "key.pem", "model.gguf.sig")  # doctest: +SKIP
    """
    _readable(model, key)
    check_replaced(signature, _check_bundle, "a signature")
    config = _configured("signing", "private", key, signature)
    try:
        config.sign(Path(model), Path(signature))
    except OSError as error:
        raise missing(Path(error.filename or signature), error) from None


def check_signature(model: str | Path, key: str | Path, signature: str | Path) -> tuple[Problem, ...]:
    """Check a signature of a file or folder with a public key, as `model_signing verify key` does.

    Parameters
    ----------
    model
        The file, or the model's folder.
    key
        A public EC key in PEM.
    signature
        The signature.

    Returns
    -------
    tuple of Problem
        An error if the signature is not by this key, or not of these files; empty otherwise.

    Raises
    ------
    FormatError
        The signature is not one.
    UsageError
        The key cannot be used.
    MissingPluginError
        model-signing is not installed.

    Examples
    --------
    >>> check_signature("model.gguf", "key.pub", "model.gguf.sig")  # doctest: +SKIP
    ()
    """
    _readable(model, key, signature)
    _check_bundle(signature)
    config = _configured("verifying", "public", key, signature)
    try:
        config.verify(Path(model), Path(signature))
    except Exception as error:  # several kinds of its libraries
        reason = str(error) or type(error).__name__
        changed = "Signature mismatch" in reason
        message = "the files are not those that were signed" if changed else f"is not by this key: {reason[:200]}"
        where = Path(signature).name
        return (Problem(code=ErrorCode.DIGEST, severity="error", where=where, message=message),)
    return ()


def _check_bundle(signature: str | Path) -> None:
    """Raise FormatError for a file that is not a Sigstore bundle with an envelope."""
    try:
        document = json.loads(Path(signature).read_bytes())
        found = ", ".join(document)[:80]
        if {"verificationMaterial", "dsseEnvelope"} <= document.keys():
            return
    except OSError as error:
        raise missing(Path(signature), error) from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        found = str(error)[:80]
    raise FormatError(
        "not a signature of a model",
        file=str(signature),
        code="signature",
        expected="a Sigstore bundle in JSON",
        found=found,
        hint="`squish hash FILE --sign KEY` writes one.",
    )


def _readable(*paths: str | Path) -> None:
    """Raise MissingFileError for a path that cannot be read."""
    for path in paths:
        try:
            Path(path).stat()
        except OSError as error:
            raise missing(Path(path), error) from None


def _configured(module: str, kind: str, key: str | Path, signature: str | Path) -> Any:
    """Return a configuration of model-signing that uses a key and leaves out the signature itself."""
    config, hashing = _module(module).Config(), _module("hashing").Config()
    use = config.use_elliptic_key_signer if kind == "private" else config.use_elliptic_key_verifier
    try:
        use(**{f"{kind}_key": key})
    except (ValueError, TypeError, OSError) as error:
        hint = "`openssl ecparam -name prime256v1 -genkey -noout -out key.pem` makes one, "
        hint += "`openssl ec -in key.pem -pubout -out key.pub` its public key."
        raise UsageError(
            "the key cannot be used",
            file=str(key),
            expected=f"a {kind} key of an elliptic curve, in PEM and without a password",
            found=str(error)[:160],
            code="signature",
            hint=hint,
        ) from None
    return config.set_hashing_config(hashing.set_ignored_paths(paths=[signature], ignore_git_paths=True))


def _module(name: str) -> Any:
    """Return a module of model-signing."""
    from importlib import import_module

    try:
        return import_module(f"model_signing.{name}")
    except ImportError:
        raise MissingPluginError(
            "signatures need the package model-signing",
            code=ErrorCode.NOT_INSTALLED,
            hint=f"Run `{install_command('squish-convert', extra='[sign]')}`.",
        ) from None
