"""Follow mistral.rs through a folder: its files, its settings, its tokenizer, its tensors, its numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import evolve

from squish_core.api import ErrorCode, File, Problem, SquishError, TensorSpec
from squish_core.api import open as open_file

from ..verdict import Verdict
from .numbers import division_problems, number_problems, unsure
from .settings import AS_MULTIMODAL, CLASSES, HUNYUAN_SWITCHES, has_class, quantization_problems
from .stored import method_problems, read_needs, unknown_method
from .tensors import NORMS, Settings
from .tokenizer import GENERATION, PROCESSOR, end_problems, vocabulary_problems
from .tokenizer import config_problems as described_problems
from .types import TEXT, ListOf, Struct, Wrong, read_json

CONFIG, OTHER_CONFIG, INDEX = "config.json", "params.json", "model.safetensors.index.json"
TOKENIZER, TOKENIZER_CONFIG, GENERATION_CONFIG = "tokenizer.json", "tokenizer_config.json", "generation_config.json"
PROCESSOR_CONFIG, TEMPLATE = "processor_config.json", "chat_template.jinja"
PLAIN = "safetensors"
LAYOUT = "_mistralrs_qk_rope_layout"
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
WEIGHTS = re.compile(r"model-\d+-of-\d+\.safetensors\b|model\.safetensors\b|consolidated\.safetensors\b")
MOST = 1000
"""Number of missing tensors after which the search stops."""
NAMED = Struct({"architectures": ListOf(TEXT)})


def load(file: File) -> Verdict:
    """Compare a folder with what mistral.rs reads; return every problem of the stage at which it stops."""
    assert file.path is not None
    place, config, problems = _read_config(file.path)
    if problems:
        return Verdict(tuple(problems))
    name = config["architectures"][0]
    if name not in CLASSES:
        return Verdict((), f"the class {name} is not in squish-models' tables")
    settings = CLASSES[name].read(config)
    wrong = [*_config_problems(name, config)]
    problems = [_setting(place, *each) for each in wrong]
    problems += _tokenizer_problems(file.path, config, name)
    try:
        stored, missing = _weights(file)
    except SquishError as error:
        return Verdict(tuple(problems), f"{error.reason()}")
    if wrong or missing:
        return Verdict((*problems, *missing))
    if settings["num_hidden_layers"] > len(stored):
        message = f"is {settings['num_hidden_layers']}, more than there are tensors"
        return Verdict((*problems, _setting(place, "num_hidden_layers", message)))
    problems += [*method_problems(name, settings, stored)] or [*first_of_kinds(_each_tensor(name, settings, stored))]
    if any(each.severity == "error" for each in problems):
        return Verdict(tuple(problems))
    problems += (_setting(place, *each) for each in number_problems(name, settings))
    return Verdict(tuple(problems), unknown_method(name, settings, stored) or unsure(settings))


def config_problems(folder: Path) -> list[Problem]:
    """Return what keeps mistral.rs from building a model from a folder's settings, whatever its weights are."""
    place, config, found = _read_config(folder)
    name = "" if found else config["architectures"][0]
    return found or [_setting(place, *each) for each in (_config_problems(name, config) if name in CLASSES else ())]


def _read_config(folder: Path) -> tuple[str, Any, list[Problem]]:
    """Return the name of the settings file, its content, and why no class is found for it."""
    place = OTHER_CONFIG if (folder / OTHER_CONFIG).is_file() else CONFIG
    config, found = _document(folder, place)
    return place, config, found or [_setting(place, *each) for each in _class_problems(config)]


def _config_problems(name: str, config: Any) -> list[Wrong]:
    wrong = [*CLASSES[name].problems(config, "")]
    settings = CLASSES[name].read(config)
    return wrong or [*quantization_problems(settings), *division_problems(settings), *layer_problems(name, settings)]


def _document(folder: Path, name: str) -> tuple[Any, list[Problem]]:
    """Return the content of a JSON file, and why it cannot be read."""
    try:
        return read_json(folder / name), []
    except FileNotFoundError:
        problem = Problem(code="engine-key", severity="error", where=name, message="is missing")
    except (ValueError, RecursionError) as error:
        problem = Problem(code="json", severity="error", where=name, message=f"is not JSON: {error}")
    return None, [problem]


