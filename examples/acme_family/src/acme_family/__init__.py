"""Declares the models of ACME; imports no implementation. The family itself is data: acme.toml."""

from __future__ import annotations

from pathlib import Path

from squish_core.api import FamilyInfo, hookimpl

FILE = Path(__file__).with_name("acme.toml")


@hookimpl
def squish_families() -> list[FamilyInfo]:
    """The family of this plugin; without an architecture of its own, its GGUF files are those of its base."""
    return [
        FamilyInfo(
            id="acme",
            title="ACME",
            factory=f"squish_models.families.declared:{FILE}",
            model_types=("acme",),
            architecture="",
        )
    ]
