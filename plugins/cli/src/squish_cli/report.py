"""`squish report`: a page about a file, from its header, and on request from its values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from attrs import field, frozen

from squish_core.display import to_json
from squish_core.errors import SquishError, redact

from .options import Assets, FileName, Format, Quiet, check_page
from .output import Answer, Progress

if TYPE_CHECKING:
    from squish_convert.compare.diff import Difference
    from squish_convert.statistics import Statistics

    from squish_core.file import File
    from squish_core.summary import Summary
    from squish_core.tensor import Tensor

SCHEMA = "squish/report/1"
WORST = 40
PENDING = "Values are still being read. The whole page replaces this one; reload it then."
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "vocab.txt", "spiece.model")
PARTS = {"vision_config": "vision", "audio_config": "audio"}
"""Key of a config.json -> the component that it declares."""


def report(
    file: FileName,
    other: Annotated[
        str | None, typer.Argument(metavar="FILE2", help="A second file, such as a conversion of the first.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="OUT", help="The page to write. By default, NAME.html in this folder."),
    ] = None,
    values: Annotated[
        bool, typer.Option("--values", help="Also read all values, for histograms and outliers.")
    ] = False,
    format: Format = None,  # noqa: A002
    assets: Assets = None,
    quiet: Quiet = False,
) -> Answer:
    """Write a page about a file.

    Shows what it is, where its bytes are, what would run it and what is wrong. The page needs no network, is light or
    dark as the reader's system, and holds the data as JSON. Reads only the header; with --values, also the values.
    With FILE2, compares both, which reads what differs. The page of the header is written first. Replaces nothing.
    """
    import squish_core as squish
    from squish_core.opening import open as open_file

    from .pages import element, last, page, write_page

    with ExitStack() as stack:
        opened = stack.enter_context(open_file(file, format, assets=assets))
        second = stack.enter_context(open_file(other)) if other is not None else None
        target = out or f"{_stem(opened.name)}.html"
        check_page(target)
        title, pending = last(opened.name, *([second.name] if second is not None else [])), values or second is not None
        data, parts = _content(opened, None, Values())
        note = [element("p", PENDING, class_="note")] if pending else []
        write_page(target, page(title, [*note, *parts], SCHEMA, data))
        if pending:
            found, compared = _values(opened, quiet) if values else Values(), None
            if second is not None:
                with Progress("comparing", quiet, file=redact(file)) as progress:
                    compared = squish.diff(opened, second, progress=progress)
            data, parts = _content(opened, compared, found)
            write_page(target, page(title, parts, SCHEMA, data), replaces=True)
    return Answer({**data, "target": target}, [f"wrote {target}"])


def _stem(name: str) -> str:
    """The name of the page: that of the file or folder, without a URL's parameters."""
    last = redact(name).partition("?")[0].rstrip("/").rpartition("/")[2] or "report"
    stem = last.removesuffix(Path(last).suffix) if Path(last).suffix else last
    return Path(stem).name or "report"


def _content(file: File, compared: Difference | None, found: Values) -> tuple[dict[str, Any], list[Any]]:
    """Return the document and the sections of the page."""
    from squish_convert.components import components
    from squish_convert.lineage import lineage
    from squish_convert.places import groups

    import squish_core as squish

    from . import sections

    summary, parts = file.summary(), components(file)
    layers, kinds, types = (groups(file, by) for by in ("layer", "kind", "type"))
    config, damage = _config(file)
    planned, checked, missing = file.plan(), squish.verify(file), missing_parts(file, summary, parts, config)
    missing += [("config.json", f"it cannot be read: {damage}")] if damage else []
    shown = [
        sections.about(file, summary, config, parts),
        sections.missing_parts(missing),
        sections.difference(compared) if compared is not None else "",
        sections.storage(file, layers, kinds, types),
        sections.values(found.statistics, found.scales) if found.statistics else "",
        sections.unread(found.problems),
        sections.plan(planned),
        sections.findings(checked),
        sections.tensors(file),
    ]
    lists = {"layers": layers, "kinds": kinds, "types": types}
    sizes = {name: len(names) for name, names in parts.items()}
    magnitudes = sections.magnitudes(statistics for _, statistics in found.statistics)
    data = {
        "file": file.name,
        "against": None if compared is None else compared.b,
        "target": "",
        "summary": {**summary.to_dict(), "components": sizes, "lineage": to_json(lineage(file))},
        **{name: [group.to_dict() for group in listed] for name, listed in lists.items()},
        "tensors": columns(file, [group.name for group in types]),
        "plan": sections.plan_groups(planned),
        "refused": sections.refusals(planned),
        "problems": to_json(checked.problems),
        "missing": [{"name": name, "why": why} for name, why in missing],
        "difference": None if compared is None else _compared(compared),
        "magnitudes": {str(k): count for k, count in sorted(magnitudes.items())},
        "scales": {str(k): count for k, count in sorted(found.scales.items())},
        "unread": [{"name": name, "why": why} for name, why in found.problems],
        "outliers": [_outliers(name, each) for name, each in sections.outliers(found.statistics)],
    }
    return data, shown


