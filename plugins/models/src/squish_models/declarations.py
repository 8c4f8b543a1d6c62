"""Reads the declaration of a family: a TOML file that changes the tables of another family. It is data: no code.

docs/models.md has the schema ("Add a family").
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from attrs import evolve, fields_dict, frozen
from squish_convert.api import Interleave, Rule, Stack, Tile

from squish_core.api import ErrorCode, FamilyInfo, FormatError, Registry, hookimpl
from squish_core.api import registry as default_registry

from .config.keys import LAYER_SIZES, LISTS, Key
from .config.spelling import BEHIND
from .declared import KINDS, OTHERS, WINDOW_LAYERS, Declared, Layers, Leading, Pattern, Switches
from .engines.needs import EngineNeeds
from .engines.requirements import ENGINES
from .family import TextModel
from .layer_kinds import LayerKinds
from .rules import fused_experts, fused_gguf_experts, stacked_experts
from .tables import LAYER, PREDICTING, SWITCH, Row, prediction
from .tokenizer.pretokenizers import BY_NAME, Pretokenizer, pretokenizer_of

LARGEST = 1 << 16
NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]|\{e\}){0,127}")
GUIDE = 'See "Add a family" in docs/models.md.'
ROW_FIELDS = tuple(name for name in fields_dict(Row) if name not in ("hf", "layer", "scale"))
ROW_SIZES = ("head_dim", "q_rows", "kv_rows", "qkv_rows", "gate_up_rows", "group_rows")
"""Sizes that every family has beside its settings."""
MOVED = re.compile(r"\{layers(\+m)?\}")
FUSED, FOLDERS = ("hf", "mlx", "uqff"), ("hf", "mlx")
"""Layouts with the matrices of [fused], and those with the names of [read]."""
KEY_TYPES = ("u32", "f32", "bool", LAYER_SIZES, *LISTS)
EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
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
PRETOKENIZER = {
    "like": str, "steps": list, "ignore_merges": bool, "add_bos": bool, "add_sep": bool, "normalizer": str,
}  # fmt: skip
ENGINE = {"supported": bool, "required": list, "defaults": dict, "scalings": list, "pretokenizers": list}
"""Fields of an entry of these two tables, with their types."""


@frozen
class Declaration:
    """A family that a file declares, and what the registry lists of it."""

    info: FamilyInfo
    family: type[TextModel]


class Place:
    """A file, and the lines of its keys: the first line with the key in the table."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.lines = path, text.splitlines()

    def line(self, key: str, table: str = "") -> int:
        """The number of a key's line; that of the table, or 1, if the key is written in another way."""
        current, found = "", 1
        for number, line in enumerate(self.lines, 1):
            if header := re.match(r"\s*\[\s*([^\]]+?)\s*\]", line):
                current = header[1].strip("\"'")
                found = number if current in (table, table or key) else found
            elif current == table and re.match(rf"""\s*["']?{re.escape(key)}["']?\s*[.=]""", line):
                return number
        return found

    def error(self, message: str, key: str, table: str = "", **details: Any) -> FormatError:
        """An error about a key."""
        place = f"line {self.line(key, table)}, {f'[{table}] ' if table else ''}{key}"
        details.setdefault("hint", GUIDE)
        return FormatError(message, file=str(self.path), part=place, code=ErrorCode.CONFIG, **details)

    def check_name(self, name: str, names: Collection[str], what: str, key: str, table: str = "") -> None:
        """Raise FormatError for a name in the value of a key that is not one of these."""
        if name not in names:
            matches = get_close_matches(name, names, 3, 0.5)
            near = f"Close matches: {', '.join(matches)}." if matches else ""
            expected = None if near else ", ".join(sorted(names))
            message = f"is not a {what}" if name == key else f"is {name!r}, which is not a {what}"
            raise self.error(message, key, table, expected=expected, hint=f"{near} {GUIDE}".strip())

    def check_type(self, value: Any, kind: Any, key: str, table: str = "") -> Any:
        """Return a value of this type (a list of texts); FormatError for another one."""
        fits = isinstance(value, (int, float) if kind is float else kind) and (kind is bool or type(value) is not bool)
        if not fits or (kind is list and not all(isinstance(each, str) for each in value)):
            expected = {str: "text", bool: "true or false", float: "a number", list: "a list of texts"}.get(
                kind, "table"
            )
            raise self.error("has a value of the wrong type", key, table, expected=expected, found=repr(value)[:60])
        return value

    def name(self, value: Any, key: str, table: str = "") -> str:
        """A name of a tensor or a key; FormatError for other text."""
        if not isinstance(value, str) or not NAME.fullmatch(value):
            raise self.error(
                "is not a name",
                key,
                table,
                expected="letters, digits and _.-, and {e} for the expert",
                found=repr(value)[:60],
            )
        return value


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
    place, stated = _load(path)
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


