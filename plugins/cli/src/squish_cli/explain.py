"""`squish explain`: what a word means that Squish prints or takes.

Words of errors, the glossary, commands and settings come from tables; those of formats, codecs, backends, families and
presets from the plugins that are installed, and for others of this repository from the catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from attrs import asdict, frozen

from squish_core.codes import ErrorCode
from squish_core.display import table
from squish_core.errors import SquishError, UsageError
from squish_core.plugins import catalog
from squish_core.text import did_you_mean

from . import complete, settings, spellings
from .output import Answer
from .tables import read

if TYPE_CHECKING:
    from squish_core.formats.base import WritableContainer
    from squish_core.plugins.registry import Registry

MOST = 8
"""Number of words above which a kind is listed by its number alone."""


@frozen
class Explanation:
    """What a word of a kind means: a sentence, and facts by their names, such as `cure`."""

    kind: str
    word: str
    meaning: str
    facts: Mapping[str, str] = {}

    def lines(self) -> list[str]:
        """Return the explanation as text."""
        return [
            f"{self.word}: {self.kind}",
            *table(("", ""), "<<", [("", self.meaning), *self.facts.items()], "  ")[1:],
        ]


def explain(
    word: Annotated[
        str | None,
        typer.Argument(metavar="WORD", help="The code of an error, an id, an option, or a word of the glossary."),
    ] = None,
) -> Answer:
    """Explain a word that Squish prints or takes.

    WORD is the code of an error, such as missing; the id of a format, codec, backend or family; an encoding or preset
    of --encode, such as q4_k_m; an option; a command; a setting; or a word of the glossary. Without WORD, lists the
    kinds of words.
    """
    if word is None:
        kinds = {kind: sorted(words()) for kind, words in KINDS.items()}
        rows = [(kind, len(names), ", ".join([*names[:MOST], "..."][: len(names)])) for kind, names in kinds.items()]
        return Answer({"word": None, "kinds": kinds, "explanations": []}, table(("kind", "words", ""), "<><", rows))
    found = explanations(word)
    if not found:
        raise UsageError("no such word", found=repr(word), code=ErrorCode.USAGE, hint=_near(word))
    lines = [line for each in found for line in ("", *each.lines())][1:]
    return Answer({"word": word, "kinds": {}, "explanations": [asdict(each) for each in found]}, lines)


def explanations(word: str) -> list[Explanation]:
    """Return every meaning of a word; without case, and an option also without its dashes.

    Parameters
    ----------
    word
        The word, possibly in the square brackets of an error.

    Returns
    -------
    list of Explanation
        Empty if no table has the word.

    Examples
    --------
    >>> [each.facts["cure"] for each in explanations("[missing]") if each.kind == "error code"]
    ['Check the path; names of tensors: `squish ls FILE`.']
    """
    key = word.strip().removeprefix("[").removesuffix("]")
    spellings = dict.fromkeys((key, key.lower(), f"--{key.lower()}"))
    return [words()[each]() for words in KINDS.values() for each in spellings if each in words()]


def _near(word: str) -> str:
    """Return the hint for a word that no table has."""
    if spellings.is_target(word):
        return f"If it is a file, run `squish plan {word}`."
    names = [name for words in KINDS.values() for name in words()]
    return f"{did_you_mean(word, names)} `squish explain` lists the kinds of words.".lstrip()


Words = dict[str, Callable[[], Explanation]]


@cache
def errors() -> Words:
    """Codes of errors."""
    return {code: _maker(_error, code, facts) for code, facts in read("errors").items()}


def _maker(make: Callable[..., Explanation], *arguments: Any) -> Callable[[], Explanation]:
    return lambda: make(*arguments)


def _error(code: str, facts: Mapping[str, Any]) -> Explanation:
    rest = {"cure": facts["cure"], "example": facts["example"], "raised as": ", ".join(facts["raised"])}
    return Explanation("error code", code, facts["cause"], rest)


@cache
def glossary() -> Words:
    """Words of the glossary."""
    rows = ((word, text) for words, text in read("glossary").items() for word in words.split(", "))
    return {word: _maker(Explanation, "word of the glossary", word, _sentence(text)) for word, text in rows}


def _installed() -> Registry:
    from squish_core.plugins.registry import registry

    return registry()


def _declared(kind: str, name: str, facts_of: Callable[[Any], dict[str, str]]) -> Words:
    """Return the ids of a kind of plugin, installed or in the catalog."""
    words: Words = {}
    for other, facts in catalog.table().get(kind, {}).items():
        words[other] = _maker(_absent, name, other, facts["dist"])
    for entry in _installed().find(kind):
        words[entry.id] = _maker(_present, name, entry, facts_of)
    return words


def _absent(kind: str, word: str, package: str) -> Explanation:
    install = f"`{catalog.install_command(package)}`"
    return Explanation(kind, word, "Of a package that is not installed.", {"package": package, "install": install})


def _present(kind: str, entry: Any, facts_of: Callable[[Any], dict[str, str]]) -> Explanation:
    facts = {name: text for name, text in facts_of(entry.info).items() if text}
    return Explanation(kind, entry.id, _sentence(str(entry.info.title)), {**facts, "package": entry.dist})


def _sentence(text: str) -> str:
    """Return a title or definition as a sentence."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _format_facts(info: Any) -> dict[str, str]:
    return {
        "can": "read, write" if info.can_write else "read",
        "suffixes": " ".join(info.suffixes),
        "inside": info.refines or "",
        **{f"--to {info.id}:{name}=": text for name, text in info.options.items()},
        **{f"--format {info.id}:{name}=": text for name, text in info.reading.items()},
        "short names": " ".join(info.aliases),
        "more": f"`squish formats {info.id}`",
    }


