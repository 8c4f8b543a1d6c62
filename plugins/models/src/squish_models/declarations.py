"""Reads the declaration of a family: a TOML file that changes the tables of another family. It is data: no code.

docs/models.md has the schema ("Add a family").
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from squish_core.api import FamilyInfo, Registry, hookimpl
from squish_core.api import registry as default_registry

from .config.spelling import BEHIND
from .declaration_entries import (
    read_each,
    read_engines,
    read_layer_kinds,
    read_layers,
    read_pattern,
    read_pretokenizers,
    read_products,
    read_sizes_by_kind,
    read_switches,
)
from .declaration_file import Place, load
from .declaration_rows import read_fused, read_keys, read_other_names, read_rows, read_stacks
from .declared import KINDS, WINDOW_LAYERS, Declared
from .family import TextModel
from .tables import PREDICTING, prediction

ROW_SIZES = ("head_dim", "q_rows", "kv_rows", "qkv_rows", "gate_up_rows", "group_rows")
"""Sizes that every family has beside its settings."""
MOVED = re.compile(r"\{layers(\+m)?\}")
FUSED, FOLDERS = ("hf", "mlx", "uqff"), ("hf", "mlx")
"""Layouts with the matrices of [fused], and those with the names of [read]."""
ATTRIBUTES = {
    "class_name": str, "tied": bool, "rotated": float, "windowless": list, "unadapted": list, "constants": list,
    "derived": list, "layer_counts": list, "other_modalities": list, "leftovers": list, "predicting": str,
    "left_out": list, "unset": list, "must_state": list, "rotary": str, "gemma_tokenizer": bool,
    "rope_by_kind": bool, "merging": str,
}  # fmt: skip
"""Keys at the top level that are attributes of the class, with their types."""
RENAMED = {
    "tied": "tied_by_default", "rotated": "rotated_by_default", "rotary": "rotary_setting",
    "left_out": "more_left_out",
}  # fmt: skip
TOP = {
    **ATTRIBUTES, "base": str, "layer": str, "own_rows": bool, "model_type": str, "model_types": list, "id": str,
    "title": str, "architecture": str, "present": list, "absent": list,
}  # fmt: skip
TABLES = (
    "rows", "fused", "read", "keys", "computed", "nested", "fixed", "unstated", "names", "sizes", "layers", "patterns",
    "switches", "presence", "prefixes", "moved", "values", "equivalents", "notes", "kinds", "per_layer", "mlx",
    "pretokenizers", "engines",
)  # fmt: skip
MERGED = {
    "fixed": "fixed", "unstated": "unstated", "prefixes": "prefixes", "moved": "moves", "values": "values",
    "notes": "notes", "equivalents": "equivalents", "presence": "presence", "nested": "nested",
}  # fmt: skip
"""Table -> the attribute of the class, which has the base's entries and these."""
TYPES = {"prefixes": str, "moved": str, "values": dict, "equivalents": dict, "notes": str, "nested": list}
"""Types of the entries of these tables."""
READERS = {
    "layers": ("kinds", read_layers), "patterns": ("patterns", read_pattern), "switches": ("switches", read_switches),
    "per_layer": ("by_kind", read_sizes_by_kind),
}  # fmt: skip
"""Table -> the attribute of the class, and what reads an entry."""


@frozen
class Declaration:
    """A family that a file declares, and what the registry lists of it."""

    info: FamilyInfo
    family: type[TextModel]


def infos_of(paths: str) -> list[FamilyInfo]:
    """What the registry lists of the families in files, whose paths are joined as in PATH."""
    return [_info(*_head(Path(path))) for path in paths.split(os.pathsep) if path]


def register_family(path: str | Path, registry: Registry | None = None) -> str:
    """Add the family that a file declares.

    Parameters
    ----------
    path
        A TOML file; docs/models.md has the schema.
    registry
        Where to add it; by default the registry of all installed plugins.

    Returns
    -------
    str
        The family's id.

    Raises
    ------
    FormatError
        The file cannot be read, or is not a declaration; the part names the line and the key.
    ConflictError
        Another family has its id.

    Examples
    --------
    >>> from squish_models.api import register_family
    >>> with open("my.toml", "w") as file:
    ...     print('base = "llama"', file=file)
    ...     print('model_type = "my_llama"', file=file)
    >>> register_family("my.toml", squish.Registry())
    'my_llama'
    """
    chosen = default_registry() if registry is None else registry
    info, dist = read_family(Path(path)).info, os.path.abspath(path)
    entry = chosen.families.get(info.id)
    if entry is None or entry.dist != dist:
        chosen.register(FilePlugin(info), dist=dist)
    return info.id