def _outliers(name: str, statistics: Statistics) -> dict[str, Any]:
    fields = ("mean", "std", "absmax", "outliers", "nan", "infinite")
    return {"name": name, **{field: to_json(getattr(statistics, field)) for field in fields}}


def columns(file: File, types: Sequence[str]) -> dict[str, list[Any]]:
    """Return the tensors as columns, which take half the space of rows; `stored_as` counts from 0 in `types`."""
    from squish_core.summary import stored_as

    numbers = {name: number for number, name in enumerate(types)}
    tensors = list(file.values())
    return {
        "names": [tensor.name for tensor in tensors],
        "shapes": [list(tensor.shape) for tensor in tensors],
        "stored_as": [numbers[stored_as(tensor.spec)] for tensor in tensors],
        "sizes": [tensor.nbytes for tensor in tensors],
    }


def _config(file: File) -> tuple[Mapping[str, Any], str]:
    """Return the config.json of a model, or nothing and why it cannot be read."""
    from squish_core.formats.json import load_json

    if "config.json" not in file.assets:
        return {}, ""
    try:
        found = load_json(file.assets["config.json"].numpy().data, "config.json", file.limits)
    except SquishError as error:
        return {}, error.message
    return found if isinstance(found, Mapping) else {}, ""


def missing_parts(
    file: File, summary: Summary, parts: Mapping[str, Any], config: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Return what the model lacks to be decoded or used, each with why it is needed."""
    lacks = [(kind.lacks, f"to decode {kind.stored_as}") for kind in summary.codecs if kind.lacks]
    names = {name.rpartition("/")[2] for name in file.assets}
    if file.format == "gguf":
        has_language = "general.architecture" in file.metadata and "token_embd.weight" in file
        no_tokens = has_language and not any(key.startswith("tokenizer.") for key in file.metadata)
        return [*lacks, *([("tokenizer", "to turn text into tokens: the metadata has none")] if no_tokens else [])]
    if not file.source.is_dir:
        return lacks
    if "config.json" not in names:
        return [*lacks, ("config.json", "to know the architecture")]
    if not names.intersection(TOKENIZERS):
        lacks.append(("tokenizer", f"to turn text into tokens: none of {', '.join(TOKENIZERS)}"))
    absent = {part: key for key, part in PARTS.items() if config.get(key) and part not in parts}
    return [*lacks, *((f"{part} component", f"config.json has {key}") for part, key in absent.items())]


@frozen
class Values:
    """What `--values` reads: statistics by tensor, the number of scales by magnitude, and what could not be read."""

    statistics: list[tuple[str, Statistics]] = field(factory=list)
    scales: Counter[int] = field(factory=Counter)
    problems: list[tuple[str, str]] = field(factory=list)


def _values(file: File, quiet: bool) -> Values:
    """Read every tensor once, with progress."""
    from squish_core.checking.check import SourceReader

    found, done, total = Values(), 0, sum(tensor.nbytes for tensor in file.values())
    encodings = (encoding for tensor in file.values() for encoding in tensor.spec.encodings[:1])
    parts = (part for encoding in encodings for part in encoding.parts.values())
    with Progress("reading", quiet, file=redact(file.name)) as progress, file.reading_ahead(parts):
        for name in file:
            tensor = SourceReader(file).file[name]  # keeps what it fetches: scales lie among the codes
            try:
                found.statistics.append((name, tensor.statistics()))
                found.scales.update(_scales(tensor))
            except SquishError as error:
                found.problems.append((name, error.message))
            done += tensor.nbytes
            progress(name, done, total)
    return found


def _scales(tensor: Tensor) -> Counter[int]:
    """Count the scales that are stored with a tensor's codes, by magnitude."""
    import numpy as np

    total, bound = Counter[int](), tensor.bound
    for panel in bound.panels() if bound.code_layout is not None else ():
        codes = bound.codes(panel)
        if codes is not None:
            scales = np.abs(np.asarray(codes.scale, np.float64))
            powers = np.floor(np.log2(scales[(scales > 0) & np.isfinite(scales)])).astype(int)
            total.update(dict(zip(*(each.tolist() for each in np.unique(powers, return_counts=True)))))
    return total


def _compared(difference: Difference) -> dict[str, Any]:
    """Return what the page shows of a difference."""
    from .sections import error_cells

    cells = error_cells((item.name, item.nmse) for item in difference.tensors)
    worst = sorted((item for item in difference.tensors if item.nmse), key=lambda item: -(item.nmse or 0))[:WORST]
    return {
        "same": difference.same,
        "states": dict(Counter(item.state for item in difference.tensors)),
        "cells": [{"layer": layer, "kind": kind, "nmse": to_json(nmse)} for (layer, kind), nmse in cells.items()],
        "tensors": to_json(worst),
    }
