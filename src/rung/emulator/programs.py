"""Checks each address that the programs of an interpreted Triton kernel touch: for races, since the interpreter runs
one program after the other and each as one thread, where a GPU runs many at once and each on several warps; and for
accesses outside the tensors that the launch was given.

Lanes of one program that touch the same address need `tl.debug_barrier()` between, or an atomic operation, which has
one. Programs need atomic operations on a common address: a release after the one access, an acquire before the other.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np

from rung.emulator.guard import data_at
from rung.errors import EmulatorFault

MOST = 1 << 24  # addresses recorded per launch; a launch with more is not judged
LOAD, STORE, ATOMIC = 0, 1, 2
NOTHING_BETWEEN = "one address with nothing between"

Numbers = np.ndarray[Any, Any]


class Parameters:
    """The tensors that a launch was given, by the names of its parameters. Every access is compared with them."""

    def __init__(self, kernel: str, file: str, given: Mapping[str, Any]) -> None:
        self._kernel, self._file = kernel, file
        self._ranges: list[tuple[int, int, bool, str]] = []
        for name, tensor in given.items():
            tensor = getattr(tensor, "base", tensor)  # a descriptor's
            if hasattr(tensor, "untyped_storage") and tensor.numel():
                storage = tensor.untyped_storage()
                operand = data_at(tensor.data_ptr())
                first, last = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
                kept = (operand.start, operand.end, operand.written) if operand else (first, last, True)
                self._ranges.append((*kept, name))

    def require_inside(self, kind: int, width: int, addresses: Numbers, mask: Numbers, place: tuple[int, ...]) -> None:
        some = addresses if mask.all() else addresses[np.broadcast_to(mask, addresses.shape)]
        if not some.size or not self._ranges:
            return
        first, last = int(some.min()), int(some.max()) + width
        if any(start <= first and last <= end and (written or not kind) for start, end, written, _ in self._ranges):
            return
        fine = np.broadcast_to(~mask, addresses.shape).copy()
        for start, end, written, _ in self._ranges:
            if written or not kind:
                fine |= (addresses >= start) & (addresses + width <= end)
        if fine.all():
            return
        lane = tuple(map(int, np.unravel_index(int((~fine).argmax()), fine.shape)))
        at = int(addresses[lane])
        start, end, _, name = min(self._ranges, key=lambda one: max(one[0] - at, at + width - one[1], 0))
        if at >= end:
            beside = f"{(at - end) // width + 1} elements past the end"
        elif at < start:
            beside = f"{-(-(start - at) // width)} elements before the start"
        else:
            beside = "into an input" if at + width <= end else "across the end"
        do = {LOAD: "loads", STORE: "stores", ATOMIC: "changes"}[kind]
        program = place[0] if not any(place[1:]) else place
        lanes = ", ".join(map(str, lane)) or "0"
        text = f"program {program}, lane {lanes}, line {self._line()}: {do} {beside} of parameter '{name}'"
        more = "" if mask.all() and mask.ndim == 0 else " (is the mask right?)"
        raise EmulatorFault("bounds", f"kernel '{self._kernel}', {text.replace('into an input of', 'into')}{more}")

    def _line(self) -> int:
        """The line of the kernel's file that is being interpreted."""
        frame: FrameType | None = sys._getframe()
        while frame and frame.f_code.co_filename != self._file:
            frame = frame.f_back
        return frame.f_lineno if frame else 0


@dataclass
class _Recent:
    """What a program has touched since its last barrier: sorted addresses, and the lane of each."""

    kind: int
    addresses: Numbers
    lanes: Numbers
    shape: tuple[int, ...]


