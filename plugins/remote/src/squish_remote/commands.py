"""`squish serve` and `squish refs`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer
from squish_cli.api import TEXT, Answer, options, print_document, style
from squish_convert.api import as_format

from squish_core.api import ErrorCode, MissingPluginError, atomic_file, install_command, redact
from squish_core.api import open as open_file

EXAMPLES = {
    "serve": ("squish serve model.safetensors --to gguf --encode q8_0", "squish serve model/ --to gguf --port 8080"),
    "refs": ("squish refs model.safetensors refs.json", "squish refs https://host/model.safetensors refs.json"),
}
SCHEMA = "squish/serve/1"
Source = Annotated[str, typer.Argument(metavar="SRC", help="The file to read.")]


def serve(
    src: Source,
    to: options.To,
    encode: options.Encode = None,
    names: options.Names = None,
    requantize: options.Requantize = False,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="N", help="Port; 0 takes a free one.", max=65535, min=0)] = 0,
) -> None:
    """Serve a checkpoint over HTTP as another format.

    Nothing is written: bytes are computed on request. Prints the addresses first, then serves byte ranges until it is
    interrupted. Tensors are encoded as they are read.
    """
    assert to is not None
    try:
        from .serve import ImageServer, run
    except ModuleNotFoundError as error:
        raise MissingPluginError(
            f"serving needs {error.name}",
            code=ErrorCode.NOT_INSTALLED,
            hint=f"Run `{install_command('squish-remote', extra='[serve]')}`.",
        ) from None
    with open_file(src) as source:
        server = ImageServer(source, as_format(source, to, encode, rename=names, requantize=requantize))

        def ready(address: str) -> None:
            urls = [f"{address}/{quote(name)}" for name in server.files]
            if style() == TEXT:
                print("\n".join(urls), flush=True)
            else:
                print_document(SCHEMA, {"file": source.name, "format": server.format, "urls": urls}, line=True)

        run(server, host, port, ready)


def refs(
    src: Source,
    out: Annotated[str, typer.Argument(metavar="OUT.json", help="The manifest to write.")],
) -> Answer:
    """Write references (kerchunk JSON) for zarr.

    With them, zarr reads the tensors over fsspec. Dense tensors become arrays; parts of quantized ones become
    arrays of bytes, which zarr does not decode.
    """
    from .references import manifest

    with open_file(src) as source, atomic_file(Path(out)) as sink:
        document = manifest(source, src)
        sink.write(json.dumps(document).encode())
    count = sum(key.endswith("/zarr.json") for key in document["refs"])
    return Answer({"source": redact(src), "target": out, "arrays": count}, [f"wrote {out}: {count} arrays of {src}"])