def _class_problems(config: Any) -> Iterator[Wrong]:
    wrong = [*NAMED.problems(config, "")]
    yield from wrong
    if wrong:
        return
    names = config["architectures"]
    if len(names) != 1:
        yield "architectures", "are not one class, as mistral.rs expects"
    elif isinstance(config.get(LAYOUT), str) and config[LAYOUT] not in ("adjacent", "half_split"):
        yield LAYOUT, f"is {config[LAYOUT][:40]!r}, not adjacent or half_split"
    elif not has_class(names[0]):
        yield "architectures", f"is {names[0][:60]}, which mistral.rs does not have as a text model"


def layer_problems(name: str, settings: Settings) -> Iterator[Wrong]:
    """Yield lists of layer kinds that do not fit the number of layers."""
    kinds, layers = settings.get("layer_types"), settings["num_hidden_layers"]
    if name == "Qwen2ForCausalLM" and kinds is not None:
        if len(kinds) != layers:
            yield "layer_types", f"are {len(kinds)}, and mistral.rs expects {layers}"
        elif "sliding_attention" in kinds and not (settings["use_sliding_window"] and settings["sliding_window"]):
            yield "layer_types", "have a window that use_sliding_window or sliding_window does not state"
    if name in NORMS:
        if kinds and len(kinds) < layers:
            yield "layer_types", f"are {len(kinds)}, and mistral.rs expects {layers}"
        if settings["rope_parameters"].get("rope_type", "") not in ("", "default"):
            yield "rope_parameters.rope_type", "is not default, the only one that mistral.rs computes for LFM 2"
    intervals = settings.get("no_rope_layers")
    if intervals is not None and len(intervals) < layers:
        yield "no_rope_layers", f"are {len(intervals)}, and mistral.rs expects {layers}"
    elif intervals is None and settings.get("no_rope_layer_interval") == 0:
        yield "no_rope_layer_interval", "is 0, with which mistral.rs makes no model"
    for each in HUNYUAN_SWITCHES if name == "HunYuanDenseV1ForCausalLM" else ():
        if settings[each]:
            yield each, "is true, which mistral.rs does not run"
    if settings.get("pretraining_tp", 1) > 1:
        yield "pretraining_tp", f"is {settings['pretraining_tp']}, and mistral.rs runs 1"
    if name in ("GemmaForCausalLM", "Gemma2ForCausalLM"):
        stated = [settings[each] for each in ("hidden_act", "hidden_activation") if settings[each] is not None]
        if not stated:
            yield "hidden_activation", "is missing"
        elif name == "GemmaForCausalLM" and len(stated) > 1:
            yield "hidden_activation", "is there beside hidden_act, and mistral.rs takes one of them"


def _weights(file: File) -> tuple[dict[str, TensorSpec], list[Problem]]:
    """Return the tensors of the files that mistral.rs opens, and a problem if files are missing."""
    folder = file.path
    assert folder is not None
    names = _weight_names(folder)
    if not names and (folder / INDEX).is_file():
        message = "names no weights, and mistral.rs opens those that it names"
        return {}, [Problem(code="engine-format", severity="error", where=INDEX, message=message)]
    if not names:
        weights = [Path(ref.name).name for ref in file.index.files if ref.name.endswith(".safetensors")]
        message = "does not have a name that mistral.rs looks for: model.safetensors, model-00001-of-0000N.safetensors"
        return {}, [Problem(code="engine-format", severity="error", where=", ".join(weights), message=message)]
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        message = f"is missing, and {INDEX} names it"
        return {}, [Problem(code="engine-format", severity="error", where=absent[0], message=message)]
    if file.format == PLAIN and {Path(ref.name).name for ref in file.index.files} == set(names):
        return dict(file.index.tensors), []
    tensors: dict[str, TensorSpec] = {}
    for name in names:
        with open_file(folder / name, PLAIN) as part:
            tensors |= part.index.tensors
    return tensors, []


def _weight_names(folder: Path) -> list[str]:
    if not (folder / INDEX).is_file():
        return sorted(path.name for path in folder.iterdir() if WEIGHTS.search(path.name))
    try:
        weight_map = read_json(folder / INDEX)["weight_map"]
        return sorted(set(weight_map.values()))
    except (ValueError, TypeError, KeyError, AttributeError):
        return []