def _load(path: Path) -> tuple[Place, dict[str, Any]]:
    """The file's content; FormatError if it is not TOML or too large."""
    file = str(path)
    try:
        with path.open("rb") as opened:
            data = opened.read(LARGEST + 1)
        text = data.decode()
    except OSError as error:
        raise FormatError(
            f"cannot be read: {error.strerror}",
            file=file,
            code=ErrorCode.MISSING,
            hint="Correct --family or SQUISH_FAMILIES.",
        ) from None
    except UnicodeDecodeError as error:
        raise FormatError("is not text in UTF-8", file=file, offset=error.start, code=ErrorCode.CONFIG) from None
    if len(data) > LARGEST:
        raise FormatError("is too large", file=file, code="size", expected=f"at most {LARGEST} bytes", hint=GUIDE)
    try:
        return Place(path, text), tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise FormatError("is not TOML", file=file, code=ErrorCode.CONFIG, found=str(error)[:120], hint=GUIDE) from None


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
    attributes: dict[str, Any] = {key: stated[key] for key in ("model_type", "architecture") if key in stated}
    for key in ATTRIBUTES:
        if key in stated:
            value = stated[key]
            own = tuple(value) if isinstance(value, list) else value
            attributes[RENAMED.get(key, key)] = own
    names = {key: [value] if isinstance(value, str) else value for key, value in stated.get("names", {}).items()}
    for key, spellings in names.items():
        place.check_type(spellings, list, key, "names")
        for name in spellings:
            place.name(name, key, "names")
    attributes["aliases"] = aliases = {**getattr(base, "aliases", {}), **names}
    attributes["computed"] = {
        **getattr(base, "computed", {}),
        **_products(place, stated.get("computed", {}), "computed"),
    }
    attributes["nested"] = nested = {**getattr(base, "nested", {}), **stated.get("nested", {})}
    for key, inner in stated.get("nested", {}).items():
        place.check_type(inner, list, key, "nested")
    removed = {stated.get("rotary", "")}
    inner_names = [name for each in nested.values() for name in each]
    renamed = [name for name, spellings in aliases.items() if name != spellings[0]]
    attributes["by_kind"] = {**getattr(base, "by_kind", {}), **_each(place, stated, "per_layer", _per_layer)}
    derived = (
        *base.derived,
        BEHIND,
        WINDOW_LAYERS,
        *attributes["by_kind"],
        *renamed,
        *inner_names,
        *stated.get("derived", ()),
    )
    attributes["derived"] = tuple(dict.fromkeys(name for name in derived if name not in removed))
    left_out = {name for name, value in stated.get("keys", {}).items() if value is False}
    for key, attribute in (
        ("fixed", "fixed"),
        ("unstated", "unstated"),
        ("prefixes",) * 2,
        ("moved", "moves"),
        ("values",) * 2,
        ("notes",) * 2,
        ("equivalents",) * 2,
    ):
        inherited = {name: value for name, value in getattr(base, attribute, {}).items() if name not in left_out}
        attributes[attribute] = {**inherited, **stated.get(key, {})}
    usual = {spellings[0]: name for name, spellings in getattr(base, "aliases", {}).items()}
    base_keys = [evolve(key, hf=usual.get(key.hf, key.hf)) for key in base.keys]
    keys = _keys(place, stated.get("keys", {}), base_keys)
    attributes["own_names"] = {**base.own_names, **{key: spellings[0] for key, spellings in names.items()}}
    attributes["keys"] = keys = tuple(evolve(key, hf=aliases.get(key.hf, [key.hf])[0]) for key in keys)
    attributes["products"] = {**getattr(base, "products", {}), **_products(place, stated.get("sizes", {}), "sizes")}
    attributes["kinds"] = {**getattr(base, "kinds", {}), **_each(place, stated, "layers", _layers)}
    if "kinds" in stated:
        attributes["by_layer"] = own = _layer_kinds(place, stated["kinds"])
        attributes["derived"] = (*attributes["derived"], KINDS, *own.counts)
    attributes["patterns"] = {**getattr(base, "patterns", {}), **_each(place, stated, "patterns", _pattern)}
    attributes["switches"] = {**getattr(base, "switches", {}), **_each(place, stated, "switches", _switches)}
    attributes["own_lists"] = (*base.own_lists, *(each.setting for each in attributes["switches"].values()))
    computed = [key.hf for key in keys if key.hf in {**attributes["products"], **attributes["switches"]}]
    attributes["derived"] = (*attributes["derived"], *computed)
    attributes["presence"] = {**getattr(base, "presence", {}), **stated.get("presence", {})}
    for key, name in stated.get("presence", {}).items():
        place.name(name[1:] if isinstance(name, str) and name.startswith("!") else name, key, "presence")
    for table, kind in (("prefixes", str), ("moved", str), ("values", dict), ("equivalents", dict), ("notes", str)):
        for key, value in stated.get(table, {}).items():
            place.check_type(value, kind, key, table)
    for key, value in stated.get("moved", {}).items():
        if "{" in MOVED.sub("", value) or "{" in key.replace("{m}", "") or "{layers" not in value:
            expected = "{m} in the key; {layers+m} or {layers} in the value"
            raise place.error("is not valid", key, "moved", expected=expected, found=value[:60])
    predicts = "predicting" in stated and not any(row.kind == PREDICTING for row in base.rows)
    start = (*base.rows, *prediction()) if predicts else tuple(base.rows)
    sizes = {"experts", "layers", *ROW_SIZES, "*", *attributes["products"]}
    sizes |= (
        {key.hf for key in keys}
        | {*aliases}
        | {*attributes["by_kind"]}
        | {size for row in start for size in row.sizes()}
    )
    by_layer = attributes.get("by_layer", getattr(base, "by_layer", None))
    kinds = {*attributes["kinds"], *(kind for row in start for kind in row.kinds)}
    kinds |= {*by_layer.names} if by_layer is not None else set()
    rows = _rows(place, stated.get("rows", {}), start, sizes, kinds, own=stated.get("own_rows", False))
    if "layer" in stated:
        rows = tuple(evolve(row, layer=stated["layer"]) for row in rows)
    attributes["rows"] = rows
    own = _pretokenizers(place, stated.get("pretokenizers", {}))
    attributes["pretokenizers"] = (*own, *base.pretokenizers)
    attributes["engines"] = _engines(place, stated.get("engines", {}))
    more = _stacks(place, stated["mlx"], rows, base) if "mlx" in stated else base.more
    fused = _fused(place, stated.get("fused", {}), rows, sizes)
    read = _read(place, stated.get("read", {}), rows)
    attributes["more"] = {
        layout: (*more.get(layout, ()), *(fused if layout in FUSED else ()), *(read if layout in FOLDERS else ()))
        for layout in {*more, *FUSED}
    }
    return attributes