class Programs:
    """What the programs of one launch load and store."""

    def __init__(self, kernel: str) -> None:
        self._kernel = kernel
        self._room = MOST
        self._clock = 0
        self._program = -1
        self._recent: list[_Recent] = []
        self._events: list[tuple[Numbers, int, int, int]] = []  # addresses, kind, program, time
        self._plain = {LOAD: False, STORE: False, ATOMIC: False}  # kinds that there were
        # By program: when it last released, and first acquired, at each address.
        self._released: dict[int, dict[int, int]] = defaultdict(dict)
        self._acquired: dict[int, dict[int, int]] = defaultdict(dict)

    def note(self, kind: int, addresses: Numbers, mask: Numbers, program: int, value: Any = None) -> None:
        """An access at each address that the mask admits, before it happens."""
        shape = np.broadcast_shapes(addresses.shape, mask.shape)
        inside = np.broadcast_to(mask, shape).ravel()
        lanes = np.flatnonzero(inside)
        if not len(lanes):
            return
        at = np.broadcast_to(addresses, shape).ravel()[lanes]
        order = np.argsort(at, kind="stable")
        at, lanes = at[order], lanes[order]
        if program != self._program:
            self._program, self._recent = program, []
        self._clock += 1
        first = np.concatenate(([True], at[1:] != at[:-1]))
        if kind == STORE and not first.all():
            self._same(at, np.broadcast_to(value, shape).ravel()[lanes])
        self._room -= len(at)
        if self._room < 0:
            return
        if kind != ATOMIC:
            now = _Recent(kind, at, lanes, shape)
            self._lanes(now)
            self._recent.append(now)
        self._plain[kind] = True
        self._events.append((at[first], kind, program, self._clock))

    def barrier(self) -> None:
        """The lanes of the running program have waited for each other."""
        self._recent = []

    def ordered(self, addresses: Numbers, mask: Numbers, program: int, *, acquires: bool, releases: bool) -> None:
        """An atomic operation of this program has happened, which acquires or releases."""
        self._clock += 1
        touched = np.unique(np.broadcast_to(addresses, np.broadcast_shapes(addresses.shape, mask.shape))[mask])
        for one in touched.tolist():
            if acquires:
                self._acquired[program].setdefault(one, self._clock)
            if releases:
                self._released[program][one] = self._clock
        self.barrier()

    def _same(self, at: Numbers, values: Numbers) -> None:
        """Lanes that store to one address must store the same: which of them is last is not defined."""
        bits = np.ascontiguousarray(values).view(f"u{values.itemsize}")
        if ((at[1:] == at[:-1]) & (bits[1:] != bits[:-1])).any():
            raise EmulatorFault("race", f"lanes of kernel '{self._kernel}' store different values to one address")

    def _lanes(self, now: _Recent) -> None:
        """A lane that touches what another lane of its program has stored, or stores what another has loaded."""
        for before in self._recent:
            if (before.kind, now.kind) == (LOAD, LOAD):
                continue
            if now.addresses[-1] < before.addresses[0] or before.addresses[-1] < now.addresses[0]:
                continue
            place = np.minimum(np.searchsorted(before.addresses, now.addresses), len(before.addresses) - 1)
            met = before.addresses[place] == now.addresses
            if not met.any():
                continue
            scalar = before.addresses.size == now.addresses.size == 1 and before.shape == now.shape
            if scalar and _single(now.shape):  # all lanes load a scalar, one stores it
                if (before.kind, now.kind) != (STORE, LOAD):
                    continue
            elif before.shape == now.shape and (before.lanes[place] == now.lanes)[met].all():
                continue
            do = {LOAD: "loads what another has stored", STORE: "stores what another has touched"}[now.kind]
            text = f"a lane of kernel '{self._kernel}' {do} in the same program, with no tl.debug_barrier() between"
            raise EmulatorFault("race", text)

    def judge(self) -> None:
        """Refuses two programs that store to the same address, or of which one loads what the other stores, unless
        atomic operations order them."""
        plain = self._plain
        if self._room < 0 or not (plain[STORE] or (plain[ATOMIC] and plain[LOAD])):
            return
        at = np.concatenate([addresses for addresses, *_ in self._events])
        counts = [len(addresses) for addresses, *_ in self._events]
        kind, by, when = (np.repeat([event[i] for event in self._events], counts) for i in (1, 2, 3))
        order = np.lexsort((when, at))
        at, kind, by, when = at[order], kind[order], by[order], when[order]
        index = np.arange(len(at))
        start = np.maximum.accumulate(np.where(np.concatenate(([True], at[1:] != at[:-1])), index, 0))
        # Each event against the last one before it at its address that wrote, and each that wrote against the last.
        wrote = np.maximum.accumulate(np.where(kind != LOAD, index, -1))
        last_write = np.concatenate(([-1], wrote[:-1]))
        self._pairs(last_write, index, start, at, kind, by, when)
        self._pairs(np.where(kind != LOAD, index - 1, -1), index, start, at, kind, by, when)

    def _pairs(
        self, one: Numbers, two: Numbers, start: Numbers, at: Numbers, kind: Numbers, by: Numbers, when: Numbers
    ) -> None:
        valid = one >= start
        one, two = one[valid], two[valid]
        atomic = (kind[one] == ATOMIC) & (kind[two] == ATOMIC)
        crossed = (by[one] != by[two]) & ~atomic & ((kind[one] != LOAD) | (kind[two] != LOAD))
        one, two = one[crossed], two[crossed]
        if not len(one):
            return
        facts = np.stack((by[one], when[one], by[two], when[two], kind[one], kind[two]))
        for first, then, second, later, kind1, kind2 in np.unique(facts, axis=1).T.tolist():
            if not self._is_ordered(first, then, second, later):
                both = f"programs {min(first, second)} and {max(first, second)} of kernel '{self._kernel}'"
                do = "load and store" if LOAD in (kind1, kind2) else "store to"
                raise EmulatorFault("race", f"{both} {do} {NOTHING_BETWEEN}")

    def _is_ordered(self, first: int, then: int, second: int, later: int) -> bool:
        released, acquired = self._released.get(first, {}), self._acquired.get(second, {})
        return any(
            released.get(address, 0) > then and begun < later and begun > released.get(address, 0)
            for address, begun in acquired.items()
        )


def _single(shape: tuple[int, ...]) -> bool:
    return all(size == 1 for size in shape)
