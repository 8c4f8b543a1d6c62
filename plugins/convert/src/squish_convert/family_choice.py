"""Which family a GGUF belongs to, and which families nothing tells apart."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import combinations
from typing import Any

from squish_core.codes import ErrorCode
from squish_core.errors import ConflictError
from squish_core.formats.metadata import untyped
from squish_core.plugins.hookspecs import FamilyInfo


def fitting_families(
    infos: Iterable[FamilyInfo], architecture: str, meta: Mapping[str, Any], tensors: Collection[str]
) -> list[FamilyInfo]:
    """Return the families of a GGUF: of those whose keys and tensors fit, the ones that state most of them."""

    def is_there(names: str) -> bool:
        return any(map(is_one_there, names.split("|")))

    def is_one_there(name: str) -> bool:
        value = untyped(meta.get(f"{architecture}.{name}", meta.get(name, 0)))
        return name in tensors or bool(len(value) if hasattr(value, "__len__") else value)

    fitting = [
        info
        for info in infos
        if info.architecture == architecture
        and all(map(is_there, info.present))
        and not any(map(is_there, info.absent))
    ]
    most = max(map(_stated, fitting), default=0)
    return [info for info in fitting if _stated(info) == most]


def conflict(name: str, infos: Iterable[FamilyInfo]) -> ConflictError:
    """Return the error for a model that several families claim."""
    ids = sorted(info.id for info in infos)
    return ConflictError(
        f"several families are those of {name!r}",
        code=ErrorCode.CONFLICT,
        found=", ".join(ids),
        hint=f"Choose one with --names hf:{ids[0]} or --names gguf:{ids[0]}, or uninstall the others.",
    )


def family_conflicts(infos: Iterable[FamilyInfo]) -> list[ConflictError]:
    """Return the families that nothing tells apart: of one model type, or of one architecture.

    Parameters
    ----------
    infos
        Declarations of families.

    Returns
    -------
    list of ConflictError
        One for each pair and name.

    Examples
    --------
    >>> def info(name, **facts):
    ...     return FamilyInfo(id=name, title="", factory="", model_types=(name,), architecture="olmo2", **facts)
    >>> [error.found for error in family_conflicts([info("olmo2"), info("acme.olmo")])]
    ['acme.olmo, olmo2']
    >>> family_conflicts([info("olmo2"), info("acme.olmo", present=("attention.sliding_window",))])
    []
    """
    errors = []
    for one, other in combinations([info for info in infos if not info.layouts], 2):
        if one.part != other.part:
            continue
        apart_by_config = one.by_config and other.by_config
        shared = [name for name in one.model_types if name in other.model_types and not apart_by_config]
        apart = {*one.present} & {*other.absent} or {*other.present} & {*one.absent} or _stated(one) != _stated(other)
        if one.architecture == other.architecture != "" and not apart:
            shared.append(one.architecture)
        errors += [conflict(name, (one, other)) for name in dict.fromkeys(shared)]
    return errors


def _stated(info: FamilyInfo) -> int:
    return len(info.present) + len(info.absent)