def _rows(
    place: Place,
    stated: Mapping[str, Any],
    base: Iterable[Row],
    sizes: Collection[str],
    kinds: Collection[str],
    own: bool,
) -> tuple[Row, ...]:
    """The base's rows as the table changes them, or its `own` rows: text is GGUF's name, false leaves a row out."""
    rows = {} if own else {row.hf: row for row in base}
    for name, value in stated.items():
        place.name(name, name, "rows")
        if value is False:
            place.check_name(name, rows, "row of the base", name, "rows")
            del rows[name]
            continue
        change = {"gguf": value} if isinstance(value, str) else dict(place.check_type(value, dict, name, "rows"))
        for field in change:
            place.check_name(field, (*ROW_FIELDS, "like"), "field of a row", name, "rows")
        like = change.pop("like", name)
        if like != name:
            place.check_name(like, {row.hf for row in base}, "row of the base", name, "rows")
        start = next((row for row in (*rows.values(), *base) if row.hf == like), None)
        if start is None and not {"gguf", "shape"} <= change.keys():
            raise place.error("is a new row", name, "rows", expected="gguf and shape, or like", found=", ".join(change))
        shape = _sizes(place, name, change.pop("shape", start.shape if start else ()))
        if "gguf_shape" in change:
            change["gguf_shape"] = _sizes(place, name, change["gguf_shape"])
        if "tile" in change:
            change["tile"] = _tile(place, name, change["tile"])
        if isinstance(change.get("kind"), list):
            change["kind"] = tuple(place.check_type(change["kind"], list, name, "rows"))
        named = place.check_type(change.get("kind", ""), (str, tuple), name, "rows")
        for each in filter(None, (named,) if isinstance(named, str) else named):
            place.check_name(each, kinds, "kind of layers", name, "rows")
        for field, item in change.items():
            kind = _TYPES.get(field, type(getattr(_EXAMPLE, field)))
            place.check_type(item, kind, name, "rows")
        place.name(change.get("gguf", "_"), name, "rows")
        rows[name] = row = evolve(start or Row(name, change["gguf"], shape), hf=name, shape=shape, **change)
        for size in row.sizes():
            if not size.isdigit():
                place.check_name(size, sizes, "size, setting of [keys] or product of [sizes]", name, "rows")
    return tuple(rows.values())


