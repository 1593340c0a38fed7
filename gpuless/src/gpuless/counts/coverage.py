"""What of a kernel's source no launch has run, over all builds of it that ran in this process.

Launches under `Settings(coverage=True)` add what each instruction did. A line has been run when any lane has executed
an instruction that comes from it, in any build; code that a build leaves out is not missed. Of a line that has been
run, accesses to memory may still be missed: those behind a condition on the same line.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuless import machine
from gpuless.compile.source import Unreached
from gpuless.facts import opcodes

NEVER = "never runs"
ACCESS = {"read": "its load never runs", "write": "its store never runs"}
SPACES = ("global", "any", "shared")
OF_TRITON = SPACES[:2]  # shared memory is its compiler's
Place = tuple[str, int, str]  # a file, its line, and an instruction of it
Coverage = dict[Place, bool]


class Executed:
    """What of the programs that ran has been executed, and what has not."""

    def __init__(self) -> None:
        self._ran: Coverage = {}
        self._places: weakref.WeakKeyDictionary[machine.Program, list[list[Place]]] = weakref.WeakKeyDictionary()
        # Instructions that have not run.
        self._left: weakref.WeakKeyDictionary[machine.Program, Sequence[int]] = weakref.WeakKeyDictionary()

    def add(self, program: machine.Program, tally: Sequence[tuple[int, int]]) -> None:
        """Adds the executions of a launch."""
        places = self._places.get(program)
        if places is None:
            places = self._places[program] = [
                [(*at, i.name) for at in program.lines(number)] for number, i in enumerate(program.instructions)
            ]
        left = self._left.get(program)
        if left is None:
            left = range(len(places))
            for place in itertools.chain.from_iterable(places):
                self._ran.setdefault(place, False)
        for number in left:
            if tally[number][1]:
                self._ran.update(dict.fromkeys(places[number], True))
        self._left[program] = [number for number in left if not tally[number][1]]

    def take(self) -> Coverage:
        """What has run, and what has not, since the last call."""
        found = dict(self._ran)
        self._ran.clear()
        self._left.clear()
        return found

    def put(self, ran: Mapping[Place, bool]) -> None:
        """Puts back what was taken."""
        self._ran.update(merged(self._ran, ran))


def merged(*some: Mapping[Place, bool]) -> Coverage:
    """What has run in any of several processes."""
    found: Coverage = {}
    for one in some:
        for place, ran in one.items():
            found[place] = found.get(place, False) or ran
    return found


def missed(ran: Mapping[Place, bool], spaces: Sequence[str] = SPACES) -> list[Place]:
    """Whole lines (without an instruction's name), and accesses to memory of these spaces on others. Where copies to
    shared memory have run, as of a pipelined loop, loads of other builds are not missed."""
    reached = {place[:2] for place, here in ran.items() if here}
    copied = {place[:2] for place, here in ran.items() if here and place[2] == "LDGSTS"}
    left = [place for place, here in ran.items() if not here]
    # A closing brace alone is the end of code that always ends on another line.
    whole = {(*p[:2], ""): None for p in left if p[:2] not in reached and _text(*p[:2]) != "}"}
    told = [(place, _access(place[2], spaces)) for place in left if place[:2] in reached]
    return [*whole, *(p for p, access in told if access and not (access == ACCESS["read"] and p[:2] in copied))]


def ran_among(ran: Mapping[Place, bool], wanted: Sequence[Place]) -> list[int]:
    """Which of these places have run."""
    reached = {place[:2] for place, here in ran.items() if here}
    return [n for n, p in enumerate(wanted) if (ran.get(p) if p[2] else p[:2] in reached)]


def unreached(ran: Mapping[Place, bool], spaces: Sequence[str] = SPACES) -> list[Unreached]:
    """The same in the order of files and lines, as a verdict names it."""
    every = missed(ran, spaces)
    return sorted({Unreached(f, n, _text(f, n), _access(name) or NEVER) for f, n, name in every})


def _access(name: str, spaces: Sequence[str] = SPACES) -> str | None:
    row = opcodes.row(name)
    return ACCESS.get(row.direction) if row and row.space in spaces else None


def _text(file: str, line: int) -> str:
    source = _lines(file)
    return source[line - 1].strip() if 0 < line <= len(source) else ""


@functools.cache
def _lines(file: str) -> list[str]:
    try:
        return Path(file).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
