"""Counts of a whole CUDA program, as its process wrote them (host/kernels.cpp)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

from rung.cuda.launch import LaunchConfig
from rung.emulator import counters, device_code, machine


@dataclass
class _Sum:
    program: machine.Program
    config: LaunchConfig
    launches: int
    tally: dict[int, tuple[int, int]] = field(default_factory=lambda: defaultdict(lambda: (0, 0)))
    requests: list[tuple[list[int], list[int]]] = field(default_factory=list)


def counted(counts: Path) -> list[counters.Launched]:
    """What the program's launches counted, those of one kernel with one grid summed."""
    sums: list[_Sum] = []
    lines = iter(counts.read_text().splitlines() if counts.is_file() else ())
    for line in lines:
        kind, *words = line.split()
        if kind == "launch":
            launches, gx, gy, gz, bx, by, bz, cx, cy, cz, shared, cooperative = map(int, words)
            cluster = (cx, cy, cz) if cx * cy * cz > 1 else None
            config = LaunchConfig((gx, gy, gz), (bx, by, bz), shared, bool(cooperative), cluster)
            symbol, cubin, source = next(lines).split()[1], Path(next(lines)), next(lines)
            name = device_code.expression_of(device_code.demangled(symbol).strip())
            sums.append(_Sum(device_code.program(cubin, symbol, source, name), config, launches))
            continue
        numbers = [int(word) for word in words]
        if kind == "tally":
            sums[-1].tally[numbers[0]] = (numbers[1], numbers[2])
        else:
            sums[-1].requests.append((numbers[: machine.FIGURES], numbers[machine.FIGURES :]))
    return [
        replace(
            counters.counted(s.program, s.config, [s.tally[n] for n in range(len(s.program.instructions))], s.requests),
            launches=s.launches,
        )
        for s in sums
    ]