def _sizes(place: Place, name: str, stated: Any) -> tuple[str, ...]:
    """The sizes in a shape; numbers as text."""
    texts = list(map(str, stated)) if isinstance(stated, (list, tuple)) else stated
    return tuple(place.check_type(texts, list, name, "rows"))


def _tile(place: Place, name: str, stated: Any) -> Tile:
    """The order of heads in the field of a row."""
    fields = dict(place.check_type(stated, dict, name, "rows"))
    types = {"groups": str, "parts": str, "after": str, "columns": bool, "inverse": bool}
    if isinstance(fields.get("parts"), list):
        fields["parts"] = list(_sizes(place, name, fields["parts"]))
    for field, value in fields.items():
        place.check_name(field, types, "field of tile", name, "rows")
        place.check_type(value, list if field == "parts" and isinstance(value, list) else types[field], name, "rows")
    if not {"groups", "parts"} <= fields.keys():
        raise place.error("does not state the order of heads", name, "rows", expected="tile with groups and parts")
    parts = fields.pop("parts")
    return Tile("", parts=tuple(parts) if isinstance(parts, list) else parts, **fields)


_TYPES = {"add": float, "permute": str, "tied_to": str, "tile": Tile, "kind": (str, tuple)}
"""Types of the fields of a row that are None by default."""
_EXAMPLE = Row("", "", ())


def _keys(place: Place, stated: Mapping[str, Any], base: Iterable[Key]) -> tuple[Key, ...]:
    """The base's keys, without those of the settings and the GGUF keys in the table, and those in the table."""
    own: list[Key] = []
    for setting, value in stated.items():
        for each in value if isinstance(value, list) else [value]:
            if each is False:
                continue
            fields = {"gguf": each} if isinstance(each, str) else dict(place.check_type(each, dict, setting, "keys"))
            for field, item in fields.items():
                place.check_name(field, ("gguf", "type", "required"), "field of a key", setting, "keys")
                place.check_type(item, bool if field == "required" else str, setting, "keys")
            like = next((key for key in base if key.hf == setting or key.gguf == fields.get("gguf")), Key("", ""))
            place.check_name(fields.get("type", like.type), KEY_TYPES, "type of a key", setting, "keys")
            own.append(evolve(like, hf=setting, **{"gguf": like.gguf, **fields}))
            place.name(own[-1].gguf, setting, "keys")
    taken = {key.gguf for key in own}
    return (*(key for key in base if key.hf not in stated and key.gguf not in taken), *own)


def _fused(place: Place, stated: Mapping[str, Any], rows: Iterable[Row], sizes: Collection[str]) -> tuple[Rule, ...]:
    """Rules for matrices that folders fuse: the rows of the first part of a group, of the second part, ..."""
    by_name, rules = {row.hf: row for row in rows}, []
    for name, parts in stated.items():
        place.name(name, name, "fused")
        if not isinstance(parts, list) or not all(isinstance(each, list) and len(each) == 2 for each in parts):
            expected = "a list of pairs: a row, and its number of rows in a group"
            raise place.error("is not valid", name, "fused", expected=expected, found=repr(parts)[:80])
        for row, size in parts:
            place.check_name(str(row), by_name, "row", name, "fused")
            place.check_name(str(size), sizes, "size, setting of [keys] or product of [sizes]", name, "fused")
        members = [(by_name[row], size) for row, size in parts]
        first = members[0][0]
        for suffix in (".weight", ".bias") if first.bias or first.biased else (".weight",):
            whole = evolve(first, hf=name).module(suffix)
            rules.append(Rule(whole, Interleave(tuple((row.module(suffix), size) for row, size in members))))
    return tuple(rules)


