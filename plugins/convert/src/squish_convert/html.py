"""Elements of HTML for notebooks and pages; every text is escaped, and control characters are made visible.

Notebooks and pages of the command line are built from them alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as escape_html

from squish_core.text import escape


class Html(str):
    """Markup, which is not escaped again.

    Examples
    --------
    >>> element("p", Html("<br>"), "<br>")
    '<p><br>&lt;br&gt;</p>'
    """

    __slots__ = ()


def text(value: object) -> str:
    """Return a value as HTML."""
    return value if isinstance(value, Html) else escape_html(escape(str(value)))


def breakable(name: str) -> Html:
    """Return a name that may be broken into lines after its dots.

    Parameters
    ----------
    name
        Name of a tensor; escaped.

    Returns
    -------
    Html
        The name with places to break it.

    Examples
    --------
    >>> breakable("blk.0.ffn_up")
    'blk.<wbr>0.<wbr>ffn_up'
    """
    return Html(text(name).replace(".", ".<wbr>"))


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
    """Make a table.

    Parameters
    ----------
    header
        Titles of the columns; no row of titles if all are empty.
    align
        "<" or ">" for each column; ">" are numbers.
    rows
        The cells: text, which is escaped, and elements.
    caption
        What the rows are.

    Returns
    -------
    Html
        The element.

    Examples
    --------
    >>> table(("", ""), "<>", [("norm", 128)])
    '<table><tbody><tr><td>norm</td><td class="n">128</td></tr></tbody></table>'
    """
    classes = [' class="n"' if side == ">" else "" for side in align]
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{text(cell)}</td>' for kind, cell in zip(classes, row))}</tr>" for row in rows
    )
    cells = "".join(f'<th scope="col"{kind}>{text(title)}</th>' for kind, title in zip(classes, header))
    head = f"<thead><tr>{cells}</tr></thead>" if any(header) else ""
    title = f"<caption>{text(caption)}</caption>" if caption else ""
    return Html(f"<table>{title}{head}<tbody>{body}</tbody></table>")


def facts(pairs: Iterable[tuple[object, object]]) -> Html:
    """Make a table of names and values.

    Parameters
    ----------
    pairs
        Names and values: text, which is escaped, and elements.

    Returns
    -------
    Html
        The element.

    Examples
    --------
    >>> facts([("bits", 4.5)])
    '<table class="facts"><tbody><tr><th scope="row">bits</th><td>4.5</td></tr></tbody></table>'
    """
    rows = "".join(f'<tr><th scope="row">{text(name)}</th><td>{text(value)}</td></tr>' for name, value in pairs)
    return Html(f'<table class="facts"><tbody>{rows}</tbody></table>')


def details(summary: object, *content: object, open_: bool = False) -> Html:
    """Make an element that unfolds.

    Parameters
    ----------
    summary
        What is always shown.
    *content
        Text, which is escaped, and elements.
    open_
        Whether it is unfolded at first.

    Returns
    -------
    Html
        The element.

    Examples
    --------
    >>> details("parts", "codes, scales")
    '<details><summary>parts</summary>codes, scales</details>'
    """
    return element("details", element("summary", summary), *content, open=open_)
