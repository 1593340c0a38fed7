"""A lower bound of a rung's time on a chosen GPU, from what was counted without one; not a prediction.

No kernel can be faster than its counted work at the published rates: compulsory bytes over the bandwidth, operations
over the arithmetic rate, and on each multiprocessor, per clock, one wavefront of shared memory, four sectors of the
first cache, 128 float32 instructions of lanes and 16 of special functions. A grid with fewer blocks than
multiprocessors uses only so many of them. Latency, caches and launches are not in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rung.emulator.counters_explained import figures
from rung.errors import RungError
from rung.profile.emulated import SMS, Counted
from rung.results.machine import DATASHEET
from rung.rungs.base import Subject

CLOCKS = {"NVIDIA H200": 1.98e9, "NVIDIA H100 80GB HBM3": 1.98e9}  # boost
_LANES, _FUNCTIONS = 128, 16  # instructions of lanes per clock and multiprocessor
_SECTORS = 4  # of 32 bytes per clock and multiprocessor, out of the first cache


@dataclass(frozen=True)
class Bound:
    """Seconds, the unit that sets them, and each unit's part."""

    seconds: float
    unit: str
    units: dict[str, float]


def bound(subject: Subject, counted: Counted, gpu: str = "NVIDIA H200") -> Bound:
    """The bound at the counted shape."""
    if gpu not in CLOCKS:
        raise RungError(f"no clock is known for {gpu!r}; there are {', '.join(CLOCKS)}.")
    rates, clock = DATASHEET[gpu], CLOCKS[gpu]
    rung = subject.rung
    cost = rung.operation.cost_with(subject.values, subject.dtype, rung.binds)
    units = {"memory": cost.bytes / rates["bytes"], "arithmetic": cost.flops / rates[subject.dtype.name]}
    for name in ("first cache", "shared memory", "float32", "special functions"):
        units[name] = 0.0
    for kernel in counted.kernels:
        used = min(math.prod(kernel.config.grid), SMS) * clock
        plain = [
            c for a, c in kernel.accesses.items() if a.way in ("plain", "cp.async", "atomic") and a.memory == "global"
        ]
        # A request takes a clock at least, and a clock moves four sectors.
        units["first cache"] += sum(max(c.requests, c.sectors / _SECTORS) for c in plain) / used
        units["shared memory"] += sum(c.wavefronts for c in kernel.accesses.values()) / used
        found = figures(kernel)
        units["float32"] += sum(found.get(name, 0.0) for name in ("fadd", "fmul", "ffma")) / _LANES / used
        units["special functions"] += 32 * found.get("mufu", 0.0) / _FUNCTIONS / used
    unit = max(units, key=lambda name: units[name])
    return Bound(units[unit], unit, units)


def kendall(a: Sequence[float], b: Sequence[float]) -> float:
    """Kendall's tau-b of two orders; pairs that are equal on one side count half."""
    pairs = [(i, j) for i in range(len(a)) for j in range(i)]
    signs = [((a[i] > a[j]) - (a[i] < a[j]), (b[i] > b[j]) - (b[i] < b[j])) for i, j in pairs]
    left, right = sum(x != 0 for x, _ in signs), sum(y != 0 for _, y in signs)
    return sum(x * y for x, y in signs) / math.sqrt(left * right) if left and right else 0.0
