"""Operands lie elsewhere from binding to binding: in either order, and aligned as little and as much as can be."""

from __future__ import annotations

import pytest

from rung.arrays import address_of
from rung.check.guarded_memory import ALL, BAND, GuardedStorage, Placement, Slab


@pytest.mark.parametrize("placement", ALL)
@pytest.mark.parametrize("slab", [False, True])
def test_data_lies_as_its_placement_says(placement: Placement, slab: bool) -> None:
    addresses = Slab(placement, 3 * 1000 * 4, 3, "cpu") if slab else None
    storage = GuardedStorage("cuda" if slab else "emulator", alignment=4, placement=placement, addresses=addresses)
    starts = [address_of(storage.empty(name, (1000,), "float32")) for name in "abc"]
    assert sorted(starts, reverse=placement.below) == starts
    for start, block in zip(starts, storage.blocks.values(), strict=True):
        if placement.kind == "page":
            assert start % ((1 << 16) if slab else (2 << 20)) == 0
        if placement.kind == "odd":
            assert start % 8 == 4
        if placement.kind == "end":
            assert block.end == len(block.raw) - (BAND if slab else 0)
        assert block.start >= BAND
    storage.repaint()
    assert storage.damaged() is None
    storage.blocks["b"].raw[-1] ^= 1
    assert (storage.damaged() is None) == (placement.kind == "end" and not slab)  # where no band follows


def test_what_a_slab_has_no_room_for_lies_elsewhere() -> None:
    slab = Slab(Placement("page", below=True), 0, 1, "cpu")
    assert len(slab(BAND, 1 << 20)) == 1 << 20
