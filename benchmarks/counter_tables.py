"""Counts of the emulator beside Nsight Compute's of the same launches: docs/counters.md.

What differs is listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rung.results.current import Figure, Figures
from rung.results.row import Row
from rung_reproduce.show import markdown

COMPARED = (
    ("requests of global loads", "global_read_requests"),
    ("sectors of global loads", "global_read_bytes"),
    ("requests of global stores", "global_write_requests"),
    ("sectors of global stores", "global_write_bytes"),
    ("wavefronts of shared loads", "passes_load"),
    ("wavefronts of shared stores", "passes_store"),
    ("wavefronts of shared loads, without conflicts", "ideal_load"),
    ("wavefronts of shared stores, without conflicts", "ideal_store"),
    ("conflicts in shared memory", "conflicts"),
    ("global load instructions", "global_loads"),
    ("global store instructions", "global_stores"),
    ("shared load instructions", "shared_loads"),
    ("shared store instructions", "shared_stores"),
    ("all instructions", "instructions"),
    ("FADD", "fadd"),
    ("FFMA", "ffma"),
    ("MUFU", "mufu"),
    ("HMMA", "hmma"),
)
BOUNDS = (0.0, 0.01, 0.05)
_OTHERS = ("async_copy_bytes", "bulk_read_bytes", "bulk_write_bytes", "gmma", "atomics")


@dataclass(frozen=True)
class Pair:
    """One figure of one kernel, measured and counted."""

    what: str
    kernel: str
    figure: str
    measured: float
    counted: float

    @property
    def off(self) -> float:
        return abs(self.measured - self.counted) / max(self.measured, self.counted, 1.0)


def parts(rows: Sequence[Row]) -> dict[str, Callable[[], str]]:
    """The page's generated parts."""
    every = list(pairs(rows))
    return {
        "counters:agreement": partial(agreement, every),
        "counters:others": partial(others, every),
    }


def headline(figures: Figures, ladder: str) -> list[Figure]:
    """The CUDA rungs' times at the shape and dtype that most of them were timed at."""
    found = [f for f in figures.ladder(ladder).found.values() if f.rung.kind == "cuda"]
    sizes = Counter((f.row.shape, f.row.dtype) for f in found)
    most = max(sizes, key=lambda size: sizes[size], default=None)
    return [f for f in found if (f.row.shape, f.row.dtype) == most]


def pairs(rows: Iterable[Row]) -> Iterator[Pair]:
    """Figures of rows that count the launches of a measured row, if neither is zero throughout."""
    every = list(rows)
    counted = {launches(r): r for r in every if r.kind == "count" and r.verdict == "ok"}
    # Of several GPUs' rows, one's: that with most figures, such as wavefronts without waits for other warps.
    profiles = sorted(
        (r for r in every if r.kind == "profile" and r.verdict == "ok"),
        key=lambda row: any("passes_load" in kernel["figures"] for kernel in row.detail.get("kernels", ())),
    )
    profiled = {launches(r): r for r in profiles}
    for launched, row in profiled.items():
        other = counted.get(launched)
        if other is None:
            continue
        for measured, ours in zip(row.detail["kernels"], other.detail["kernels"], strict=False):
            if measured["kernel"] != ours["kernel"]:
                continue
            what = f"{row.what} {row.dtype} {row.shape}"
            yield from compared(what, ours["kernel"], measured["figures"], measured["opcodes"], ours["figures"])


def compared(
    what: str, kernel: str, measured: Mapping[str, float], opcodes: Mapping[str, float], counted: Mapping[str, float]
) -> Iterator[Pair]:
    """The figures of one launch that both sides have, if neither is zero."""
    # The hardware's counter of HMMA contains moves of constants by that pipe.
    warps = {"mufu": opcodes.get("MUFU", 0.0), "hmma": opcodes.get("HMMA", 0.0)}
    hardware, emulated = _of_shared(measured) | warps, _of_shared(counted, ours=True)
    # The hardware's wavefronts leave out matrices; its ideal ones contain copies, operands and atomics.
    matrices = counted.get("ldmatrix") or counted.get("stmatrix")
    copies = any(counted.get(name) for name in _OTHERS)
    for _, figure in COMPARED:
        if figure.startswith("passes") and matrices:
            continue
        if figure.startswith(("conflicts", "ideal")) and (matrices or copies):
            continue
        a, b = hardware.get(figure), emulated.get(figure)
        if a is not None and b is not None and (a or b):
            yield Pair(what, kernel, figure, a, b)


def launches(row: Row) -> tuple[str, ...]:
    """What was launched: rows that agree in it measure or count the same."""
    return (row.what, row.dtype, row.shape, str(sorted(row.values.items())), str(sorted(row.tuning.items())))


def _of_shared(figures: Mapping[str, float], ours: bool = False) -> dict[str, float]:
    """With wavefronts and conflicts that contain no waits for other warps: counted ones never do. Where a profile lacks
    these counters, wavefronts without any conflict."""
    made, ways = dict(figures), ("load", "store")
    wavefronts = [figures.get(f"wavefronts_{way}", 0.0) for way in ways]
    conflicts = [figures.get(f"conflicts_{way}", 0.0) for way in ways]
    ideal = {f"ideal_{way}": w - c for way, w, c in zip(ways, wavefronts, conflicts, strict=True)}
    if ours:
        made |= {f"passes_{way}": w for way, w in zip(ways, wavefronts, strict=True)} | ideal
        made["conflicts"] = sum(conflicts)
    elif "ideal_passes" in figures:
        made["conflicts"] = sum(figures[f"passes_{way}"] for way in ways) - figures["ideal_passes"]
    elif "passes_load" not in figures:
        made |= ideal
    return made


def agreement(every: list[Pair]) -> str:
    """How many kernels' figures are equal, and within 1 % and 5 %."""
    if not every:
        return "\nNot counted yet.\n\n"
    lines = []
    for title, figure in COMPARED:
        some = [p for p in every if p.figure == figure]
        if some:
            within = [sum(p.off <= bound for p in some) for bound in BOUNDS]
            lines.append((title, f"{len(some)}", *(f"{n} ({n / len(some):.0%})" for n in within)))
    return markdown.table(("figure", "kernels", "equal", "within 1 %", "within 5 %"), lines)


def others(every: list[Pair]) -> str:
    """The figures that differ by more than 1 %, with the likely reason."""
    titles = {figure: title for title, figure in COMPARED}
    lines = [
        (p.what, p.kernel, titles[p.figure], f"{p.measured:,.0f}", f"{p.counted:,.0f}", reason(p))
        for p in every
        if p.off > BOUNDS[1]
    ]
    if not lines:
        return "\nNone.\n\n"
    return markdown.table(("rung", "kernel", "figure", "measured", "counted", "reason"), sorted(lines))


def reason(pair: Pair) -> str:
    """Why a count differs."""
    if pair.figure == "instructions":
        return "warps look again until copies or other warps have come; how often depends on time"
    return "not explained"
