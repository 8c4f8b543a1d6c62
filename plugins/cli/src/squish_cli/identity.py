"""Commands that identify the content of files: hash, prove.

Apart from `checks`, whose `verify` takes its options from here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from squish_core.codes import ErrorCode
from squish_core.errors import UsageError, redact
from squish_core.plugins.sources import scheme_of

from .options import FileName, Format, Quiet
from .output import Answer, Progress

if TYPE_CHECKING:
    from squish_core.errors import Problem

Manifest = Annotated[
    str | None,
    typer.Option("--manifest", metavar="FILE", help="Compare the tensors with this manifest of `squish hash`."),
]
Signature = Annotated[
    str | None,
    typer.Option("--signature", metavar="FILE", help="Check this signature of `squish hash --sign` by --key."),
]
PublicKey = Annotated[
    str | None, typer.Option("--key", metavar="FILE", help="The public key, in PEM, for --signature.")
]


def hash(  # noqa: A001
    file: FileName,
    gguf: Annotated[
        bool, typer.Option("--gguf", help="Print the sums of llama.cpp's gguf-hash: xxh64, sha1, sha256 and uuid.")
    ] = False,
    manifest: Annotated[
        str | None,
        typer.Option("--manifest", metavar="OUT", help="Write the ids as JSON, for `squish verify --manifest`."),
    ] = None,
    sign: Annotated[
        str | None,
        typer.Option(
            "--sign", metavar="KEY", help="Sign the files with this private EC key in PEM (OpenSSF model signing)."
        ),
    ] = None,
    signature: Annotated[
        str | None,
        typer.Option("--signature", metavar="OUT", help="Where --sign writes. By default, FILE.sig."),
    ] = None,
    format: Format = None,  # noqa: A002
    quiet: Quiet = False,
) -> Answer:
    """Print an id of a file's content, by its codes.

    An id covers names, shapes and codes, not metadata or the format: a copy of the codes in another format keeps it,
    unless the copy renames tensors.
    """
    from squish_convert.content import gguf_sums, hash_content, save_manifest

    from squish_core.opening import open as open_file

    if signature and not sign:
        raise UsageError("--signature needs --sign KEY", code=ErrorCode.USAGE, hint="Add --sign key.pem.")
    if sign:
        check_is_here(file)
    with open_file(file, format) as opened, Progress("hashing", quiet, file=redact(file)) as progress:
        sums = gguf_sums(opened) if gguf else []
        content = hash_content(opened, progress=progress)
    data: dict[str, Any] = {
        **content.to_dict(),
        "gguf": [{"kind": line.kind, "hex": line.hex, "name": line.name} for line in sums] if gguf else None,
        "manifest": manifest,
        "signature": None,
    }
    lines = [str(line) for line in sums] or [f"{content.content}  {redact(file)}"]
    if manifest:
        save_manifest(content, manifest)
        lines.append(f"wrote {manifest}")
    if sign:
        from squish_convert.signing import sign as sign_model

        data["signature"] = signature or f"{file.rstrip('/')}.sig"
        sign_model(file, sign, data["signature"])
        lines.append(f"wrote {data['signature']}")
    return Answer(data, lines, verbatim=True)


def prove(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The quantized file.")],
    base: Annotated[str, typer.Argument(metavar="BASE", help="The model that it was made from, in any format.")],
    imatrix: Annotated[
        list[str] | None,
        typer.Option("--imatrix", metavar="FILE", help="Activation statistics that the encoder may have had."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="List every tensor that is not exact, not just the first 20.")
    ] = False,
    quiet: Quiet = False,
) -> Answer:
    """Tell which encoder made a quantized file from its base.

    Encodes the base again, under the names and rows of FILE, and compares every stored byte: exact, near (another
    rounding or weighting), or different. Exit code 1 unless every tensor is exact.
    """
    from squish_convert.prove import SHOWN, proof_lines
    from squish_convert.prove import prove as prove_file

    with Progress("encoding", quiet, file=redact(file)) as progress:
        proof = prove_file(file, base, activations=imatrix, progress=progress)
    return Answer(proof.to_dict(), list(proof_lines(proof, None if everything else SHOWN)), 0 if proof.proven else 1)


def check_is_here(file: str) -> None:
    """Raise UsageError for a URL: a signature covers every byte of files on this machine."""
    if scheme_of(file) is not None:
        hint = "Download it first: `squish cp URL FILE`."
        raise UsageError("a signature is of files on this machine", file=redact(file), code=ErrorCode.USAGE, hint=hint)


def attested(
    file: str,
    format: str | None,  # noqa: A002
    manifest: str | None,
    signature: str | None,
    key: str | None,
    quiet: bool,
) -> tuple[Problem, ...]:
    """Findings of `squish verify` against a manifest and a signature."""
    if bool(signature) != bool(key):
        raise UsageError(
            "--signature and --key belong together",
            code=ErrorCode.USAGE,
            hint="Add --key key.pub." if signature else f"Add --signature {redact(file)}.sig.",
        )
    problems: tuple[Problem, ...] = ()
    if signature and key:
        check_is_here(file)
        from squish_convert.signing import check_signature

        problems += check_signature(Path(file), key, signature)
    if manifest:
        from squish_convert.content import check_manifest

        from squish_core.opening import open as open_file

        with open_file(file, format) as opened, Progress("hashing", quiet, file=redact(file)) as progress:
            problems += check_manifest(opened, manifest, progress=progress)
    return problems
