"""Check whether an engine would load a model by comparing the file with the engine's tables; nothing is run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from attrs import frozen
from squish_convert.api import Inventory, Naming, take_inventory

from squish_core.api import ErrorCode, File, FormatError, Problem, SquishError, UsageError, site_page
from squish_core.api import open as open_file

from ..layouts import EMBEDDINGS
from ..mlx_types import MLX_TYPES
from .behavior import setting_problems
from .folders.check import (
    file_problems,
    is_ignored,
    is_spare,
    read_settings,
    setting_type_problems,
    tensor_problems,
)
from .folders.check import tokenizer_problems as described_problems
from .folders.effective import effective_inventory, with_last_keys
from .folders.tables import FOLDER_ENGINES, FolderEngine
from .folders.transformers_types import TRANSFORMERS_TYPES
from .llama_cpp.loader import load
from .mistralrs.gguf import load as load_gguf
from .mistralrs.gguf import reads_alignment
from .mistralrs.loader import config_problems
from .mistralrs.loader import load as load_folder
from .needs import EngineNeeds, with_needs
from .requirements import ANY, ENGINES, HEAD_SIZES, LLAMA_CPP, Engine, Fields, Reading
from .tokenizer import tokenizer_problems
from .types import matches, type_problems
from .verdict import Verdict

CONFIG_FILE, ARCHITECTURE = "config.json", "general.architecture"
MODELS_PAGE = site_page("models")
MISTRAL_FOLDERS = ("hf", "mlx")
"""Folder formats that mistral.rs reads like folders of floats."""
DISTRIBUTION = "squish-models"
"""The engines' tables cover the families of this distribution."""
GGUF_LOADERS: dict[str, Callable[[File], Verdict]] = {"llama.cpp": load, "mistralrs": load_gguf}
"""Engine -> function that follows its GGUF loader."""
OTHER_TYPES = {"mlx": MLX_TYPES, "transformers": TRANSFORMERS_TYPES}
"""Engine -> `model_type` of the models that it supports and squish-models does not know."""
UNCHECKED = ("sliding_window", "layer_types", "max_position_embeddings")
"""Settings whose values folder engines do not check."""
INCOMPLETE = ("shard-missing",)
"""Error codes of folders that Squish cannot open and folder engines refuse, too."""
ALIGNMENT = "alignment"
DAMAGE = (ALIGNMENT, "bounds", ErrorCode.DUPLICATE, "magic", "overlap", "split", "version")
"""Error codes of files that Squish cannot open and llama.cpp refuses, too."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@frozen(kw_only=True)
class ModelCheck:
    """The result of checking whether an engine would load a model correctly.

    Attributes
    ----------
    file, engine, family
        The model, the engine's id, and the family's id.
    problems
        What the check found. "error": the engine refuses the model or aborts. "warning": it loads the model, and
        computes different results without a message. "note": results differ by rounding, or the model loads only in
        one way.
    """

    file: str
    engine: str
    family: str
    problems: tuple[Problem, ...]

    @property
    def loads(self) -> bool:
        """Whether the check found nothing but notes."""
        return all(problem.severity == "note" for problem in self.problems)


def check_model(model: str | Path | File, engine: str) -> ModelCheck:
    """Compare a model with what an engine needs, from headers, settings and tokenizers; nothing is run.

    Parameters
    ----------
    model
        A file or folder, or an open `File`.
    engine
        "llama.cpp", "mlx", "transformers" or "mistralrs".

    Returns
    -------
    ModelCheck
        Every problem with keys, tensors, types and the tokenizer.

    Raises
    ------
    UsageError
        The engine is unknown.
    SquishError
        The file cannot be read, or cannot be checked: its family is unknown (code `names`), or it is an adapter
        (code `adapter`).

    Examples
    --------
    >>> import squish_core as squish
    >>> from squish_models.api import check_model
    >>> check_model("model.gguf", "transformers").problems[0].code
    'engine-format'
    """
    requirements = ENGINES.get(engine)
    if requirements is None:
        near, named = get_close_matches(engine, ENGINES, 1, 0.5), ", ".join(ENGINES)
        hint = f"The closest is {near[0]}." if near else None
        raise UsageError("unknown engine", code="engine-name", expected=named, found=repr(engine), hint=hint)
    if not isinstance(model, File):
        try:
            file = open_file(model)
        except SquishError as error:
            if not _is_refused(error, model, engine):
                raise
            return ModelCheck(file=error.file or str(model), engine=engine, family="", problems=(_damage(error),))
        with file:
            return check_model(file, engine)
    reading = _reading(model, requirements)
    if reading is None:
        problems: tuple[Problem, ...] = (_wrong_format(model, requirements),)
        return ModelCheck(file=model.name, engine=engine, family="", problems=problems)
    folder = _folder_engine(requirements, reading)
    if folder is not None:
        model = with_last_keys(model)
    inventory = take_inventory(model, reading.layout)
    if inventory.naming.adapter:
        raise FormatError(
            "is an adapter, which has no settings to check",
            file=model.name,
            code="adapter",
            hint="Check its base model; `squish convert --assets FOLDER` checks the adapter against it.",
        )
    if reading.layout == "gguf" and engine in GGUF_LOADERS and not _is_foreign(model, inventory):
        return _check_gguf(model, requirements, inventory)
    if engine == "mistralrs" and reading.layout == "hf" and not _is_foreign(model, inventory):
        return _check_folder(model, requirements, inventory)
    if inventory.naming.model_type is None:
        problems = (_no_family(model, inventory.naming),)
        return ModelCheck(file=model.name, engine=engine, family="", problems=problems)
    others = OTHER_TYPES.get(engine)
    if inventory.family is None and others is not None and inventory.naming.model_type not in others:
        message = f"is {inventory.naming.model_type[:40]!r}, a model that {requirements.title} does not have"
        problems = (Problem(code="engine-family", severity="error", where=CONFIG_FILE, message=message),)
        return ModelCheck(file=model.name, engine=engine, family="", problems=problems)
    if inventory.family is None:
        raise FormatError(
            f"cannot be checked: {inventory.naming.reason}",
            file=model.name,
            code="names",
            hint=f"A package may bring the family; {MODELS_PAGE} lists those of squish-models.",
        )
    needs = _own_needs(inventory, engine)
    if needs is not None:
        requirements = with_needs(requirements, needs, inventory.naming.model_type)
    if folder is not None:
        inventory = effective_inventory(model, inventory, folder, reading.layout)
    problems = tuple(dict.fromkeys(_problems(model, requirements, reading, inventory)))
    if reading.layout == "uqff" and not any(each.severity == "error" for each in problems):
        problems += tuple(_uqff_problems(model))
    if folder is not None and inventory.settings is None and inventory.errors:
        errors = [each for each in problems if each.severity == "error" and not _is_unsure(each)]
        if not errors:  # the engine may read what Squish cannot
            raise inventory.errors[0].within(file=model.name)
        problems = tuple(errors)
    assert inventory.family is not None
    return ModelCheck(file=model.name, engine=engine, family=inventory.family.id, problems=problems)


def _reading(file: File, engine: Engine) -> Reading | None:
    """Return how an engine reads a file, or None if it does not.

    Transformers ignores mlx-lm's quantization settings if no tensor is quantized.
    """
    if engine.id == "mistralrs" and file.format in MISTRAL_FOLDERS and file.path is not None and file.path.is_dir():
        return engine.formats["safetensors"]
    is_coded = any(spec.encodings and spec.encodings[0].codec.id != "dense" for spec in file.index.tensors.values())
    kind = "hf" if file.format == "mlx" and engine.id == "transformers" and not is_coded else file.format
    return engine.formats.get(kind)


def _folder_engine(engine: Engine, reading: Reading) -> FolderEngine | None:
    """Return how the engine opens Hugging Face folders, or None for its other formats."""
    return FOLDER_ENGINES.get(engine.id) if reading.layout in ("hf", "mlx") else None


def _is_refused(error: SquishError, model: str | Path, engine: str) -> bool:
    """Return whether the engine, too, refuses a file that Squish cannot open."""
    is_damage = error.code in DAMAGE or (error.code == ErrorCode.MISSING and Path(model).exists())
    if engine == LLAMA_CPP.id:
        return is_damage
    if engine == "mistralrs" and Path(model).suffix == ".gguf":
        return is_damage and not (error.code == ALIGNMENT and reads_alignment(error.found))
    return error.code in INCOMPLETE and not _has_whole(model)


def _uqff_problems(file: File) -> list[Problem]:
    """Return what keeps mistral.rs from building a model from the settings beside a UQFF."""
    if file.path is None or CONFIG_FILE not in file.assets:
        return []
    return config_problems(file.path if file.path.is_dir() else file.path.parent)


def _has_whole(model: str | Path) -> bool:
    """Return whether a folder has one file with all weights, which engines may load even if there is an index."""
    return Path(model, "model.safetensors").is_file()


def _is_unsure(problem: Problem) -> bool:
    """Return whether the engine may accept a setting that Squish cannot read: anything but sizes and types."""
    if problem.code not in (ErrorCode.CONFIG, ErrorCode.ROPE):
        return False
    setting = problem.where.removeprefix(CONFIG_FILE).strip()
    is_size = "expected" in problem.message and "positive number" not in problem.message
    return setting.startswith(UNCHECKED) or not is_size


def _check_gguf(file: File, engine: Engine, inventory: Inventory) -> ModelCheck:
    """Check a GGUF as the engine's loader does, whether Squish can map it or not."""
    verdict = GGUF_LOADERS[engine.id](file)
    if verdict.unknown and not verdict.refuses:
        raise FormatError(
            f"cannot be checked: {verdict.unknown}",
            file=file.name,
            code="names",
            hint=f"{MODELS_PAGE} lists the families whose files can be checked; {engine.title} itself knows more.",
        )
    notes = () if verdict.refuses else tuple(_gguf_notes(file, engine, inventory))
    family = inventory.naming.family or ""
    return ModelCheck(
        file=file.name, engine=engine.id, family=family, problems=tuple(dict.fromkeys((*verdict.problems, *notes)))
    )


