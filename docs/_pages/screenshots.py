"""Pictures of the site by a headless Chromium: `make screenshots`; each page light, dark and on a phone of 390 px.

Dark is the theme's own switch, set in a copy of the page, because a headless browser has no preference.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PAGES = ("index", "howto/gguf-to-mlx", "reference/cli/convert")
LOOKS = {"light": ("light", 1280, 900), "dark": ("dark", 1280, 900), "phone": ("light", 390, 844)}
"""Name -> theme, width and height."""
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--hide-scrollbars",
    "--disable-gpu",
    "--allow-file-access-from-files",
    "--virtual-time-budget=4000",
)
FRAME = '<body style="margin:0"><iframe src="{page}" style="border:0;width:{width}px;height:{height}px"></iframe>'
SWITCH = 'document.body.dataset.theme = localStorage.getItem("theme") || "auto";'


def browser() -> str:
    """The first browser that is installed."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        print(f"make: no headless browser ({', '.join(BROWSERS)}; on Debian: apt install chromium), so left out")
        raise SystemExit
    return found


def themed(page: Path, theme: str) -> Path:
    """A copy of a page beside it that shows one theme."""
    copy = page.with_name(f"_{theme}-{page.name}")
    copy.write_text(page.read_text("utf-8").replace(SWITCH, f'document.body.dataset.theme = "{theme}";'), "utf-8")
    return copy


def main(site: Path, target: Path) -> None:
    """Take all pictures; headless Chromium has no window below 500 px, so a phone is a frame within a page."""
    target.mkdir(parents=True, exist_ok=True)
    for name in PAGES:
        for look, (theme, width, height) in LOOKS.items():
            page = themed(site.resolve() / f"{name}.html", theme)
            frame = page.with_name(f"_frame-{page.name}")
            frame.write_text(FRAME.format(page=page.name, width=width, height=height), "utf-8")
            picture = target.resolve() / f"{name.replace('/', '-')}-{look}.png"
            options = [*OPTIONS, f"--window-size={width},{height}", f"--screenshot={picture}"]
            try:
                subprocess.run((browser(), *options, frame.as_uri()), check=True, capture_output=True)
            finally:
                page.unlink()
                frame.unlink()
            print(picture.relative_to(Path.cwd()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
