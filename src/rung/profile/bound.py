"""A lower bound of a rung's time on a chosen GPU, from what was counted without one; not a prediction.

No kernel can be faster than its counted work at the published rates: compulsory bytes over the bandwidth, operations
over the arithmetic rate, stores over the width of the second cache, and on each multiprocessor, per clock, four
instructions, so many lanes of each kind of instruction as the CUDA C++ Programming Guide's table of throughputs says,
and one pass of the data path that shared memory, shuffles and the first cache have together: one wavefront, or one line
of 128 bytes. No block ends before its longest chain of instructions that need each other, at the latencies of the H100
that microbenchmarks found (machine/timing.cpp), and a multiprocessor holds so many blocks at once. Kernels run one
after the other. A grid with fewer blocks than multiprocessors uses only so many of them. The time of a launch is not in
it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rung.cuda import gpus, opcodes
from rung.rungs.base import Subject

# Per clock and multiprocessor: instructions of warps, bytes of the data path.
_ISSUED, _WAVEFRONT = 4, 128
_UNITS = {"integers": ("ALU",), "special functions": ("XU",), "float64": ("FP64",)}
# Bytes per clock of the second cache (the A100's, since none is published for Hopper), and from it to a multiprocessor.
_SECOND, _PORT = 5120, 64


@dataclass(frozen=True)
class Bound:
    """Seconds, the unit that sets them, and each unit's part."""

    gpu: str
    seconds: float
    unit: str
    units: dict[str, float]


def bound(subject: Subject, kernels: Iterable[Mapping[str, Any]], gpu: str = gpus.USUAL) -> Bound:
    """The bound of launches of these grids and figures."""
    of = gpus.find(gpu, "sm_90")
    rates, clock = of.rates, of.clock_mhz * 1e6
    rung = subject.rung
    cost = rung.operation.cost_with(subject.values, subject.dtype, rung.binds)
    units = {"memory": cost.bytes / rates["bytes"], "arithmetic": cost.flops / rates[subject.dtype.name]}
    inside = Counter[str]()  # of the multiprocessors
    slowest = 0.0
    for kernel in kernels:
        blocks = min(math.prod(kernel["grid"]), of.multiprocessors)
        parts, used = _inside(kernel, blocks), blocks * clock
        times = {name: clocks / used for name, clocks in parts.items()}
        longest, together = kernel["clocks"]
        times["latency"] = max(longest, together / (of.multiprocessors * max(kernel["resident"], 1))) / clock
        inside.update(times)
        slowest += max(times["first cache"] + times["shared memory"], *times.values())
    units |= inside
    unit = max(units, key=lambda name: units[name])
    if slowest > max(units["memory"], units["arithmetic"]):
        unit = max(inside, key=lambda name: inside[name])
    return Bound(of.name, max(slowest, units["memory"], units["arithmetic"]), unit, units)


def _inside(kernel: Mapping[str, Any], blocks: int) -> dict[str, float]:
    """Clocks of one multiprocessor, if it did the work of so many."""
    found = defaultdict[str, float](float, kernel["figures"])
    lines = found["global_read_lines"] + found["global_write_lines"]
    written = found["global_write_bytes"] + found["bulk_write_bytes"]  # the first cache keeps no stores back
    clocks = Counter[str]()  # of a multiprocessor, which has four of each unit
    for name, executed in kernel["opcodes"].items():
        if row := opcodes.row(name):
            clocks[row.unit] += executed * row.interval / 4
    shared = found["wavefronts_load"] + found["wavefronts_store"] + found["async_copy_bytes"] / _WAVEFRONT
    units = {name: sum(clocks[unit] for unit in of) for name, of in _UNITS.items()}
    return units | {
        "first cache": lines + found["atomics"],
        "shared memory": shared + kernel["opcodes"].get("SHFL", 0),
        "second cache": written * max(blocks / _SECOND, 1 / _PORT),
        "instructions": found["instructions"] / _ISSUED,
        "multiply-adds": max(clocks["FMA_HEAVY"], clocks["FMA"] + clocks["FMA_HEAVY"] / 2),
    }


def kendall(a: Sequence[float], b: Sequence[float]) -> float:
    """Kendall's tau-b of two orders; pairs that are equal on one side count half."""
    pairs = [(i, j) for i in range(len(a)) for j in range(i)]
    signs = [((a[i] > a[j]) - (a[i] < a[j]), (b[i] > b[j]) - (b[i] < b[j])) for i, j in pairs]
    left, right = sum(x != 0 for x, _ in signs), sum(y != 0 for _, y in signs)
    return sum(x * y for x, y in signs) / math.sqrt(left * right) if left and right else 0.0
