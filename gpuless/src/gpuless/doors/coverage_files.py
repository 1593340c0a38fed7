"""Coverage of device code as lcov and Cobertura: lines and branches by the machine code that has been executed.

A line's count is that of its most executed instruction, in threads. A branch is a conditional jump or exit of the
machine code; what the compiler has made of an `if` without a jump has no branch.
"""

from __future__ import annotations

import time
import xml.etree.ElementTree as xml
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from gpuless.counts import counting
from gpuless.doors.reports import relative

_JUMPS = ("BRA", "EXIT")
_NOT_OF_THE_USER = ("/nvidia/cu1", "/toolkits/", "/usr/", "<")


@dataclass
class Covered:
    """Of one file: threads by line; of each branch those that took it, and those that did not; launches of kernels."""

    lines: dict[int, int] = field(default_factory=dict)
    branches: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # by line and number
    functions: dict[str, tuple[int, int]] = field(default_factory=dict)  # first line and launches


def read(counts: Path) -> dict[str, Covered]:
    """What the processes that wrote into this folder have executed, by file."""
    found: dict[str, Covered] = defaultdict(Covered)
    for path in sorted(counts.iterdir()):
        for program, launches, tally in counting.executions(path):
            lines: dict[tuple[str, int], int] = {}
            ordinals: dict[tuple[str, int], int] = defaultdict(int)
            for number, instruction in enumerate(program.instructions):
                places = [place for place in program.lines(number) if not _is_foreign(place[0])]
                threads = tally[number][1]
                for place in places:
                    lines[place] = max(lines.get(place, 0), threads)
                if places and instruction.name in _JUMPS and instruction.text.startswith("@"):
                    file, line = places[0]
                    key = (line, ordinals[places[0]])
                    ordinals[places[0]] += 1
                    both = found[file].branches.setdefault(key, [0, 0])
                    both[0] += threads
                    both[1] += tally[number + 1][1] if number + 1 < len(tally) else 0
            for (file, line), threads in lines.items():
                found[file].lines[line] = found[file].lines.get(line, 0) + threads
            own = [line for file, line in lines if file == program.origin]
            if own:
                first, before = found[program.origin].functions.get(program.kernel, (min(own), 0))
                found[program.origin].functions[program.kernel] = (min(first, *own), before + launches)
    return dict(sorted(found.items()))


def _is_foreign(file: str) -> bool:
    return any(part in file for part in _NOT_OF_THE_USER)


def lcov(covered: dict[str, Covered]) -> str:
    """A tracefile of lcov."""
    told = []
    for file, of in covered.items():
        told += ["TN:device", f"SF:{Path(file).resolve()}"]
        for name, (line, _) in of.functions.items():
            told.append(f"FN:{line},{name}")
        for name, (_, launches) in of.functions.items():
            told.append(f"FNDA:{launches},{name}")
        told += [f"FNF:{len(of.functions)}", f"FNH:{sum(n > 0 for _, n in of.functions.values())}"]
        for (line, number), both in sorted(of.branches.items()):
            told += [f"BRDA:{line},{number},{way},{taken if any(both) else '-'}" for way, taken in enumerate(both)]
        ways = [taken for both in of.branches.values() for taken in both]
        told += [f"BRF:{len(ways)}", f"BRH:{sum(taken > 0 for taken in ways)}"]
        told += [f"DA:{line},{threads}" for line, threads in sorted(of.lines.items())]
        told += [f"LF:{len(of.lines)}", f"LH:{sum(n > 0 for n in of.lines.values())}", "end_of_record"]
    return "\n".join(told) + "\n"


def cobertura(covered: dict[str, Covered]) -> str:
    """A report in Cobertura's XML (coverage-04.dtd)."""
    every = list(covered.values())
    lines = [n for of in every for n in of.lines.values()]
    ways = [n for of in every for both in of.branches.values() for n in both]
    facts = {**_rates(lines, ways), "complexity": "0"}
    sums = {"lines-covered": str(sum(n > 0 for n in lines)), "lines-valid": str(len(lines))}
    sums |= {"branches-covered": str(sum(n > 0 for n in ways)), "branches-valid": str(len(ways))}
    top = xml.Element("coverage", {**facts, **sums, "version": "gpuless", "timestamp": str(int(time.time()))})
    xml.SubElement(xml.SubElement(top, "sources"), "source").text = str(Path.cwd())
    package = xml.SubElement(xml.SubElement(top, "packages"), "package", {"name": "device", **facts})
    classes = xml.SubElement(package, "classes")
    for file, of in covered.items():
        own = [n for both in of.branches.values() for n in both]
        rates = _rates(list(of.lines.values()), own) | {"complexity": "0"}
        name = relative(file)
        one = xml.SubElement(classes, "class", {"name": Path(file).name, "filename": name, **rates})
        xml.SubElement(one, "methods")
        rows = xml.SubElement(one, "lines")
        for line, threads in sorted(of.lines.items()):
            here = [n for (at, _), both in of.branches.items() if at == line for n in both]
            row = xml.SubElement(rows, "line", number=str(line), hits=str(threads), branch=str(bool(here)).lower())
            if here:
                met = sum(n > 0 for n in here)
                row.set("condition-coverage", f"{100 * met // len(here)}% ({met}/{len(here)})")
    kind = '<!DOCTYPE coverage SYSTEM "http://cobertura.sourceforge.net/xml/coverage-04.dtd">\n'
    return '<?xml version="1.0" encoding="utf-8"?>\n' + kind + xml.tostring(top, encoding="unicode") + "\n"


def _rates(lines: list[int], ways: list[int]) -> dict[str, str]:
    def rate(counts: list[int]) -> str:
        return f"{sum(n > 0 for n in counts) / len(counts) if counts else 1:.4f}"

    return {"line-rate": rate(lines), "branch-rate": rate(ways)}
