"""Declares a third party's family; imports no implementation."""

from __future__ import annotations

from squish_core.api import FamilyInfo, hookimpl


@hookimpl
def squish_families() -> list[FamilyInfo]:
    """The family of this plugin."""
    return [
        FamilyInfo(
            id="acme.lm", title="ACME LM", factory="acme_family:AcmeLM", model_types=("acme",), architecture="acme"
        )
    ]
