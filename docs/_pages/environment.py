"""Environment variables, from the table that the command line checks them with."""

from __future__ import annotations

from collections.abc import Iterator

from squish_cli.app import OTHER_SETTINGS, SETTINGS

from . import table

HEAD = """# Environment variables

The command line refuses an invalid value before it does anything, and warns of a variable whose name is nearly one of
these.

"""
MEANING = {
    "SQUISH_CACHE": "the folder for what is unpacked or built: [ane](../backends/ane.md)",
    "SQUISH_CACHE_SIZE": "the size of that folder, at most; 16 GiB by default",
    "SQUISH_CPU_INSTRUCTIONS": "the instructions of the compiled kernels, instead of the best that the processor has: "
    "[cpu](../backends/cpu.md)",
    "SQUISH_CPU_LIBRARY": "another build of the compiled kernels",
    "SQUISH_CPU_THREADS": "threads of the compiled kernels; `SQUISH_THREADS` by default",
    "SQUISH_FAMILIES": "TOML files that declare families of models, joined as in `PATH`: [whole models](../models.md)",
    "SQUISH_LIMITS": "upper bounds for what a file may declare, such as `tensors=2000000`: "
    "[architecture](../architecture.md#hostile-input)",
    "SQUISH_METAL": "where MLX runs: [metal](../backends/metal.md)",
    "SQUISH_PLUGINS": "which plugins count: `+name` only these, `-name` not this, `id=distribution` which of two: "
    "[architecture](../architecture.md#plugin-interface)",
    "SQUISH_SOURCE": "options of what opens URLs, such as `deadline=5,in_flight=8`: [remote](../remote.md)",
    "SQUISH_THREADS": "threads of each operation; one per core by default: [architecture](../architecture.md#threads)",
    "SQUISH_TIERS": "`build`: the first load of a npy directory writes its next tier: [npydir](../formats/npydir.md)",
}


def pages() -> Iterator[tuple[str, str]]:
    """The page; a variable without a meaning is an error."""
    values = {name: expected for name, (_, expected) in SETTINGS.items()}
    rows = [(f"`{name}`", MEANING[name], values.get(name, "")) for name in sorted((*SETTINGS, *OTHER_SETTINGS))]
    yield "environment.md", HEAD + table(("variable", "sets", "values"), rows)