@frozen
class FilePlugin:
    """A plugin with the family of a file."""

    info: FamilyInfo

    @hookimpl
    def squish_families(self) -> Iterable[FamilyInfo]:
        """The family."""
        return [self.info]


def read_family(path: Path) -> Declaration:
    """Read and check a declaration.

    Parameters
    ----------
    path
        A TOML file.

    Returns
    -------
    Declaration

    Raises
    ------
    FormatError
        The file cannot be read, or is not a declaration; the part names the line and the key.
    """
    place, stated = _head(path)
    base = _base(place, stated["base"])
    attributes = _attributes(place, stated, base)
    info = _info(place, stated)
    parents = (base,) if issubclass(base, Declared) else (Declared, base)
    return Declaration(info, type(re.sub(r"\W", "_", info.id), parents, {"__doc__": info.title, **attributes}))


def _head(path: Path) -> tuple[Place, dict[str, Any]]:
    """The file's content, with its keys at the top level checked."""
    place, stated = load(path)
    for key, value in stated.items():
        place.check_name(key, (*TOP, *TABLES), "key or table", key)
        place.check_type(value, TOP.get(key, dict), key)
    for key in ("base", "model_type"):
        if key not in stated:
            raise place.error("is missing", key, expected="text, such as 'llama'")
    for key in ("id", "model_type", "architecture"):
        place.name(stated.get(key, "_"), key)
    return place, stated


def _info(place: Place, stated: Mapping[str, Any]) -> FamilyInfo:
    """What the registry lists; without an architecture of its own, its GGUF files are those of its base."""
    name = stated.get("id", stated["model_type"])
    return FamilyInfo(
        id=name,
        title=stated.get("title", name),
        factory=f"squish_models.families.declared:{place.path.absolute()}",
        model_types=tuple(stated.get("model_types", [stated["model_type"]])),
        architecture=stated.get("architecture", ""),
        present=tuple(stated.get("present", ())),
        absent=tuple(stated.get("absent", ())),
    )


def _base(place: Place, name: str) -> type[TextModel]:
    """The class of the family to start from."""
    families = {entry.id for entry in default_registry().families.values() if not entry.info.layouts}
    place.check_name(name, families, "family to start from", "base")
    family = type(default_registry().implementation("family", name))
    if not issubclass(family, TextModel):
        raise place.error("is not a family of text models", "base", found=name)
    return family


def _attributes(place: Place, stated: Mapping[str, Any], base: type[TextModel]) -> dict[str, Any]:
    """The attributes of the class, from the tables and the keys at the top level."""
    _check_entries(place, stated)
    attributes: dict[str, Any] = {key: stated[key] for key in ("model_type", "architecture") if key in stated}
    for key in ATTRIBUTES.keys() & stated.keys():
        value = stated[key]
        attributes[RENAMED.get(key, key)] = tuple(value) if isinstance(value, list) else value
    attributes |= _inherited(place, stated, base)
    attributes |= _settings(place, stated, base, attributes)
    own = read_pretokenizers(place, stated.get("pretokenizers", {}))
    attributes["pretokenizers"] = (*own, *base.pretokenizers)
    attributes["engines"] = read_engines(place, stated.get("engines", {}))
    return attributes | _rows(place, stated, base, attributes)


def _check_entries(place: Place, stated: Mapping[str, Any]) -> None:
    """Raise FormatError for an entry of the wrong type in a table without a reader, and for one that is no name."""
    for table, kind in TYPES.items():
        for key, value in stated.get(table, {}).items():
            place.check_type(value, kind, key, table)
    for key, name in stated.get("presence", {}).items():
        place.name(name[1:] if isinstance(name, str) and name.startswith("!") else name, key, "presence")
    for key, value in stated.get("moved", {}).items():
        if "{" in MOVED.sub("", value) or "{" in key.replace("{m}", "") or "{layers" not in value:
            expected = "{m} in the key; {layers+m} or {layers} in the value"
            raise place.error("is not valid", key, "moved", expected=expected, found=value[:60])


