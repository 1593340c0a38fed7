"""Counts of a whole CUDA program, as its process wrote them (driver/counts.cpp)."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpuless import machine, timing
from gpuless.compile import elf, sass
from gpuless.compile.cubin_cache import Cubin
from gpuless.counts import counters
from gpuless.facts import gpus
from gpuless.launch import LaunchConfig

_WHYS = range(machine.STALLS)


@dataclass
class _Sum:
    program: machine.Program
    config: LaunchConfig
    launches: int
    tally: dict[int, tuple[int, int]] = field(default_factory=lambda: defaultdict(lambda: (0, 0)))
    requests: list[tuple[list[int], list[int]]] = field(default_factory=list)
    simulated: tuple[float, int, bool, float, bool] = (0.0, 0, False, 0.0, False)
    stalls: dict[tuple[int, int], float] = field(default_factory=dict)


def counted(counts: Path) -> list[counters.Launched]:
    """What the program's launches counted, those of one kernel with one grid summed."""
    return [
        replace(
            counters.counted(s.program, s.config, [s.tally[n] for n in range(len(s.program.instructions))], s.requests),
            launches=s.launches,
        )
        for s in _sums(counts)
    ]


def executions(counts: Path) -> list[tuple[machine.Program, int, list[tuple[int, int]]]]:
    """Kernels, their launches, and how often warps and threads have executed each of their instructions."""
    return [(s.program, s.launches, [s.tally[n] for n in range(len(s.program.instructions))]) for s in _sums(counts)]


def simulated(counts: Path, gpu: gpus.Gpu, *, cold: bool = False) -> list[timing.SimulatedLaunch]:
    """What the model of time says of each kernel with each grid; `cold`: with a launch under Nsight Compute."""
    launch = timing.basis(gpu).constants["profiled_launch"] if cold else 0.0
    found = []
    for s in _sums(counts):
        clocks, resident, together, atomic_clocks, swaps = s.simulated
        if clocks:
            stalls = [[s.stalls.get((n, why), 0.0) for why in _WHYS] for n in range(len(s.program.instructions))]
            facts = (clocks + launch, resident, stalls, together, atomic_clocks, swaps, s.launches, cold)
            found.append(timing.SimulatedLaunch(s.program, s.config, *facts))
    return found


def _sums(counts: Path) -> list[_Sum]:
    sums: list[_Sum] = []
    lines = iter(counts.read_text().splitlines() if counts.is_file() else ())
    for line in lines:
        kind, *words = line.split()
        if kind == "launch":
            launches, gx, gy, gz, bx, by, bz, cx, cy, cz, shared, cooperative = map(int, words)
            cluster = (cx, cy, cz) if cx * cy * cz > 1 else None
            config = LaunchConfig((gx, gy, gz), (bx, by, bz), shared, bool(cooperative), cluster)
            symbol, cubin, source = next(lines).split()[1], Path(next(lines)), next(lines)
            sums.append(_Sum(_program(cubin, symbol, source), config, launches))
            continue
        if kind == "simulated":
            facts = (int(words[1]), words[2] != "0", float.fromhex(words[3]), words[4] != "0")
            sums[-1].simulated = (float.fromhex(words[0]), *facts)
            continue
        if kind == "stall":
            sums[-1].stalls[int(words[0]), int(words[1])] = float.fromhex(words[2])
            continue
        numbers = [int(word) for word in words]
        if kind == "tally":
            sums[-1].tally[numbers[0]] = (numbers[1], numbers[2])
        else:
            sums[-1].requests.append((numbers[: machine.FIGURES], numbers[machine.FIGURES :]))
    return sums


def _program(cubin: Path, symbol: str, source: str) -> machine.Program:
    data = cubin.read_bytes()
    plain = subprocess.run(["c++filt", symbol], capture_output=True, text=True, check=True).stdout.strip()
    name = _expression_of(plain)
    of = Cubin(cubin, elf.arch(data), {name: symbol}, {name: elf.resources(data, symbol)}, "")
    return machine.Program(of, sass.instructions_of(of)[name], name, source)


def _expression_of(demangled: str) -> str:
    """`void sum<float, 256>(float const*)` as `sum<float, 256>`."""
    depth, start = 0, 0
    text = demangled.replace("(anonymous namespace)::", "")
    for i, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        if letter == " " and not depth:
            start = i + 1
        if letter == "(" and not depth:
            return text[start:i]
    return text