def _gguf_notes(file: File, engine: Engine, inventory: Inventory) -> Iterator[Problem]:
    """Yield what the engine computes differently; its loader reports what it refuses."""
    notes = [*setting_problems(engine, inventory, gguf=True)]
    if engine.id == "mistralrs":
        notes += tokenizer_problems(file, engine, gguf=True, rows=None)
        notes += type_problems(file, engine, engine.formats["gguf"], inventory)
        notes = [each for each in notes if each.severity != "error"]
    yield from notes


def _check_folder(file: File, engine: Engine, inventory: Inventory) -> ModelCheck:
    """Check a folder as mistral.rs does, whether Squish can map it or not."""
    if file.path is None or not file.path.is_dir():
        message = f"is a single file; {engine.title} loads a folder with {CONFIG_FILE}"
        problems: tuple[Problem, ...] = (
            Problem(code="engine-format", severity="error", where=file.name, message=message),
        )
        return ModelCheck(file=file.name, engine=engine.id, family="", problems=problems)
    verdict = load_folder(file)
    if verdict.unknown and not verdict.refuses:
        raise FormatError(
            f"cannot be checked: {verdict.unknown}",
            file=file.name,
            code="names",
            hint=f"{MODELS_PAGE} lists the families whose folders can be checked; mistral.rs itself knows more.",
        )
    notes = () if verdict.refuses else tuple(setting_problems(engine, inventory, gguf=False))
    notes = tuple(each for each in notes if each.severity != "error")
    family = inventory.naming.family or ""
    return ModelCheck(file=file.name, engine=engine.id, family=family, problems=(*verdict.problems, *notes))


