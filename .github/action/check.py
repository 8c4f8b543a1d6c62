"""Checks the files of the action's inputs: annotations on stdout, a summary in Markdown, code 1 if a file has a fault.

FILES has paths and patterns, ENGINE the engine to check for, STRICT "true" or "false"; GITHUB_STEP_SUMMARY is the file
for the summary.
"""

from __future__ import annotations

import glob
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import unquote

SQUISH = (sys.executable, "-m", "squish_core")
ANNOTATION = re.compile(r"::(error|warning|notice) file=[^:]*::(.*)")
VERDICTS = {0: "ok", 1: "**faulty**"}


def files_of(patterns: str) -> Iterator[str]:
    """Yield the files of patterns; a pattern that matches nothing is taken as a path, for Squish's error."""
    for pattern in patterns.split():
        yield from sorted(glob.glob(pattern, recursive=True)) or [pattern]


def run(shown: set[str], *arguments: str) -> tuple[int, list[str]]:
    """Run a command of Squish, print its annotations that are not `shown` yet; return its code and what they say."""
    done = subprocess.run(
        [*SQUISH, *arguments, "--output", "github"], stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )
    lines = [line for line in done.stdout.splitlines() if line not in shown]
    shown.update(lines)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()
    found = [match for line in lines if (match := ANNOTATION.fullmatch(line))]
    return done.returncode, [f"{match[1]}: {unquote(match[2])}" for match in found if match[1] != "notice"]


def rows(files: list[str], engine: str, strict: bool) -> Iterator[tuple[str, int, int | None, list[str]]]:
    """Yield each file, the codes of its two checks (None: not checked), and what they found."""
    for file in files:
        shown: set[str] = set()
        code, found = run(shown, "verify", file, "--quiet", *(["--strict"] if strict else []))
        engine_code = None
        if engine:
            engine_code, more = run(shown, "check-model", file, "--for", engine)
            found += more
        yield file, code, engine_code, found


def main() -> int:
    """Check, write the summary, and return the exit code."""
    engine, strict = os.environ.get("ENGINE", "").strip(), os.environ.get("STRICT", "true").strip().lower()
    files = list(files_of(os.environ.get("FILES", "")))
    if not files or strict not in ("true", "false"):
        print("::error::the input `files` is empty" if not files else "::error::`strict` must be true or false")
        return 1
    results = list(rows(files, engine, strict == "true"))
    heading = f"| file | verify |{f' {engine} |' if engine else ''}"
    lines = ["## Weights", "", heading, "|" + "---|" * heading.count("|")]
    lines[-1] = lines[-1].removesuffix("---|")
    for file, code, engine_code, _ in results:
        # of the engine, 2 stands for "unknown"
        engine_cell = "" if engine_code is None else f" {VERDICTS.get(engine_code, 'unknown')} |"
        lines.append(f"| `{file}` | {VERDICTS.get(code, '**not readable**')} |{engine_cell}")
    lines += ["", *(f"- `{file}`: {text}" for file, *_, found in results for text in found)]
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(summary, "a", encoding="utf-8") as stream:
            stream.write("\n".join(lines) + "\n")
    return int(any(code != 0 or engine_code == 1 for _, code, engine_code, _ in results))


if __name__ == "__main__":
    sys.exit(main())