def _codec_facts(info: Any) -> dict[str, str]:
    kinds = {"bytes": "compresses the bytes of parts", "whole": "a whole model, for another runtime"}
    return {
        "values": "lossless" if info.lossless else "lossy",
        "kind": kinds.get(info.kind, ""),
        "short names": " ".join(info.aliases),
    }


def _family_facts(info: Any) -> dict[str, str]:
    return {
        "model_type": ", ".join(info.model_types),
        "architecture in GGUF": info.architecture,
        "component": "" if info.part == "text" else info.part,
        "more": f"`squish families {info.id}`",
    }


@cache
def formats() -> Words:
    """Ids of formats."""
    return _declared("container", "format", _format_facts)


@cache
def codecs() -> Words:
    """Ids of codecs."""
    return _declared("codec", "codec", _codec_facts)


@cache
def backends() -> Words:
    """Ids of backends."""
    return _declared("backend", "backend", lambda info: {"": info.unverified, "runs here": "`squish doctor` shows it"})


@cache
def families() -> Words:
    """Ids of families."""
    return _declared("family", "family", _family_facts)


@cache
def other_ids() -> Words:
    """Ids of sources and schedulers."""
    sources = _declared("source", "source of URLs", lambda info: {"schemes": ", ".join(info.schemes), **info.options})
    return {**sources, **_declared("scheduler", "scheduler", lambda info: {"option": f"--scheduler {info.id}"})}


@cache
def encodings() -> Words:
    """Short names of `--encode`, each with what it stands for where."""
    meanings: dict[str, dict[str, str]] = {
        "keep": {"everywhere": "Leave the tensors unchanged."},
        "nearest": {"everywhere": "The encoding that the target holds and that is nearest to the stored one."},
    }
    registry = _installed()
    for kind, place in (("codec", "everywhere"), ("encoder", "everywhere"), ("container", "")):
        for entry in registry.find(kind):
            for name, spec in entry.info.aliases.items():
                meanings.setdefault(name, {})[place or f"in {entry.id}"] = spec
    for kind in ("codec", "container"):
        for name, codec in catalog.short_names(kind).items():
            meanings.setdefault(name, {"of a package that is not installed": codec})
    return {name: _maker(_encoding, name, places) for name, places in meanings.items()}


def _encoding(name: str, places: Mapping[str, str]) -> Explanation:
    return Explanation("encoding", name, f"What `--encode {name}` stands for:", places)


@cache
def presets() -> Words:
    """Presets and allocators of `--encode`, with the encoding of each kind of tensor."""
    registry = _installed()
    words: Words = _declared("allocator", "preset", lambda info: {})
    for entry in registry.find("container", can_write=True):
        with suppress(SquishError):  # of a broken plugin; `squish doctor` shows it
            container = cast("WritableContainer", registry.container(entry.id))
            for name, kinds in container.presets().items():
                words[name] = _maker(_preset, name, entry.id, kinds)
    return words


def _preset(name: str, format_id: str, kinds: Mapping[str, str]) -> Explanation:
    return Explanation("preset", name, f"What `--encode {name}` means for a model in {format_id}:", kinds)


@cache
def commands() -> Words:
    """Commands, those of groups as `cache list`."""
    return {name: _maker(_command, name, facts) for name, facts in complete.table()["commands"].items()}


def _command(name: str, facts: Mapping[str, Any]) -> Explanation:
    examples = {"example" if index == 0 else " " * index: text for index, text in enumerate(facts["examples"])}
    return Explanation("command", name, " ".join(facts["help"]), {**examples, "more": f"`squish {name} --help`"})


@cache
def options() -> Words:
    """Options of all commands."""
    tables = complete.table()
    uses: dict[str, dict[str, list[str]]] = {}
    groups = {"": {"options": tables["options"]}, **tables["commands"]}
    for command, facts in groups.items():
        for option in facts["options"]:
            for name in option["names"]:
                metavar = option.get("metavar", "")
                text = f"{metavar}: {option['help']}" if metavar else option["help"]
                uses.setdefault(name, {}).setdefault(text, []).append(f"squish {command}".strip())
    return {name: _maker(_option, name, texts) for name, texts in uses.items()}


def _option(name: str, texts: Mapping[str, Sequence[str]]) -> Explanation:
    if len(texts) == 1:
        [(text, users)] = texts.items()
        return Explanation("option", name, text, {"of": ", ".join(users)})
    return Explanation(
        "option", name, "It depends on the command:", {", ".join(users): text for text, users in texts.items()}
    )


@cache
def setting_words() -> Words:
    """Settings, by their names and their variables."""
    makers = [(each, _maker(_setting, each)) for each in settings.SETTINGS]
    return {name: make for each, make in makers for name in (each.name, each.variable)}


def _setting(setting: settings.Setting) -> Explanation:
    set_it = f"`squish config set {setting.name} VALUE`"
    facts = {"value": setting.expected, "default": setting.default, "variable": setting.variable, "set": set_it}
    return Explanation("setting", setting.name, setting.meaning, facts)


KINDS: dict[str, Callable[[], Words]] = {
    "error code": errors,
    "format": formats,
    "codec": codecs,
    "encoding": encodings,
    "preset": presets,
    "backend": backends,
    "family": families,
    "source or scheduler": other_ids,
    "option": options,
    "command": commands,
    "setting": setting_words,
    "word of the glossary": glossary,
}
"""Kind of words -> the function that returns its words."""


def all_words() -> Iterator[tuple[str, str]]:
    """Yield (kind, word) of everything that can be explained."""
    for kind, words in KINDS.items():
        yield from ((kind, word) for word in words())