def _damage(error: SquishError) -> Problem:
    """Return the problem of a file that neither Squish nor llama.cpp opens."""
    where = error.tensor or error.part or error.file or ""
    return Problem(code=error.code or "", severity="error", where=where, message=error.reason())


def _is_foreign(file: File, inventory: Inventory) -> bool:
    """Return whether another package provides the family."""
    return inventory.family is not None and file.registry.families[inventory.family.id].dist != DISTRIBUTION


def _problems(file: File, engine: Engine, reading: Reading, inventory: Inventory) -> Iterator[Problem]:
    naming = inventory.naming
    if (naming.layout == "gguf") != (reading.layout == "gguf"):
        yield Problem(
            code="engine-tensor",
            severity="error",
            where=file.name,
            message=f"has {naming.layout} names, which {engine.title} does not read",
        )
        return
    assert naming.model_type is not None
    if naming.model_type in engine.unsupported:
        message = f"is {naming.model_type}, which {engine.title} does not support"
        place = CONFIG_FILE if reading.layout != "gguf" else ARCHITECTURE
        yield Problem(code="engine-family", severity="error", where=place, message=message)
        return
    yield from _foreign_family(file, engine, inventory)
    folder = _folder_engine(engine, reading)
    type_errors = setting_type_problems(file, naming.model_type, folder) if folder is not None else []
    yield from type_errors
    if not type_errors or inventory.settings is not None:
        yield from _family_problems(inventory, engine, folder)
    if reading.layout == "gguf":
        meta = file.metadata
        yield from _absent(engine, engine.keys, naming.model_type, meta)
        yield from _head_problems(engine, inventory, meta)
        embeddings = file.index.tensors.get(EMBEDDINGS)
        rows = embeddings.shape[0] if embeddings is not None and len(embeddings.shape) == 2 else None
    else:
        yield from _folder_problems(file, engine, inventory, folder)
        rows = None
    yield from setting_problems(engine, inventory, gguf=reading.layout == "gguf")
    yield from tokenizer_problems(file, engine, gguf=reading.layout == "gguf", rows=rows)
    yield from type_problems(file, engine, reading, inventory)