def _read(place: Place, stated: Mapping[str, Any], rows: Iterable[Row]) -> tuple[Rule, ...]:
    """Rules for other names of rows, which are only read."""
    by_name, rules = {row.hf: row for row in rows}, []
    for name, module in stated.items():
        place.check_name(
            place.check_type(module, str, name, "read"), by_name, "row", place.name(name, name, "read"), "read"
        )
        row = by_name[module]
        for suffix in (row.suffix, ".bias") if row.bias or row.biased else (row.suffix,):
            rules.append(Rule(evolve(row, hf=name).module(suffix), row.module(suffix), reading=True))
    return tuple(rules)


def _products(place: Place, stated: Mapping[str, Any], table: str) -> dict[str, tuple[str, ...]]:
    """Settings and sizes that are products."""
    for name, factors in stated.items():
        if not isinstance(factors, list) or not all(type(each) in (int, str) for each in factors):
            raise place.error("is not a product", name, table, expected="a list of settings and numbers", found=factors)
    return {name: tuple(map(str, factors)) for name, factors in stated.items()}


def _each(
    place: Place, stated: Mapping[str, Any], table: str, read: Callable[[Mapping[str, Any]], Any]
) -> dict[str, Any]:
    """Each entry of a table of tables, as an object."""
    entries = {}
    for name, value in stated.get(table, {}).items():
        try:
            entries[name] = read(value)
        except (TypeError, KeyError, ValueError, AttributeError):
            found = repr(value)[:80]
            raise place.error("is not valid", name, table, expected=read.__doc__, found=found) from None
    return entries


def _layers(value: Mapping[str, Any]) -> Layers:
    """{ first = SETTING }, or after, when, unless; or { setting = SETTING, values = [...] }"""
    layers = Layers(**{**value, "values": tuple(value.get("values", ()))})
    if len({*value} - {"values"}) != 1 or bool(layers.setting) != bool(layers.values):
        raise ValueError
    return layers


def _per_layer(value: Mapping[str, str]) -> Mapping[str, str]:
    """{ KIND = SETTING, others = SETTING }"""
    if OTHERS not in value or not all(isinstance(each, str) for each in value.values()):
        raise ValueError
    return value


def _pattern(value: Mapping[str, Any]) -> Pattern | Leading:
    """{ every = NUMBER, last = VALUE, others = VALUE } or { first = SETTING, are = VALUE, others = VALUE }"""
    if isinstance(value.get("first"), str):
        return Leading(**value)
    pattern = Pattern(**value)
    if type(pattern.every) is not int or pattern.every < 1:
        raise ValueError
    return pattern


def _layer_kinds(place: Place, stated: Mapping[str, Any]) -> LayerKinds:
    """How files state the kind of each layer."""
    types = {"names": dict, "setting": str, "lists": list, "numbers": dict, "periods": dict, "counts": dict}
    for field, value in stated.items():
        place.check_name(field, types, "field", field, "kinds")
        place.check_type(value, types[field], field, "kinds")
    names = stated.get("names", {})
    for kind, words in names.items():
        place.check_type(words, list, "names", "kinds")
        place.name(kind, "names", "kinds")
    for field in ("periods", "counts"):
        for pair in stated.get(field, {}).values():
            if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(each, str) for each in pair):
                raise place.error("is not valid", field, "kinds", expected="lists of two texts", found=repr(pair)[:60])
    counted = [kind for _, kind in stated.get("counts", {}).values()]
    for field, kinds in {"numbers": stated.get("numbers", {}).values(), "periods": stated.get("periods", {}),
                         "counts": counted}.items():  # fmt: skip
        for kind in kinds:
            place.check_name(str(kind), names, "kind in names", field, "kinds")
    if not names or not any(stated.get(field) for field in ("setting", "lists", "numbers", "periods")):
        raise place.error("does not state the kinds", "names", "kinds", expected="names, and setting, lists or periods")
    return LayerKinds(**stated)


