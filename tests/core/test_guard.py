"""Blocks without garbage collection: what they build is not searched, and no garbage stays for long."""

from __future__ import annotations

import gc
import weakref

from squish_core.guard import gc_paused


class Cycle:
    def __init__(self) -> None:
        self.own = self


def test_garbage_is_collected_within_ten_blocks_of_many_objects() -> None:
    garbage = weakref.ref(Cycle())
    for _ in range(10):
        with gc_paused():
            kept: list[list[int]] = [[] for _ in range(110_000)]
            assert not gc.isenabled()
        assert gc.isenabled()
    assert garbage() is None
    assert len(kept) == 110_000


def test_what_the_program_froze_stays_frozen() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with gc_paused():
            kept: list[list[int]] = [[] for _ in range(110_000)]
        assert gc.get_freeze_count() >= frozen - 1000  # some have died
        assert len(kept) == 110_000
    finally:
        gc.unfreeze()


def test_a_block_in_a_block_leaves_collection_off() -> None:
    with gc_paused():
        with gc_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
