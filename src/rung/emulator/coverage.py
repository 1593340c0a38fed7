"""Which branches and loop counts no launch has reached, over all builds of a source that ran in this process.

Kernels loaded with `Settings(coverage=True)` count at every `if`, `for` and `while` (branches.py). A condition that was
evaluated should be seen both true and false, and a loop should end after no iteration, one, and several; constants of a
build are excluded.
"""

from __future__ import annotations

import ctypes
import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rung.cuda.source import Unreached
from rung.emulator.branches import Site
from rung.emulator.module import Library

Counts = dict[Site, list[int]]
OUTCOMES = {"branch": ("never false", "never true"), "loop": ("never skipped", "never one turn", "never several turns")}


def counted() -> Counts:
    """The counts since the last call, of sites that were reached."""
    total: Counts = {}
    for library in Library.counting:
        sites = json.loads(ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(library.code, "rung_sites"))))
        counts = (ctypes.c_uint * (4 * len(sites))).in_dll(library.code, "rung_counts")
        for number, site in enumerate(sites):
            found = list(counts[4 * number : 4 * number + 4])
            if any(found):
                total = merged([total, {Site(*site): found}])
        ctypes.memset(counts, 0, ctypes.sizeof(counts))
    return total


def merged(parts: Iterable[Counts]) -> Counts:
    """The sum of several builds' counts; a condition is constant only if it is constant in all of them."""
    total: Counts = {}
    known: dict[tuple[Any, ...], Site] = {}  # macros in its text differ from build to build
    for part in parts:
        for given, counts in part.items():
            site = known.setdefault(given[:4], given)
            before = total.get(site, [0, 0, 0, counts[3]])
            sums = [a + b for a, b in zip(counts[:3], before[:3], strict=True)]
            total[site] = [*sums, counts[3] if counts[3] == before[3] else min(counts[3], before[3]) and 2]
    return total


def unreached(counts: Counts) -> list[Unreached]:
    """Outcomes that never occurred, in the order of files and lines, and those that did although the source rules them
    out.

    A source rules one out on the line or above it: `// never true: B is at least 1`; or, if other tunables or thread
    orders may reach it, `// perhaps never true: BLOCK is 32`.
    """
    found = []
    for site, turned in sorted(counts.items()):
        source = _lines(site.file)
        comments = " ".join(line.partition("//")[2] for line in source[max(0, site.line - 2) : site.line])
        for number, outcome in enumerate(OUTCOMES[site.kind]):
            reported = not (turned[3] == 1 or (turned[3] == 2 and site.kind == "loop" and number == 0))
            excused = f"{outcome}:" in comments
            if reported and not turned[number] and not excused:
                found.append(Unreached(site.file, site.line, site.text, outcome))
            elif excused and turned[number] and f"perhaps {outcome}:" not in comments:
                found.append(Unreached(site.file, site.line, site.text, f"declared {outcome}, but it was"))
    return found


@functools.cache
def _lines(file: str) -> list[str]:
    try:
        return Path(file).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