def _inherited(place: Place, stated: Mapping[str, Any], base: type[TextModel]) -> dict[str, Any]:
    """The attributes that have the base's entries and those of a table; a setting without a key is not fixed either."""
    left_out = {name for name, value in stated.get("keys", {}).items() if value is False}
    own: dict[str, Mapping[str, Any]] = {attribute: stated.get(table, {}) for table, attribute in MERGED.items()}
    own |= {attribute: read_each(place, stated, table, read) for table, (attribute, read) in READERS.items()}
    own["computed"] = read_products(place, stated.get("computed", {}), "computed")
    own["products"] = read_products(place, stated.get("sizes", {}), "sizes")
    start = {attribute: getattr(base, attribute, {}) for attribute in own}
    return {
        attribute: {**{name: each for name, each in start[attribute].items() if name not in left_out}, **entries}
        for attribute, entries in own.items()
    }


def _settings(
    place: Place, stated: Mapping[str, Any], base: type[TextModel], attributes: Mapping[str, Any]
) -> dict[str, Any]:
    """The keys, the names of settings in config.json, and the settings that are not keys of it."""
    names = {key: [value] if isinstance(value, str) else value for key, value in stated.get("names", {}).items()}
    for key, spellings in names.items():
        place.check_type(spellings, list, key, "names")
        for name in spellings:
            place.name(name, key, "names")
    inherited = getattr(base, "aliases", {})
    aliases = {**inherited, **names}
    usual = {spellings[0]: name for name, spellings in inherited.items()}
    keys = read_keys(place, stated.get("keys", {}), [evolve(key, hf=usual.get(key.hf, key.hf)) for key in base.keys])
    keys = tuple(evolve(key, hf=aliases.get(key.hf, [key.hf])[0]) for key in keys)
    switches = attributes["switches"]
    derived = [
        *base.derived, BEHIND, WINDOW_LAYERS, *attributes["by_kind"],
        *(name for name, spellings in aliases.items() if name != spellings[0]),
        *(name for each in attributes["nested"].values() for name in each), *stated.get("derived", ()),
    ]  # fmt: skip
    derived = [name for name in derived if name != stated.get("rotary")]
    derived += [key.hf for key in keys if key.hf in {**attributes["products"], **switches}]
    own: dict[str, Any] = {}
    if "kinds" in stated:
        own["by_layer"] = by_layer = read_layer_kinds(place, stated["kinds"])
        derived += [KINDS, *by_layer.counts]
    return {
        **own,
        "aliases": aliases,
        "own_names": {**base.own_names, **{key: spellings[0] for key, spellings in names.items()}},
        "keys": keys,
        "derived": tuple(dict.fromkeys(derived)),
        "own_lists": (*base.own_lists, *(each.setting for each in switches.values())),
    }


def _rows(
    place: Place, stated: Mapping[str, Any], base: type[TextModel], attributes: Mapping[str, Any]
) -> dict[str, Any]:
    """The rows, and the rules for other forms of them."""
    predicts = "predicting" in stated and not any(row.kind == PREDICTING for row in base.rows)
    start = (*base.rows, *prediction()) if predicts else tuple(base.rows)
    sizes: Collection[str] = {
        "experts", "layers", *ROW_SIZES, "*", *attributes["products"], *attributes["aliases"], *attributes["by_kind"],
        *(key.hf for key in attributes["keys"]), *(size for row in start for size in row.sizes()),
    }  # fmt: skip
    by_layer = attributes.get("by_layer", getattr(base, "by_layer", None))
    kinds = {*attributes["kinds"], *(kind for row in start for kind in row.kinds)}
    kinds |= {*by_layer.names} if by_layer is not None else set()
    rows = read_rows(place, stated.get("rows", {}), start, sizes, kinds, own=stated.get("own_rows", False))
    if "layer" in stated:
        rows = tuple(evolve(row, layer=stated["layer"]) for row in rows)
    more = read_stacks(place, stated["mlx"], rows, base) if "mlx" in stated else base.more
    fused = read_fused(place, stated.get("fused", {}), rows, sizes)
    other_names = read_other_names(place, stated.get("read", {}), rows)
    forms = {
        layout: (
            *more.get(layout, ()),
            *(fused if layout in FUSED else ()),
            *(other_names if layout in FOLDERS else ()),
        )
        for layout in {*more, *FUSED}
    }
    return {"rows": rows, "more": forms}
