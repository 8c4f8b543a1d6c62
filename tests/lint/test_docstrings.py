"""Docstrings of the public callables have the sections of NumPy's style that apply to them.

What a program calls and what a plugin implements names its parameters, and says what it returns and raises. What a
program calls has an example each, the interfaces of plugins have one for each class; tests/core/test_doctests.py runs
them.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
from api_reference import sections
from squish_convert.api import Family

import squish_core as squish
from squish_core import api
from squish_core.plugins.hookspecs import Hooks

INTERFACES = (
    api.Container, api.Refinement, api.Codec, api.ByteCodec, api.Allocator, api.Backend, Family,
    Hooks,
)  # fmt: skip
"""What plugins implement."""
SHARED = (api.Codec, api.ByteCodec, api.Allocator)
"""Interfaces whose methods share their arguments: the class explains these, a line what each method gives."""
ONE_LINE = {
    "Benchmark.lines", "Diagnosis.lines", "Summary.lines", "Chain.without_chosen", "Statistics.of",
    "File.array", "File.bind", "File.guard", "File.source_for", "Tensor.backing", "Tensor.guard",
    "Registry.absent_backends", "Registry.is_outside", "Registry.missing", "Registry.same_codec",
    "Registry.reading_options", "Registry.writing_options", "Registry.encoder", "Registry.encoder_type",
    "Registry.container", "Registry.codec", "Registry.codec_type", "Registry.byte_codec", "Registry.allocator",
    "Registry.backend", "Registry.instance", "Offer.about", "File.sources",
}  # fmt: skip
"""Methods between the parts of the core: a line says what they do."""
EXPORTS = [getattr(squish, name) for name in squish.__all__ if name != "__version__"]
CLASSES = [member for member in EXPORTS if inspect.isclass(member) and not issubclass(member, BaseException)]
FUNCTIONS = [member for member in EXPORTS if inspect.isfunction(member)]
PLUGINS = {
    "squish_codecs": "squish_codecs", "squish_ggml": "squish_ggml", "squish_models": "squish_models",
    "squish_safetensors": "squish_safetensors", "squish_torch": "torch", "squish_zstd": "squish_zstd",
}  # fmt: skip
"""Plugin -> what its interface loads first."""
MODULES = [
    "squish_core", "squish_core.api", "squish_core.testing", "squish_convert.api", "squish_cli.api",
    *(f"{plugin}.api" for plugin, library in PLUGINS.items() if find_spec(plugin) and find_spec(library)),
]  # fmt: skip
"""What programs, plugins and their tests import."""
DECLARED = [
    pytest.param(getattr(import_module(module), name), id=f"{module}.{name}")
    for module in MODULES
    for name in import_module(module).__all__
    if inspect.isfunction(getattr(import_module(module), name)) or inspect.isclass(getattr(import_module(module), name))
]


def methods(owner: type) -> Iterator[Callable[..., Any]]:
    """Public methods that a class or a base of it defines in the core, squish-convert or the command line."""
    for name, _ in inspect.getmembers(owner, callable):
        home = next((base for base in owner.__mro__ if name in vars(base)), owner)
        value = vars(home).get(name)
        function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        overrides = sum(name in vars(base) for base in owner.__mro__) > 1
        if overrides and not function.__doc__:
            continue  # it does what the base says
        if (
            name.startswith("_")
            or not inspect.isfunction(function)
            or not home.__module__.startswith(("squish_core", "squish_convert", "squish_cli"))
        ):
            continue
        yield function


def unique(owners: Any) -> list[Callable[..., Any]]:
    return list({method.__qualname__: method for owner in owners for method in methods(owner)}.values())


CALLED = [member for member in [*FUNCTIONS, *unique(CLASSES)] if member.__qualname__ not in ONE_LINE]


def raises(function: Callable[..., Any]) -> bool:
    """Whether a function itself raises an error, NotImplementedError aside."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    errors = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc is not None]
    return any(isinstance(e, ast.Call) or (isinstance(e, ast.Name) and e.id != "NotImplementedError") for e in errors)


def parameters(text: str) -> set[str]:
    """Names that a section `Parameters` explains."""
    lines = re.findall(r"^(\S.*)$", text, re.MULTILINE)
    return {name.lstrip("*") for line in lines for name in line.partition(" :")[0].split(", ")}


def lacks(function: Callable[..., Any], shared: type | None = None) -> list[str]:
    """What a docstring lacks; `shared` is the class that explains the arguments of all its methods."""
    titles, signature = sections(function), inspect.signature(function)
    names = [name for name in signature.parameters if name not in ("self", "cls")]
    explained = parameters(titles.get("Parameters", ""))
    elsewhere = parameters(sections(shared).get("Parameters", "")) if shared else set()
    missing = [] if titles[""].strip() else ["summary"]
    missing += [f"parameter {name}" for name in names if name not in explained | elsewhere]
    missing += [f"no parameter {name}" for name in explained - set(names)]
    if shared is None:
        returns = signature.return_annotation not in (None, "None", inspect.Signature.empty)
        missing += ["Returns"] if returns and not {"Returns", "Yields"} & set(titles) else []
        missing += ["Raises"] if raises(function) and "Raises" not in titles else []
    return missing


@pytest.mark.parametrize("function", CALLED, ids=lambda function: function.__qualname__)
def test_public_callables_are_documented(function: Callable[..., Any]) -> None:
    assert not lacks(function)
    assert ">>> " in sections(function).get("Examples", "")


@pytest.mark.parametrize("value", DECLARED)
def test_every_public_name_is_documented(value: Any) -> None:
    summary = inspect.cleandoc(value.__doc__ or "").partition("\n\n")[0]
    assert summary.endswith((".", ":"))
    if inspect.isfunction(value):
        assert not lacks(value)
        assert ">>> " in sections(value).get("Examples", "")


@pytest.mark.parametrize("function", unique(INTERFACES), ids=lambda function: function.__qualname__)
def test_plugin_methods_are_documented(function: Callable[..., Any]) -> None:
    home = function.__qualname__.partition(".")[0]
    owner = next((member for member in SHARED if home in [base.__name__ for base in member.__mro__]), None)
    assert not lacks(function, owner)


@pytest.mark.parametrize("interface", INTERFACES, ids=lambda interface: interface.__name__)
def test_plugin_methods_have_an_example(interface: type) -> None:
    assert ">>> " in sections(interface).get("Examples", "")


def test_the_exceptions_exist() -> None:
    assert {member.__qualname__ for member in unique(CLASSES)} >= ONE_LINE