def _own_needs(inventory: Inventory, engine: str) -> EngineNeeds | None:
    """Return what a family states of an engine; None if it states nothing."""
    found: Mapping[str, EngineNeeds] = getattr(inventory.family, "engines", {})
    return found.get(engine)


def _foreign_family(file: File, engine: Engine, inventory: Inventory) -> Iterator[Problem]:
    """Yield a note about a family of another package: the tables do not say whether the engine supports it."""
    if _is_foreign(file, inventory) and _own_needs(inventory, engine.id) is None:
        assert inventory.family is not None
        entry = file.registry.families[inventory.family.id]
        message = f"{engine.title} may not support {inventory.naming.model_type}; only the rest was checked"
        yield Problem(code="engine-family", severity="note", where=entry.dist, message=message)


def _family_problems(inventory: Inventory, engine: Engine, folder: FolderEngine | None) -> Iterator[Problem]:
    """Yield contradictions to the family: one problem per kind of tensor, with its first name and their number."""
    alike: dict[tuple[str, str, str], list[SquishError]] = {}
    for error in inventory.errors:
        if folder is not None and is_ignored(error, folder, inventory.naming.model_type or ""):
            continue
        if engine.id == "mistralrs" and inventory.naming.layout == "gguf" and is_spare(error):
            continue
        place = error.tensor or error.part or ""
        alike.setdefault((error.code or "", _NUMBER.sub("#", place), error.message), []).append(error)
    for (code, _, message), group in alike.items():
        first = group[0]
        is_stated = code == ErrorCode.CONTRADICTION or (code == ErrorCode.CONFIG and first.found is not None)
        numbers = f" (expected {first.expected}, found {first.found})" if is_stated else ""
        more = f"; so are {len(group) - 1} more" if len(group) > 1 else ""
        # Model classes of folder engines have a default for every setting that the engine's table does not require.
        is_absent = code == ErrorCode.CONFIG and first.found is None
        has_default = inventory.settings is None and is_absent and inventory.naming.layout != "gguf"
        yield Problem(
            code=code,
            severity="warning" if has_default else "error",
            where=first.tensor or first.part or "",
            message=f"{message}{numbers}{more}" + (f"; {engine.title} takes its own" if has_default else ""),
        )


