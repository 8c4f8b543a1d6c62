"""Prints the tests that a change reaches: `python tests/selection.py [BASE]`; `make check` runs them.

The change is what differs from the merge base with BASE (`origin/main`, or else `main`), new files included. It reaches
the distributions whose files it touches and those that depend on them; all tests, if it touches the core, the helpers
of the tests or a file of the root. (Not `select.py`: that is a module of the standard library.)
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EVERYTHING = ["tests/core", "tests/convert", "tests/cli", "plugins"]
OWN_TESTS = {"plugins/convert": "tests/convert", "plugins/cli": "tests/cli"}
"""Distribution without tests in its folder -> where they are."""
SNIPPETS = re.compile(r"(README|CONTRIBUTING|docs/(start|howto|explain)/[^/]+)\.md")
SNIPPET_TESTS = ("tests/cli/test_documented_examples.py", "tests/cli/test_pages.py")
"""Pages whose blocks run, and the tests that run them."""
WITHOUT_TESTS = ("docs/", "benchmarks/", "fuzz/", "examples/", ".github/", ".ci/")


def git(*words: str) -> list[str]:
    """The lines that git prints; none if it fails."""
    done = subprocess.run(("git", *words), cwd=ROOT, capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else []


def changed_files(base: str | None) -> list[str]:
    """Files that differ from the merge base with a branch."""
    bases = (git("merge-base", "HEAD", name) for name in ([base] if base else ["origin/main", "main"]))
    start = next(filter(None, bases), ["HEAD"])
    return [*git("diff", "--name-only", *start), *git("ls-files", "--others", "--exclude-standard")]


def dependents() -> dict[str, set[str]]:
    """Folder of a distribution -> the folders of those that depend on it, itself included."""
    projects = {}
    for file in sorted(ROOT.glob("plugins/*/pyproject.toml")):
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        projects[project["name"]] = (f"plugins/{file.parent.name}", project.get("dependencies", ()))
    needs = {name: {re.split(r"[^\w-]", each)[0] for each in texts} for name, (_, texts) in projects.items()}
    for _ in needs:  # until the longest chain is followed
        for name, direct in needs.items():
            needs[name] = direct.union(*(needs[each] for each in direct if each in needs))
    return {
        folder: {folder, *(projects[other][0] for other in projects if name in needs[other])}
        for name, (folder, _) in projects.items()
    }


def selected(files: list[str]) -> list[str]:
    """The folders of tests for changed files."""
    reached: set[str] = set()
    graph = dependents()
    for file in files:
        folder = "/".join(file.split("/")[:2])
        if SNIPPETS.fullmatch(file):
            reached.update(SNIPPET_TESTS)
        elif folder in graph:
            reached |= graph[folder]
        elif file.startswith("docs/howto/"):
            reached.add("tests/cli/test_pages.py")
        elif re.match(r"tests/(core|convert|cli|lint)/test_", file):
            reached.add(file)
        elif not file.startswith(WITHOUT_TESTS) and not file.endswith(".md"):
            return EVERYTHING
    tests = sorted({OWN_TESTS.get(folder, folder) for folder in reached})
    return [
        path
        for path in tests
        if (ROOT / path).exists() and (path.startswith("tests") or (ROOT / path / "tests").exists())
    ]


if __name__ == "__main__":
    print("\n".join(selected(changed_files(sys.argv[1] if len(sys.argv) > 1 else None))))
