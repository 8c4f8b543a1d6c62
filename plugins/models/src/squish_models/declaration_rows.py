"""The tables of a declaration for tensors and keys: [rows], [fused], [read], [keys] and [mlx]."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from attrs import evolve, fields_dict
from squish_convert.api import Interleave, Rule, Stack, Tile

from .config.keys import LAYER_SIZES, LISTS, Key
from .declaration_file import Place
from .family import TextModel
from .rules import fused_experts, fused_gguf_experts, stacked_experts
from .tables import LAYER, SWITCH, Row

ROW_FIELDS = tuple(name for name in fields_dict(Row) if name not in ("hf", "layer", "scale"))
KEY_TYPES = ("u32", "f32", "bool", LAYER_SIZES, *LISTS)
EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")


def read_rows(
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


def read_keys(place: Place, stated: Mapping[str, Any], base: Iterable[Key]) -> tuple[Key, ...]:
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


def read_fused(
    place: Place, stated: Mapping[str, Any], rows: Iterable[Row], sizes: Collection[str]
) -> tuple[Rule, ...]:
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


def read_other_names(place: Place, stated: Mapping[str, Any], rows: Iterable[Row]) -> tuple[Rule, ...]:
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


def read_stacks(
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
