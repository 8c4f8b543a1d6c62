"""A conversion as a JSON document: arguments, pins of the source, decisions, layout and versions.

Its SHA-256 names the job. A document is never trusted: the conversion is planned again, and any difference is an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from squish_core.display import to_json
from squish_core.errors import FormatError, UsageError, redact
from squish_core.file import File
from squish_core.guard import gc_paused
from squish_core.io.atomic import atomic_file
from squish_core.limits import default

from ..lock import differences, excerpt, plugin_lock, source_pins
from ..plan import ConversionPlan, output_image, shards_image
from ..step import Step

VERSION = 1
ARGUMENTS = ("src", "dst", "to", "encode", "only", "assets", "rename", "part", "activations", "requantize", "recipe")
"""Arguments of `convert` that decide what is written."""


class JobFile:
    """The file of a plan: read before the conversion is planned, then compared with the plan, or written.

    `arguments`: the caller's, completed by the stored ones.
    """

    def __init__(self, path: Path, arguments: Mapping[str, Any]) -> None:
        self._file, self._stored = str(path), read_document(path)
        self._document_arguments = document_arguments(arguments)
        if self._stored is not None:
            self._document_arguments = stored_arguments(self._stored, self._document_arguments, self._file)
        encode = self._document_arguments.get("encode")
        if isinstance(encode, list) and all(isinstance(rule, list) for rule in encode):
            encode = dict(encode)
        self.arguments = {key: arguments.get(key) or self._document_arguments.get(key) for key in ARGUMENTS} | {
            "encode": arguments.get("encode") or encode
        }

    def compare_or_write(self, plan: ConversionPlan, source: File) -> None:
        """Write the document, or raise UsageError with the first difference from the stored one."""
        document = job_document(plan, source, self._document_arguments)
        self._stored = self._stored or read_document(Path(self._file))  # another process may have written it meanwhile
        if self._stored is None:
            with atomic_file(Path(self._file)) as sink:
                sink.write(dumps(document))
            return
        difference = next(differences(self._stored, to_json(document)), None)
        if difference:
            raise _differs(self._file, *difference)


@gc_paused()
def job_document(plan: ConversionPlan, source: File, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan of a conversion as plain data.

    Parameters
    ----------
    plan, source
        The plan of the conversion, and its source.
    arguments
        The user's values of `ARGUMENTS`.

    Returns
    -------
    dict
        Data for JSON. The same inputs give the same bytes of `dumps`.

    Examples
    --------
    >>> from pathlib import Path
    >>> from squish_convert.plan import plan_conversion
    >>> with squish.open("model.gguf") as file:
    ...     document = job_document(plan_conversion(file, Path("out.gguf")), file, {"src": "model.gguf"})
    >>> document["target"]["format"]
    'gguf'
    """
    return {
        "squish_plan": VERSION,
        "arguments": {key: value for key, value in arguments.items() if value},
        "source": {"format": source.format_spec, "files": list(source_pins(source))},
        "target": {"format": plan.format, "options": dict(plan.options), "packing": plan.packing},
        "rules": [{"pattern": rule.pattern, "spec": str(rule.spec), "overflow": rule.overflow} for rule in plan.rules],
        "tensors": [_tensor(step) for step in plan.steps],
        "metadata": list(plan.metadata),
        "assets": list(plan.assets),
        "dropped": [str(item) for item in plan.dropped],
        "image": _image(plan, source),
        "lock": plugin_lock(plan, source),
    }


