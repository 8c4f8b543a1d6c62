"""Declares the families of models; imports no implementation."""

from __future__ import annotations

from squish_core.api import FamilyInfo, hookimpl


@hookimpl
def squish_families() -> list[FamilyInfo]:
    """The families of this plugin."""
    return []
