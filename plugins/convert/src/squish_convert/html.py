"""Elements of HTML for notebooks and pages; every text is escaped, and control characters are made visible.

Notebooks and pages of the command line are built from them alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as escape_html

from squish_core.text import escape


class Html(str):
    """Markup, which is not escaped again."""

    __slots__ = ()


def text(value: object) -> str:
    """Return a value as HTML."""
    return value if isinstance(value, Html) else escape_html(escape(str(value)))


def join(*parts: object) -> Html:
    """Put parts one after another."""
    return Html("".join(map(text, parts)))


def element(name: str, *content: object, **attributes: object) -> Html:
    """Make an element.

    Parameters
    ----------
    name
        Name of the element.
    *content
        Text, which is escaped, and elements.
    **attributes
        Attributes; `class_` is the class, and those of None are left out.

    Returns
    -------
    Html
        The element.

    Examples
    --------
    >>> element("td", "<b>", class_="n")
    '<td class="n">&lt;b&gt;</td>'
    """
    pairs = {
        key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value not in (None, False)
    }
    listed = "".join(f" {key}" if value is True else f' {key}="{text(value)}"' for key, value in pairs.items())
    return Html(f"<{name}{listed}>{join(*content)}</{name}>")


def table(header: Sequence[object], align: str, rows: Iterable[Sequence[object]], caption: object = "") -> Html:
    """Return a table; columns with ">" in `align` are numbers."""
    classes = [' class="n"' if side == ">" else "" for side in align]
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{text(cell)}</td>' for kind, cell in zip(classes, row))}</tr>" for row in rows
    )
    cells = "".join(f'<th scope="col"{kind}>{text(title)}</th>' for kind, title in zip(classes, header))
    head = f"<thead><tr>{cells}</tr></thead>" if any(header) else ""
    title = f"<caption>{text(caption)}</caption>" if caption else ""
    return Html(f"<table>{title}{head}<tbody>{body}</tbody></table>")


def facts(pairs: Iterable[tuple[object, object]]) -> Html:
    """Return a table of names and values."""
    rows = "".join(f'<tr><th scope="row">{text(name)}</th><td>{text(value)}</td></tr>' for name, value in pairs)
    return Html(f'<table class="facts"><tbody>{rows}</tbody></table>')


def details(summary: object, *content: object, open_: bool = False) -> Html:
    """Return content that unfolds."""
    return element("details", element("summary", summary), *content, open=open_)