def _switches(value: Mapping[str, Any]) -> Switches:
    """{ setting = SETTING, on = VALUE, off = VALUE }"""
    switches = Switches(**value)
    if not isinstance(switches.setting, str):
        raise ValueError
    return switches


def _fields(place: Place, value: Any, fields: Mapping[str, Any], key: str, table: str) -> dict[str, Any]:
    """The fields of an entry, each of its type."""
    stated = dict(place.check_type(value, dict, key, table))
    for field, item in stated.items():
        place.check_name(field, fields, "field of an entry", key, table)
        if field != "steps":
            place.check_type(item, fields[field], key, table)
    return stated


def _pretokenizers(place: Place, stated: Mapping[str, Any]) -> tuple[Pretokenizer, ...]:
    """Pre-tokenizers by name: like another one, or with steps as in tokenizer.json."""
    own = []
    for name, value in stated.items():
        fields = _fields(place, value, PRETOKENIZER, place.name(name, name, "pretokenizers"), "pretokenizers")
        like, steps = fields.pop("like", None), fields.pop("steps", None)
        if like is not None:
            place.check_name(like, BY_NAME, "pre-tokenizer", name, "pretokenizers")
        if (like is None) == (steps is None) or (steps is not None and not _are_steps(steps)):
            expected = "like, or steps: a list of regexes and of objects with a type"
            raise place.error("is not valid", name, "pretokenizers", expected=expected, found=repr(steps or like)[:80])
        start = pretokenizer_of(name, steps) if like is None else evolve(BY_NAME[like], names=(name,))
        own.append(evolve(start, **fields))
    return tuple(own)


def _are_steps(steps: Any) -> bool:
    """Whether these are steps that tokenizer.json can state."""
    try:
        json.dumps(steps)
    except TypeError:  # a date
        return False
    objects = [step for step in steps if not isinstance(step, str)] if isinstance(steps, list) else [None]
    return all(isinstance(step, dict) and isinstance(step.get("type"), str) for step in objects)


def _engines(place: Place, stated: Mapping[str, Any]) -> dict[str, EngineNeeds]:
    """What engines need of the family's models."""
    own = {}
    for engine, value in stated.items():
        place.check_name(engine, ENGINES, "name of an engine", engine, "engines")
        fields = _fields(place, value, ENGINE, engine, "engines")
        values: dict[str, Any] = {name: tuple(each) if type(each) is list else each for name, each in fields.items()}
        own[engine] = EngineNeeds(**values)
    return own


def _stacks(
    place: Place, stated: Mapping[str, Any], rows: Collection[Row], base: type[TextModel]
) -> dict[str, Sequence[Rule]]:
    """The rules for mlx-lm's own names, and for experts that engines stack: `stack` is its module beside `experts`."""
    modules = {row.hf for row in rows}
    renamed = []
    for key, module in stated.items():
        if key != "stack":
            place.check_name(
                place.check_type(module, str, key, "mlx"), modules, "row", place.name(key, key, "mlx"), "mlx"
            )
            renamed.append(Rule(f"{LAYER}{key}.weight", f"{LAYER}{module}.weight"))
    if "stack" not in stated:
        return {**base.more, "mlx": (*base.more.get("mlx", ()), *renamed)}
    stack = place.name(stated["stack"], "stack", "mlx")
    by_gguf = {row.gguf: row for row in rows if "{e}" in row.hf}
    if not by_gguf.keys() >= {*EXPERTS}:
        raise place.error(
            "has no experts to stack", "stack", "mlx", expected=f"rows with {{e}} for {', '.join(EXPERTS)}"
        )
    module = by_gguf[EXPERTS[0]].hf.partition(".experts.")[0]
    gate, up, down = names = [by_gguf[name].hf.rpartition(".")[2] for name in EXPERTS]
    size = by_gguf[EXPERTS[0]].shape[0]
    pairs = list(zip(SWITCH, names))
    own = {
        "gguf": fused_gguf_experts(module, gate, up, size),
        "hf": fused_experts(module, gate, up, down, size),
        "mlx": (*stacked_experts(module, stack, pairs, reading=False), *renamed),
        "uqff": stacked_experts(module, "experts", pairs, reading=False),
    }  # fmt: skip
    return {
        layout: (*(rule for rule in base.more.get(layout, ()) if not isinstance(rule.of, Stack)), *own.get(layout, ()))
        for layout in {*base.more, *own}
    }
