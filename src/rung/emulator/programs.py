"""Checks each address that the programs of an interpreted Triton kernel load and store: for races between programs,
which the interpreter runs one after the other and a GPU at once, and for accesses outside an operand."""

from __future__ import annotations

from typing import Any

import numpy as np

from rung.emulator.faults import EmulatorFault
from rung.emulator.guard import operand_at

MOST = 1 << 24  # addresses recorded per launch; a launch with more is not judged

Touched = list[tuple[np.ndarray[Any, Any], int]]  # addresses, and the program that touched them


class Programs:
    """What the programs of one launch load and store."""

    def __init__(self) -> None:
        self.loads: Touched = []
        self.stores: Touched = []
        self.atomics = False  # which may order later loads
        self._room = MOST

    def note(self, write: bool, width: int, addresses: np.ndarray[Any, Any], mask: Any, program: int) -> None:
        """A load or store of this many bytes at each address that the mask admits, before it happens."""
        touched = np.unique(np.broadcast_to(addresses, mask.shape)[mask])
        if not len(touched):
            return
        where = self.stores if write else self.loads
        first, last = int(touched[0]), int(touched[-1])
        operand = operand_at(first) or operand_at(last)
        if operand is not None:
            start, end, written = operand
            if first < start or last + width > end:
                before = first < start
                beside, size = (start - first, "before the start") if before else (last + width - end, "past the end")
                text = f"program {program} {'stores' if write else 'loads'} {beside} bytes {size} of an operand"
                raise EmulatorFault("bounds", text)
            if write and not written:
                raise EmulatorFault("bounds", f"program {program} stores to an input")
        self._room -= len(touched)
        if self._room >= 0:
            where.append((touched, program))

    def judge(self, kernel: str) -> None:
        """Refuses two programs that store to the same address, or of which one loads what the other stores."""
        if self._room < 0 or not self.stores:
            return
        stored, by = _together(self.stores)
        order = np.argsort(stored, kind="stable")
        stored, by = stored[order], by[order]
        twice = np.flatnonzero((stored[1:] == stored[:-1]) & (by[1:] != by[:-1]))
        if len(twice):
            self._refuse(kernel, "store to", int(by[twice[0]]), int(by[twice[0] + 1]))
        if self.atomics or not self.loads:
            return
        loaded, reader = _together(self.loads)
        at = np.minimum(np.searchsorted(stored, loaded), len(stored) - 1)
        crossed = np.flatnonzero((stored[at] == loaded) & (by[at] != reader))
        if len(crossed):
            self._refuse(kernel, "load and store", int(reader[crossed[0]]), int(by[at[crossed[0]]]))

    def _refuse(self, kernel: str, do: str, one: int, other: int) -> None:
        both = f"programs {min(one, other)} and {max(one, other)} of kernel '{kernel}'"
        raise EmulatorFault("race", f"{both} {do} one address with nothing between")


def _together(touched: Touched) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    programs = [np.full(len(addresses), program) for addresses, program in touched]
    return np.concatenate([addresses for addresses, _ in touched]), np.concatenate(programs)