def _head_problems(engine: Engine, inventory: Inventory, meta: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield head sizes that a GGUF must state because the hidden size does not imply them."""
    settings = inventory.settings
    if settings is None or settings["head_dim"] == settings["hidden_size"] // settings["num_attention_heads"]:
        return
    for name in HEAD_SIZES:
        key = f"{inventory.naming.model_type}.{name}"
        if key not in meta:
            yield Problem(
                code="engine-key",
                severity="error",
                where=key,
                message=f"is missing; {engine.title} takes the hidden size by the number of heads, and heads have "
                f"{settings['head_dim']}",
            )


def _folder_problems(
    file: File, engine: Engine, inventory: Inventory, folder: FolderEngine | None
) -> Iterator[Problem]:
    """Yield missing files and settings, and settings for which the engine assumes other values."""
    if file.path is None or not file.path.is_dir():
        yield Problem(
            code="engine-format",
            severity="error",
            where=file.name,
            message=f"is a single file; {engine.title} loads a folder with {CONFIG_FILE}",
        )
    if folder is not None:
        yield from file_problems(file, folder)
        yield from tensor_problems(file, inventory, folder)
        yield from described_problems(file, folder)
    method = file.version.split()[0] if file.format == "hf" and file.version else None
    if method is not None and not matches(method, engine.formats["hf"].methods):
        yield Problem(
            code="engine-type",
            severity="error",
            where=f"{CONFIG_FILE} quant_method",
            message=f"is {method}, which {engine.title} does not run",
        )
    assert inventory.naming.model_type is not None
    model_type, config = read_settings(file, inventory.naming.model_type, engine.id)
    yield from _absent(engine, engine.fields, model_type, config, f"{CONFIG_FILE} ")
    for name, default in engine.defaults.get(model_type, engine.defaults.get(ANY, {})).items():
        value = (inventory.settings or {}).get(name, default)
        if name not in config and value != default:
            yield Problem(
                code="engine-default",
                severity="warning",
                where=f"{CONFIG_FILE} {name}",
                message=f"is not there; {engine.title} takes {default!r}, and the model has {str(value)[:60]}",
            )


def _absent(
    engine: Engine, required: Fields, kind: str, present: Mapping[str, Any], prefix: str = ""
) -> Iterator[Problem]:
    for name in required.get(kind, required.get(ANY, ())):
        if name not in present:
            yield Problem(
                code="engine-key",
                severity="error",
                where=f"{prefix}{name}",
                message=f"is missing, and {engine.title} does not load without it",
            )


def _no_family(file: File, naming: Naming) -> Problem:
    """Return the problem of a model that declares no family, or whose config.json cannot be read."""
    error = naming.error
    if error is None:
        message = f"declares no family: {naming.reason}"
        return Problem(code="names", severity="error", where=file.name, message=message)
    return Problem(code=error.code or "", severity="error", where=error.part or CONFIG_FILE, message=error.reason())


def _wrong_format(file: File, engine: Engine) -> Problem:
    formats, target = ", ".join(engine.formats), next(iter(engine.formats.values())).layout
    return Problem(
        code="engine-format",
        severity="error",
        where=file.name,
        message=f"is of the format {file.format}; {engine.title} reads {formats} (`squish convert --to {target}`)",
    )