def dumps(document: Mapping[str, Any]) -> bytes:
    """Return the document as canonical JSON."""
    return (json.dumps(to_json(document), sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()


def job_id(document: Mapping[str, Any]) -> str:
    """Return the id of a job: the SHA-256 of its canonical document.

    Parameters
    ----------
    document
        From `job_document`.

    Returns
    -------
    str
        64 hex digits.

    Examples
    --------
    >>> job_id({"squish_plan": 1}) == job_id({"squish_plan": 1})
    True
    """
    return sha256(dumps(document)).hexdigest()


def read_document(path: Path) -> dict[str, Any] | None:
    """Return the document in a file; None if there is no file. FormatError if it is not a plan."""
    try:
        with path.open("rb") as file:
            head = file.read(64)
            is_object = head.lstrip()[:1] == b"{" and os.fstat(file.fileno()).st_size <= default().header
            data = head + file.read() if is_object else b""
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror}", file=str(path), code="plan") from None
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or document.get("squish_plan") != VERSION:
        raise FormatError(
            "is not a conversion plan",
            file=str(path),
            expected=f'a JSON object with "squish_plan": {VERSION}',
            code="plan",
            hint="Name a new file to write one, or leave out {option:plan}.",
        )
    return document


def stored_arguments(document: Mapping[str, Any], arguments: Mapping[str, Any], file: str) -> dict[str, Any]:
    """Return the arguments of a stored plan; UsageError if one of `arguments` differs."""
    stored = document.get("arguments")
    if not isinstance(stored, dict) or not _are_arguments(stored):
        raise FormatError(
            "has no usable arguments",
            file=file,
            expected="src, dst and other arguments of convert",
            found=excerpt(stored),
            code="plan",
        )
    for key, value in arguments.items():
        if value and _as_list(value) != _as_list(stored.get(key)):
            raise _differs(file, f"arguments.{key}", stored.get(key), value)
    return stored


def _are_arguments(stored: Mapping[str, Any]) -> bool:
    """Return whether a stored plan has arguments as `document_argument` stores them."""
    return {"src", "dst"} <= stored.keys() <= set(ARGUMENTS) and all(
        _are_rules(value)
        if key in ("encode", "only")
        else _are_files(value)
        if key == "part" and isinstance(value, dict)
        else isinstance(value, bool if key == "requantize" else str)
        for key, value in stored.items()
    )


def _are_rules(value: Any) -> bool:
    """Return whether a value is one rule or pattern, a list of them, or the pairs of a mapping."""
    if not isinstance(value, list):
        return isinstance(value, str)
    are_pairs = all(isinstance(pair, list) and [*map(type, pair)] == [str, str] for pair in value)
    return are_pairs or {*map(type, value)} == {str}


def _are_files(value: Mapping[Any, Any]) -> bool:
    """Return whether a value names a file for each component."""
    return bool(value) and {type(each) for pair in value.items() for each in pair} == {str}


def _as_list(value: Any) -> Any:
    """Wrap a single rule or pattern in a list."""
    return [value] if isinstance(value, str) else value


def document_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `convert` that decide what is written, as data for a document."""
    return {key: document_argument(key, arguments.get(key)) for key in ARGUMENTS}


def document_argument(key: str, value: Any) -> Any:
    """Return an argument of `convert` as data for a document; UsageError if it cannot be stored.

    Secrets are removed from addresses: whoever executes the plan must provide them again.
    """
    if isinstance(value, File):
        value = value.name if value.path is None else str(value.path)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if key == "encode" and isinstance(value, Mapping):
        value = [list(rule) for rule in value.items()]  # JSON objects here are sorted, and the last rule wins
    if key in ("encode", "only") and isinstance(value, (list, tuple)):
        return list(value)
    if key == "part" and isinstance(value, Mapping):
        return {str(name): document_argument(f"part {name}", place) for name, place in value.items()}
    if value is None or isinstance(value, (str, bool)):
        return redact(value)
    raise UsageError(f"a plan cannot store {key}=", found=type(value).__name__, expected="a path or text", code="plan")


def _tensor(step: Step) -> dict[str, Any]:
    """Return the decision about one tensor."""
    facts = ("name", "written", "row", "action", "source", "stored", "size", "overflow", "note")
    return {
        **{key: getattr(step, key) for key in facts if getattr(step, key) not in (None, "")},
        "shape": list(step.spec.shape),
        "dtype": step.spec.dtype,
        "codec": str(step.codec),
        **({"encoder": str(step.encoder)} if step.encoder else {}),
        "exactness": str(step.exactness),
    }


def _image(plan: ConversionPlan, source: File) -> Any:
    try:
        return (shards_image(plan, source) or output_image(plan, source)).to_dict()
    except UsageError as error:
        return {"files": None, "reason": error.message}


def _differs(file: str, where: str, stored: Any, now: Any) -> UsageError:
    return UsageError(
        f"the plan says otherwise: {where}",
        file=file,
        expected=excerpt(stored),
        found=excerpt(now),
        code="plan",
        hint="Carry the plan out as it is, or plan again into a new file.",
    )
