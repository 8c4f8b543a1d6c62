"""`squish browse`, driven by keys in a terminal of 80 x 24."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squish_cli import main

import squish_core as squish

pytest.importorskip("textual")

from squish_cli.browser import Browser
from textual.widgets import Static, Tree

TENSORS = {
    **{f"model.layers.{n}.mlp.up_proj.weight": np.full((8, 32), n + 1, np.float32) for n in (0, 1, 10, 2)},
    "lm_head.weight": np.ones((4, 32), np.float16),
    "[red]bad[/red]\x1b[31m": np.ones(4, np.float32),
}


@pytest.fixture
def file(tmp_path: Path) -> squish.File:
    squish.save(tmp_path / "a.safetensors", TENSORS, metadata={"base_model": "org/base"})
    return squish.open(tmp_path / "a.safetensors")


def shown(app: Browser) -> str:
    return str(app.query_one("#text", Static).visual)


def labels(app: Browser) -> list[str]:
    return [str(node.label) for node in app.query_one("#tree", Tree).root.children]


def driven(app: Browser, steps: Callable[[Any], Awaitable[None]]) -> None:
    """Run the program without a terminal, and drive it."""

    async def run() -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.pause()
            await steps(pilot)

    asyncio.run(run())


def test_the_tree_has_layers_in_order_and_opens_them(file: squish.File) -> None:
    app = Browser(file)

    async def steps(pilot: Any) -> None:
        assert labels(app) == [*(f"model.layers.{n} (1)" for n in (0, 1, 2, 10)), "outside layers (2)"]
        await pilot.press("down", "enter")
        await pilot.pause()
        await pilot.press("down")
        await pilot.pause()
        assert app.selected == "model.layers.1.mlp.up_proj.weight"
        assert "8 x 32" in shown(app)

    driven(app, steps)


def test_values_are_read_when_asked_for(file: squish.File) -> None:
    app = Browser(file)

    async def steps(pilot: Any) -> None:
        app.selected = "model.layers.1.mlp.up_proj.weight"
        await pilot.press("s")
        await app.workers.wait_for_complete()
        await pilot.pause()
        text = shown(app)
        assert "mean  2" in text
        assert "2^1 ####" in text
        await pilot.press("slash", *"head", "enter")
        await pilot.pause()
        assert "s reads its values" in shown(app)

    driven(app, steps)


def test_a_search_lists_what_matches_and_escape_leaves_it(file: squish.File) -> None:
    app = Browser(file)

    async def steps(pilot: Any) -> None:
        await pilot.press("slash", *"head")
        await pilot.pause()
        assert labels(app) == ["lm_head.weight"]
        await pilot.press("enter")
        await pilot.pause()
        assert app.selected == "lm_head.weight"
        await pilot.press("escape")
        await pilot.pause()
        assert len(labels(app)) == 5

    driven(app, steps)


def test_names_are_shown_as_they_are(file: squish.File) -> None:
    app = Browser(file)

    async def steps(pilot: Any) -> None:
        app.selected = "[red]bad[/red]\x1b[31m"
        await pilot.press("t")
        await pilot.pause()
        assert "[red]bad[/red]\\x1b[31m" in shown(app)
        await pilot.press("slash", *"bad")
        await pilot.pause()
        assert labels(app) == ["[red]bad[/red]\\x1b[31m"]

    driven(app, steps)


@pytest.mark.parametrize(
    ("key", "text"),
    [("p", "chosen"), ("m", "base_model: org/base"), ("f", "made from base model"), ("question_mark", "Keys")],
)
def test_keys_show_the_rest(file: squish.File, key: str, text: str) -> None:
    app = Browser(file)

    async def steps(pilot: Any) -> None:
        await pilot.press(key)
        await pilot.pause()
        assert text in shown(app)

    driven(app, steps)


def test_two_files_are_side_by_side(file: squish.File, tmp_path: Path) -> None:
    squish.save(
        tmp_path / "b.safetensors",
        {**TENSORS, "lm_head.weight": np.full((4, 32), 2, np.float16), "more": np.ones(2, np.float16)},
    )
    app = Browser(file, squish.open(tmp_path / "b.safetensors"))

    async def steps(pilot: Any) -> None:
        app.selected = "lm_head.weight"
        await pilot.press("d")
        await app.workers.wait_for_complete()
        await pilot.pause()
        text = shown(app)
        assert "NMSE 1" in text
        assert "mean  1" in text
        assert "mean  2" in text
        await pilot.press("slash", *"more", "enter", "t")
        await pilot.pause()
        assert "not in" in shown(app)
        assert "f16" in shown(app)

    driven(app, steps)


def test_it_needs_a_terminal(file: squish.File) -> None:
    assert main(["browse", str(file.path)]) == 2
