"""Docstrings of the public callables have the sections of NumPy's style that apply to them.

Every method of the classes that `squish_core` exports and every interface that a plugin implements names its
parameters and says what it returns and raises. Functions and methods that a program calls have an example each; the
interfaces of plugins have one for each class. tests/test_doctests.py runs the examples.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import squish_core as squish
from squish_core import api
from squish_core.plugins.hookspecs import Hooks

INTERFACES = (
    api.Container, api.Refinement, api.Codec, api.ByteCodec, api.Allocator, api.Encoder, api.Decoder, api.Backend,
    Hooks,
)  # fmt: skip
"""What plugins implement."""
EXPORTS = [getattr(squish, name) for name in squish.__all__ if name != "__version__"]
CLASSES = [each for each in EXPORTS if inspect.isclass(each) and not issubclass(each, BaseException)]
FUNCTIONS = [each for each in EXPORTS if inspect.isfunction(each)]


def methods(owner: type) -> Iterator[Callable[..., Any]]:
    """Public methods that a class or a base of it in the core defines; deprecated ones aside."""
    for name, _ in inspect.getmembers(owner, callable):
        home = next((base for base in owner.__mro__ if name in vars(base)), owner)
        value = vars(home).get(name)
        function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if name.startswith("_") or not inspect.isfunction(function) or not home.__module__.startswith("squish_core"):
            continue
        if not (function.__doc__ or "").startswith("Deprecated"):
            yield function


def unique(owners: Any) -> list[Callable[..., Any]]:
    return list({method.__qualname__: method for owner in owners for method in methods(owner)}.values())


CALLED = [*FUNCTIONS, *unique(CLASSES)]
IMPLEMENTED = unique(INTERFACES)


def sections(function: Any) -> dict[str, str]:
    """Title -> text of each section of a docstring; the summary is under ""."""
    pieces = re.split(r"^([A-Z]\w+)\n-{3,}\n", inspect.cleandoc(function.__doc__ or ""), flags=re.MULTILINE)
    return {"": pieces[0], **dict(zip(pieces[1::2], pieces[2::2]))}


def raises(function: Callable[..., Any]) -> bool:
    """Whether a function itself raises an error, NotImplementedError aside."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    errors = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc is not None]
    return any(isinstance(e, ast.Call) or (isinstance(e, ast.Name) and e.id != "NotImplementedError") for e in errors)


def lacks(function: Callable[..., Any], *, example: bool) -> list[str]:
    """What a docstring lacks."""
    found, signature = sections(function), inspect.signature(function)
    summary = found[""].strip().split("\n\n")[0].replace("\n", " ")
    missing = [] if summary.endswith((".", ")", ":")) or not summary else ["a summary that is a sentence"]
    missing += [] if summary else ["a summary"]
    names = [name for name in signature.parameters if name not in ("self", "cls")]
    named = re.findall(r"^(\S.*)$", found.get("Parameters", ""), re.MULTILINE)
    listed = {name.lstrip("*") for line in named for name in re.split(r", | : ", line)}
    missing += [f"parameter {name}" for name in names if name not in listed]
    missing += [f"no parameter {name}" for name in listed - set(names)]
    if signature.return_annotation not in (None, "None", inspect.Signature.empty) and not {"Returns", "Yields"} & set(
        found
    ):
        missing.append("Returns")
    if raises(function) and "Raises" not in found:
        missing.append("Raises")
    if example and ">>> " not in found.get("Examples", ""):
        missing.append("Examples")
    return missing


@pytest.mark.parametrize("function", CALLED, ids=lambda function: function.__qualname__)
def test_what_a_program_calls_is_documented(function: Callable[..., Any]) -> None:
    assert not lacks(function, example=True)


@pytest.mark.parametrize("function", IMPLEMENTED, ids=lambda function: function.__qualname__)
def test_what_a_plugin_implements_is_documented(function: Callable[..., Any]) -> None:
    assert not lacks(function, example=False)


@pytest.mark.parametrize("interface", INTERFACES, ids=lambda interface: interface.__name__)
def test_what_a_plugin_implements_has_an_example(interface: type) -> None:
    assert ">>> " in sections(interface).get("Examples", "")
