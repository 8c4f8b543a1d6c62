"""`squish new-plugin NAME`: a working plugin, copied from the examples, or the parts of one that a kind needs."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

import squish_core
from squish_core.codes import ErrorCode
from squish_core.errors import MissingPluginError, UsageError
from squish_core.plugins import catalog
from squish_core.plugins.registry import registry
from squish_core.text import site_page

from .output import Answer
from .pruning import pruned

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
SUFFIXES = (".py", ".toml", ".typed")
OTHERS = ("README.md", "LICENSE", ".gitignore", ".github/workflows/test.yml")
"""Files of an example besides those with these suffixes."""
MAGIC = 4
"""Length of the example's magic, in bytes."""
FAMILY, BASE = "family", "llama"
EXAMPLES = {FAMILY: ("example_family", "acme_family")}
"""Kind -> folder of its example in the installed package, and in a checkout; all others are in one example."""
PARTS = {
    "format": ("container",),
    "codec": ("codec", "runs"),
    "backend": ("backend",),
    "refinement": ("container", "pairs", "codec"),
}
"""Kind -> the modules of the example that it needs: a refinement, too, the format that it refines."""


def new_plugin(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new distribution, such as my-format.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FOLDER", help="Where to create the plugin's folder.")
    ] = Path(),
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="|".join((*PARTS, FAMILY)), help="Only this part.")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option("--base", metavar="ID", help=f"The family that a new family is like (default: {BASE})."),
    ] = None,
) -> Answer:
    """Create a working plugin to start from.

    It contains a format, a refinement, two codecs, a backend and their tests: the example of the guide that is named
    at the end.
    --kind writes only one of these, or a family of models: a TOML file that changes the tables of --base.
    """
    from squish_core.io.atomic import atomic_folder

    files = plugin_files(name, kind, base)
    target = output / name
    with atomic_folder(target) as sink:
        for path in sorted(path for path in files if not path.startswith(".")):
            folder, _, file = path.rpartition("/")
            with sink.member(file, folder) as member:
                member.write(files[path].encode())
    for path in sorted(path for path in files if path.startswith(".")):  # hidden names are refused above
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_bytes(files[path].encode())
    kit = "" if importlib.util.find_spec("squish_testing") else f"{catalog.install_command('squish-testing')} && "
    lines = [f"wrote {target}: {len(files)} files"]
    lines.append(f"next: {kit}cd {target} && pip install -e '.[test]' && pytest")
    lines.append("set: the authors and the addresses in pyproject.toml")
    lines.append(f"guide: {site_page('writing-a-plugin')}")
    return Answer({"target": str(target), "files": sorted(files)}, lines)


def plugin_files(name: str, kind: str | None, base: str | None) -> dict[str, str]:
    """Path -> text of the files of a new plugin; UsageError for a name, a kind or a base that cannot be used."""
    if kind not in (None, *PARTS, FAMILY):
        raise UsageError(
            f"there is no kind of plugin {kind!r}", expected=", ".join((*PARTS, FAMILY)), code=ErrorCode.USAGE
        )
    if base is not None and kind != FAMILY:
        raise UsageError("--base is for families", expected=f"--kind {FAMILY}", code=ErrorCode.USAGE)
    names = names_for(name, kind)
    files = dict(example_files(kind))
    if kind == FAMILY:
        _check_base(base or BASE)
        names[f'"{BASE}"'] = f'"{base or BASE}"'
    elif kind is not None:
        files = pruned(files, PARTS[kind])
    return {substitute(path, names): substitute(text, names) for path, text in files.items()}


def example_files(kind: str | None = None) -> Iterator[tuple[str, str]]:
    """Path and text of each file of an example, from the installed package or else from the checkout."""
    package = Path(squish_core.__file__).parent
    installed, own = EXAMPLES.get(kind or "", ("example", "acme_format"))
    folders = (package / installed, package.parent / "examples" / own)
    folder = next(folder for folder in folders if folder.is_dir())
    for file in sorted(folder.rglob("*")):
        path = file.relative_to(folder).as_posix()
        if (file.suffix in SUFFIXES or path in OTHERS) and file.is_file():
            yield path, file.read_text(encoding="utf-8")


def names_for(name: str, kind: str | None = None) -> dict[str, str]:
    """Return the new name for each name of the example; UsageError if the plugin's name cannot be used."""
    if not NAME.fullmatch(name):
        expected = "a lower-case letter, then lower-case letters, digits and single dashes"
        raise _name_error("is not a valid distribution name", name, expected)
    package = name.replace("-", "_")
    if name == "squish" or name.startswith("squish-"):
        raise _name_error("is reserved for Squish's own plugins", name, "another name, such as my-format")
    is_reserved = package in sys.stdlib_module_names or keyword.iskeyword(package)
    if is_reserved or importlib.util.find_spec(package) is not None:
        raise _name_error("is the name of an existing module", name, "an unused name, such as my-format")
    vendor = re.sub(rf"-(format|plugin|{kind or 'format'})$", "", name).replace("-", "_")
    magic = vendor.replace("_", "").upper()[:MAGIC].ljust(MAGIC, "_")
    _check_ids(name, vendor, magic, kind)
    example = EXAMPLES.get(kind or "", ("", "acme_format"))[1]
    return {
        'b"ACME"': f'b"{magic}"',
        "AcmeForCausalLM": f"{vendor.title().replace('_', '')}ForCausalLM",
        example: package,
        example.replace("_", "-"): name,
        "acme": vendor,
        "ACME": vendor.upper(),
    }


def _check_ids(name: str, vendor: str, magic: str, kind: str | None) -> None:
    """Raise UsageError if an installed plugin has an id, or the bytes of a signature, that the new one would have."""
    if kind == FAMILY:
        for entry in registry().families.values():
            if vendor in (entry.id, *entry.info.model_types):
                raise _name_error(f"collides with the family {entry.id}", name, "another name")
        return
    for container in registry().containers.values():
        signatures = [signature.bytes for signature in container.info.signatures]
        if container.info.id.partition(".")[0] == vendor or magic.encode() in signatures:
            raise _name_error(f"collides with the format {container.info.id}", name, "another name")


def _check_base(base: str) -> None:
    """Raise SquishError if a small model of the base, with which the new plugin's tests run, cannot be made."""
    try:
        models = import_module("squish_models.api")
    except ModuleNotFoundError:
        raise MissingPluginError(
            f"--kind {FAMILY} needs squish-models, which is not installed",
            code=ErrorCode.NOT_INSTALLED,
            hint=f"Run `{catalog.install_command('squish-models')}`.",
        ) from None
    models.small_config(base)


def substitute(text: str, names: Mapping[str, str]) -> str:
    """Return a text of the example with all names replaced in one pass."""
    return re.sub("|".join(map(re.escape, names)), lambda match: names[match[0]], text)


def _name_error(why: str, name: str, expected: str) -> UsageError:
    return UsageError(
        f"{name!r} {why}",
        expected=expected,
        code=ErrorCode.USAGE,
        hint="See `squish new-plugin --help`.",
    )
