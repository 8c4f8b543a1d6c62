"""Pages of `report` and of `--html`: one file with its style, a script, and the data as JSON; nothing is loaded.

Their content security policy allows this style and this script by their digests, and nothing else.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from squish_convert.html import Html, element, join, text

from squish_core.display import to_json
from squish_core.io.atomic import atomic_file
from squish_core.version import __version__

from .options import check_page
from .output import Answer


@cache
def _asset(name: str) -> str:
    """The style or the script."""
    return files("squish_cli").joinpath("page", name).read_text("utf-8")


def _digest(content: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def section(title: str, *content: object) -> Html:
    """Make a part of a page, with a heading; nothing without content.

    Parameters
    ----------
    title
        The heading.
    *content
        Text, which is escaped, and elements.

    Returns
    -------
    Html
        The element.

    Examples
    --------
    >>> from squish_cli.api import section
    >>> section("Sizes", "<4 bits>")
    '<section><h2>Sizes</h2>&lt;4 bits&gt;</section>'
    """
    shown = join(*content)
    return element("section", element("h2", title), shown) if shown else Html("")


def page(title: str, parts: Iterable[object], schema: str, data: Mapping[str, Any]) -> str:
    """Make a page of some sections.

    Parameters
    ----------
    title
        Heading; escaped, as all text.
    parts
        Sections and other elements.
    schema
        Schema of the data, such as `squish/report/1`.
    data
        What the command prints with `--json`; a block of the page holds it.

    Returns
    -------
    str
        The page, in UTF-8.

    Examples
    --------
    >>> from squish_cli.api import page, section
    >>> text = page("<model>", [section("Sizes", "4 bits")], "squish/report/1", {"file": "</script>"})
    >>> "<h1>&lt;model&gt;</h1>" in text, text.count("</script>")
    (True, 2)
    """
    style, script = _asset("page.css"), _asset("page.js")
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; base-uri 'none'; "
        "form-action 'none'"
    )
    block = json.dumps(to_json({"schema": schema, **data}), separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        block = block.replace(character, f"\\u{ord(character):04x}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" '
        f'content="light dark"><meta name="referrer" content="no-referrer">\n<title>{text(title)}</title>\n'
        f"<style>{style}</style></head>\n<body><main><h1>{text(title)}</h1>\n{join(*parts)}\n"
        f"<footer>squish-core {__version__}</footer></main>\n"
        f'<script type="application/json" id="data">{block}</script>\n<script>{script}</script></body></html>\n'
    )


def last(*names: str) -> str:
    """Return files as a title: the last part of each path or URL."""
    return " and ".join(Path(name).name or name for name in names)


def write_result(path: str, title: str, parts: Iterable[object], command: str, answer: Answer) -> None:
    """Write the page of a command's answer, for `--html`; its data is what `--json` prints."""
    from .app import NUMBERS

    write_page(path, page(title, parts, f"squish/{command}/{NUMBERS.get(command, 1)}", answer.data))


def write_page(path: str, content: str, *, replaces: bool = False) -> None:
    """Write a page, whole or not at all.

    Parameters
    ----------
    path
        The file, which must not exist.
    content
        The page.
    replaces
        Whether it replaces an earlier page of the same run.

    Examples
    --------
    >>> from squish_cli.api import page, write_page
    >>> write_page("page.html", page("model", [], "squish/report/1", {}))
    """
    if not replaces:
        check_page(path)
    with atomic_file(Path(path)) as sink:
        sink.write(content.encode("utf-8", "backslashreplace"))
