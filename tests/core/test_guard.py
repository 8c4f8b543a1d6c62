"""Blocks without garbage collection."""

from __future__ import annotations

import gc

from squish_core.guard import gc_paused


def test_a_block_in_a_block_leaves_collection_off() -> None:
    with gc_paused():
        with gc_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
