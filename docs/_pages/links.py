"""Checks the built site: every link within it leads to a file and an anchor; nothing names this machine."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.links: list[str] = []
        self.anchors = {""}
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def broken(site: Path) -> list[str]:
    """Links that lead nowhere, and pages with an absolute path of this machine."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    root, found = str(Path.cwd()), []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        if root in path.read_text("utf-8"):
            found.append(f"{name}: names {root}")
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                found.append(f"{name}: {link} leads nowhere")
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{name}: {link} names a section that is not there")
    return found


if __name__ == "__main__":
    faults = broken(Path(sys.argv[1]))
    print("\n".join(faults) or "every link leads somewhere")
    raise SystemExit(bool(faults))
