"""Which lines of a kernel's source no launch has run, over all builds of it that ran in this process.

Launches under `Settings(coverage=True)` add what each instruction did. A line has been run when any lane has executed
an instruction that comes from it, in any build; code that a build leaves out is not missed.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from rung.cuda.source import Unreached
from rung.emulator import machine

NEVER = "never runs"
_lanes: dict[tuple[str, int], int] = defaultdict(int)  # by file and line


def add(program: machine.Program, tally: Sequence[tuple[int, int]]) -> None:
    """Adds the executions of a launch."""
    for instruction, (_, lanes) in zip(program.instructions, tally, strict=True):
        for place in instruction.lines:
            _lanes[place] += lanes


def take_unreached() -> list[Unreached]:
    """The lines that no lane has run since the last call, in the order of files and lines."""
    missed = sorted(place for place, lanes in _lanes.items() if not lanes)
    _lanes.clear()
    return [Unreached(file, line, _text(file, line), NEVER) for file, line in missed]


def _text(file: str, line: int) -> str:
    source = _lines(file)
    return source[line - 1].strip() if 0 < line <= len(source) else ""


@functools.cache
def _lines(file: str) -> list[str]:
    try:
        return Path(file).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
