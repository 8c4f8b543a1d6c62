"""`llms.txt`: the pages with a sentence each, in Markdown, for programs that read documentation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HEAD = """# Squish

> Opens, checks, converts and runs compressed transformer weights in any format (GGUF, safetensors, GPTQ, AWQ, MLX,
> ONNX, UQFF, Core ML, zTensor and others). Weights stay compressed, quantized codes are kept bit for bit, and every
> choice is explained. Command `squish`, Python module `squish_core`; formats, codecs and backends are plugins.

The links lead to the pages in Markdown. Commands print JSON with `--json` and end with 0 (success), 1 (a fault or a
difference) or 2 (could not run; nothing was written).
"""
SECTIONS = {
    "start": "Start", "howto": "How to", "explain": "Explanations", "reference": "Reference", "formats": "Formats",
    "codecs": "Codecs", "backends": "Backends",
}  # fmt: skip
OTHERS = "More"


def first_sentence(document: nodes.document) -> str:
    """The first sentence of a page's first paragraph."""
    paragraph = next((node for node in document.findall(nodes.paragraph)), None)
    words = " ".join(paragraph.astext().split()) if paragraph is not None else ""
    return f"{words.partition('. ')[0].rstrip('.')}." if words else ""


def text(app: Sphinx) -> str:
    """The whole file."""
    lines: dict[str, list[str]] = {title: [] for title in (*SECTIONS.values(), OTHERS)}
    for name in sorted(app.env.found_docs):
        if name != app.config.root_doc:
            title = SECTIONS.get(name.partition("/")[0], OTHERS) if "/" in name else OTHERS
            address = f"{app.config.html_baseurl}_sources/{name}.md.txt"
            sentence = first_sentence(app.env.get_doctree(name))
            lines[title].append(f"- [{app.env.titles[name].astext()}]({address}): {sentence}\n")
    return HEAD + "".join(f"\n## {title}\n\n{''.join(rows)}" for title, rows in lines.items() if rows)


def write(app: Sphinx, error: Exception | None) -> None:
    """Write the file beside the pages."""
    if error is None and app.builder.name == "html":
        Path(app.outdir, "llms.txt").write_text(text(app), encoding="utf-8")
