"""Commands that convert only values that need it: typer 0.29 loads pydantic even for text, which takes 0.2 s."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer.core


class _Conversion:
    """Typer's conversion of a parameter's value, unless the value has its type already."""

    def __init__(self, converter: Callable[[], Any]) -> None:
        self._converter = converter

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        annotation = param.type_descriptor.annotation
        if annotation == list[str] and not isinstance(value, str) and {*map(type, value)} <= {str}:
            return list(value)
        return value if type(value) is annotation else self._converter().coerce(value, param=param, ctx=ctx)


def _lazily(parameters: Any) -> Any:
    """The parameters of a command, converted in this way."""
    for parameter in parameters:
        converter = getattr(parameter, "get_runtime_param", None)  # older versions do not load pydantic
        if converter is not None and "get_runtime_param" not in vars(parameter):
            conversion = _Conversion(converter)
            parameter.get_runtime_param = lambda conversion=conversion: conversion
    return parameters


class Command(typer.core.TyperCommand):
    """A command."""

    def get_params(self, ctx: Any) -> Any:
        return _lazily(super().get_params(ctx))


class Group(typer.core.TyperGroup):
    """A group of commands."""

    def get_params(self, ctx: Any) -> Any:
        return _lazily(super().get_params(ctx))


class App(typer.Typer):
    """An app of such commands, those of plugins included."""

    def __init__(self, **options: Any) -> None:
        super().__init__(cls=Group, **options)

    def command(self, name: str | None = None, **options: Any) -> Any:
        return super().command(name, **{"cls": Command, **options})