def first_of_kinds(problems: Iterable[Problem]) -> Iterator[Problem]:
    """Yield tensor problems: the first of each kind, and how many others there are."""
    alike: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        alike.setdefault((problem.code, NUMBER.sub("#", problem.where)), []).append(problem)
    for first, *others in alike.values():
        more = f"; so are {len(others)} more" if others else ""
        yield evolve(first, message=first.message + more)


def _each_tensor(name: str, settings: Settings, stored: Mapping[str, TensorSpec]) -> Iterator[Problem]:
    shapes = {each: spec.shape for each, spec in stored.items()}
    read = set()
    missing: list[str] = []
    optional: list[str] = []
    for need in read_needs(name, settings, shapes):
        each = need.name
        read.add(each)
        if each not in stored:
            (optional if need.may_miss else missing).append(each)
            if len(missing) > MOST:
                break
            continue
        if shapes[each] != need.shape:
            message = f"has the shape {list(shapes[each])}, and mistral.rs expects {list(need.shape)}"
            yield _tensor(ErrorCode.CONTRADICTION, each, message)
        elif stored[each].dtype not in need.dtypes:
            message = f"is stored as {stored[each].dtype}, which mistral.rs does not run"
            yield _tensor("engine-type", each, message)
    for each in missing:
        yield _tensor("engine-tensor", each, "is missing, and mistral.rs does not load without it")
    for each in optional:
        if each.endswith(".bias"):
            yield _tensor("engine-tensor", each, "is missing, and mistral.rs computes without it", "warning")
    for each in sorted(set(stored) - read):
        if each.endswith("_proj.bias"):
            yield _tensor("engine-tensor", each, "is not a parameter of the model in mistral.rs", "warning")


def _tokenizer_problems(folder: Path, config: Any, name: str) -> Iterator[Problem]:
    document, faults = _document(folder, TOKENIZER)
    yield from (
        Problem(code="tokenizer", severity=each.severity, where=each.where, message=each.message) for each in faults
    )
    settings: Any = {}
    if (folder / TOKENIZER_CONFIG).is_file():
        settings, errors = _document(folder, TOKENIZER_CONFIG)
        wrong = [*described_problems(settings)] if not errors else []
        if (folder / TEMPLATE).is_file():  # the engine then continues without the file
            settings = {} if errors or wrong else settings
        elif errors or wrong:
            yield from (_token(TOKENIZER_CONFIG, "", each.message) for each in errors)
            yield from (_token(TOKENIZER_CONFIG, *each) for each in wrong)
            return
    generation = _generation(folder, config)
    if name in AS_MULTIMODAL and (folder / GENERATION_CONFIG).is_file():
        _, errors = _document(folder, GENERATION_CONFIG)
        yield from (_token(GENERATION_CONFIG, "", each.message) for each in errors)
    if (folder / PROCESSOR_CONFIG).is_file():
        processor, errors = _document(folder, PROCESSOR_CONFIG)
        wrong = [*PROCESSOR.problems(processor, "")] if not errors else [("", errors[0].message)]
        yield from (_token(PROCESSOR_CONFIG, *each) for each in wrong)
    if faults:
        return
    wrong = [*vocabulary_problems(document)]
    yield from (_token(TOKENIZER, *each) for each in wrong)
    if not wrong:
        for field, message in end_problems(settings, generation, document):
            yield _token(TOKENIZER_CONFIG if field == "eos_token" else GENERATION_CONFIG, field, message)


def _generation(folder: Path, config: Any) -> dict[str, Any]:
    """Return what generation_config.json states, or config.json if the former cannot be read."""
    if (folder / GENERATION_CONFIG).is_file():
        document, errors = _document(folder, GENERATION_CONFIG)
        if not errors and not any(GENERATION.problems(document, "")):
            return GENERATION.read(document)
    return {} if any(GENERATION.problems(config, "")) else GENERATION.read(config)


def _setting(name: str, where: str, message: str) -> Problem:
    code = "engine-key" if message == "is missing" else "engine-setting"
    more = ", and mistral.rs does not load without it" if message == "is missing" else ""
    return Problem(code=code, severity="error", where=f"{name} {where}".rstrip(), message=message + more)


def _token(name: str, where: str, message: str) -> Problem:
    return Problem(code="tokenizer", severity="error", where=f"{name} {where}".rstrip(), message=message)


def _tensor(code: str, name: str, message: str, severity: str = "error") -> Problem:
    return Problem(code=code, severity=severity, where=name, message=message)
