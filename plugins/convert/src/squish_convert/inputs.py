"""What a conversion reads and where it writes, opened from the arguments of `convert`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from squish_core import opening
from squish_core.codes import ErrorCode
from squish_core.errors import UsageError
from squish_core.file import File
from squish_core.io.remote_target import RemoteTarget
from squish_core.limits import Limits
from squish_core.plugins.registry import Registry
from squish_core.plugins.sources import remote_target, scheme_of

from .activations import open_activations
from .arrays import in_memory
from .plan import ConversionPlan, plan_mapped

RULES = ("to", "encode", "only", "rename")
"""Arguments that planning takes as they are."""


@frozen(kw_only=True, eq=False)
class Inputs:
    """The open source and activation statistics, the target, and the rules for planning."""

    file: File
    statistics: File | None
    target: Path | RemoteTarget
    rules: Mapping[str, Any]

    def plan(self, source: File, *, first_panels: bool) -> tuple[ConversionPlan, File]:
        """As `plan_mapped`; `source` is the file, or one that keeps what it reads."""
        path = self.target if isinstance(self.target, Path) else Path(self.target.filename)
        plan, model = plan_mapped(source, path, activations=self.statistics, first_panels=first_panels, **self.rules)
        return evolve(plan, target=str(self.target)), model


def open_inputs(
    arguments: Mapping[str, Any], stack: ExitStack, *, limits: Limits | None, registry: Registry | None
) -> Inputs:
    """Open what the arguments of `convert` name; `stack` closes it."""
    src, dst, activations = (arguments[name] for name in ("src", "dst", "activations"))
    if src is None or dst is None:
        raise UsageError(
            "convert needs a source and a target", code=ErrorCode.USAGE,
            hint="Name both, or {option:plan=FILE} with an existing plan.",
        )  # fmt: skip
    file, statistics = src, None
    if isinstance(src, Mapping) and not isinstance(src, File):
        file = stack.enter_context(in_memory(src, assets=arguments["assets"], registry=registry))
    elif not isinstance(src, File):
        file = stack.enter_context(opening.open(src, assets=arguments["assets"], limits=limits, registry=registry))
    if activations is not None:
        statistics = stack.enter_context(open_activations(activations, limits=limits, registry=registry))
    target: Path | RemoteTarget = Path(dst)
    if scheme_of(dst):
        target = stack.enter_context(closing(remote_target(dst, file.registry)))
    rules = {name: arguments[name] for name in RULES}
    if rules["only"] is not None and not isinstance(rules["only"], str):
        rules["only"] = tuple(rules["only"])
    rules["requantize"] = bool(arguments["requantize"])
    return Inputs(file=file, statistics=statistics, target=target, rules=rules)
