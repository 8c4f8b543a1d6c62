"""The site: `make docs` builds it. The Markdown is plain; what is generated comes from `_pages`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "lint")]

import _pages  # noqa: E402
from _pages import llms  # noqa: E402
from pygments.lexers.special import TextLexer  # noqa: E402
from sphinx.highlighting import lexers  # noqa: E402

from squish_core.text import SITE  # noqa: E402
from squish_core.version import __version__  # noqa: E402

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Squish"
author = "the developers of Squish"
version = release = __version__
extensions = ["myst_parser", "sphinx_copybutton", "sphinx_design"]
exclude_patterns = ["_pages"]
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
smartquotes = False  # they would make one dash of the two of an option
lexers["mermaid"] = TextLexer()  # shown as text: what draws it would be fetched from elsewhere

html_theme = "furo"
html_title = "Squish"
html_baseurl = SITE
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/squish.svg"
html_show_copyright = False
html_theme_options = {"sidebar_hide_name": False, "light_logo": "squish.svg", "dark_logo": "squish.svg"}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def setup(app: Sphinx) -> None:
    """Write the pages of the reference before Sphinx looks for pages, and `llms.txt` when it has written its own."""
    app.connect("config-inited", lambda app, config: _pages.write(Path(app.srcdir)))
    app.connect("build-finished", llms.write)
